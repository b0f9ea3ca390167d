"""The groups of one rank that come from one `init`."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from rankwise.contract.errors import RankwiseError
from rankwise.group.references import References
from rankwise.system.alive import Alive


class Abortable(Protocol):
    """What is needed of a group."""

    @property
    def closed(self) -> bool: ...
    def abort(self, reason: str) -> None: ...


class Related:
    """Groups of this rank that were made from each other, by split, shrink and the like, or are the first of them.

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
        """Wake whoever waits in one of these groups, or in one that is still made from them, if its backend can."""
        self._reason = reason  # first: a group that is added now either finds the reason, or is found
        for group in self._groups:
            _abort(group, reason)


def _abort(group: Abortable, reason: str) -> None:
    if not group.closed:
        with suppress(RankwiseError):
            group.abort(reason)
