"""The groups of one rank that come from one `init`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from rankwise.contract.errors import RankwiseError
from rankwise.group.references import References


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
        self._groups: WeakSet[Abortable] = WeakSet()
        self._lock = threading.RLock()  # the destructor of a pool may run anywhere
        self._reason = ""  # why the groups have been aborted

    def add(self, group: Abortable) -> None:
        with self._lock:
            self._groups.add(group)
            reason = self._reason
        if reason:
            _abort(group, reason)

    def abort(self, reason: str) -> None:
        """Wake whoever waits in one of these groups, or in one that is still made of them, if its backend can."""
        with self._lock:
            self._reason = reason
            groups = list(self._groups)
        for group in groups:
            _abort(group, reason)


def _abort(group: Abortable, reason: str) -> None:
    if not group.closed:
        with suppress(RankwiseError):
            group.abort(reason)
