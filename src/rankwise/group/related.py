"""The groups of one rank that come from one `init`."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from rankwise.contract.errors import RankwiseError
from rankwise.system.alive import Alive


class Reference(NamedTuple):
    """What travels in place of an object."""

    references: int
    number: int


class References:
    """The objects that the ranks of one job, threads of one process, have sent by reference, until they are received.

    It lives as long as one of their groups does.
    """

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers = count()
        self._name = int.from_bytes(os.urandom(8), "big")  # so that no other process has these
        _all[self._name] = self

    def add(self, obj: Any) -> Reference:
        """Keep an object until it is taken."""
        reference = Reference(self._name, next(self._numbers))
        self._objects[reference.number] = obj
        return reference

    def take(self, number: int) -> Any:
        return self._objects.pop(number)


_all: WeakValueDictionary[int, References] = WeakValueDictionary()


def take(references: int, number: int) -> Any:
    """The object of a Reference, which can be taken once."""
    table = _all.get(references)
    if table is None:
        why = "in another process or by ranks whose groups no longer exist"
        raise ValueError(f"the object was sent by reference, {why}")
    return table.take(number)


class Abortable(Protocol):
    """What is needed of a group."""

    @property
    def closed(self) -> bool: ...
    def abort(self, reason: str) -> None: ...


class Related:
    """Groups of this rank that were made of each other, by split, shrink and the like, or are the first of them.

    references: what their ranks send by reference, if all are threads of this process.
    """

    def __init__(self) -> None:
        self.references: References | None = None
        self._groups: Alive[Abortable] = Alive()
        self._reason = ""  # why the groups have been aborted

    def add(self, group: Abortable) -> None:
        self._groups.add(group)
        if self._reason:
            _abort(group, self._reason)

    def abort(self, reason: str) -> None:
        """Wake whoever waits in one of these groups, or in one that is still made of them, if its backend can."""
        self._reason = reason  # first: a group that is added now either finds the reason, or is found
        for group in self._groups:
            _abort(group, reason)


def _abort(group: Abortable, reason: str) -> None:
    if not group.closed:
        with suppress(RankwiseError):
            group.abort(reason)
