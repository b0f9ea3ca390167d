"""Objects that ranks which are threads of one process send by reference."""

from __future__ import annotations

import os
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary


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

    def add(self, obj: Any) -> Sending:
        """Keep an object until it is taken, or until its Sending ends before it was sent."""
        reference = Reference(self._name, next(self._numbers))
        self._objects[reference.number] = obj
        return Sending(reference, self._objects)

    def take(self, number: int) -> Any:
        return self._objects.pop(number)


class Sending:
    """The send of an object's reference. The object is no longer kept if this ends before `sent` was called."""

    def __init__(self, reference: Reference, objects: dict[int, Any]) -> None:
        self.reference, self._objects = reference, objects

    def sent(self) -> None:
        self._objects = {}

    def __del__(self) -> None:
        self._objects.pop(self.reference.number, None)


_all: WeakValueDictionary[int, References] = WeakValueDictionary()


def take(references: int, number: int) -> Any:
    """The object of a Reference, which can be taken once."""
    table = _all.get(references)
    if table is None:
        why = "in another process or by ranks whose groups no longer exist"
        raise ValueError(f"the object was sent by reference, {why}")
    return table.take(number)
