"""What is open in this process: closed at interpreter exit, and the parent's alone after a fork."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from rankwise.contract.closing import CLOSE_TIMEOUT, Turn, close_at_exit


class Closable(Protocol):
    def close(self, timeout: float = CLOSE_TIMEOUT) -> None: ...

    def ending(self) -> None:
        """The process ends: what is open will be closed next."""

    def forked(self) -> None:
        """This process is a child of the one that opened it."""


def register(opened: Closable) -> None:
    """Close this at interpreter exit, unless it is gone by then."""
    _open[next(_numbers)] = opened


_open: WeakValueDictionary[int, Closable] = WeakValueDictionary()
_numbers = itertools.count()


def _close_all(left: Callable[[], float]) -> None:
    """Close what is still open, the newest first. left: the seconds that there are."""
    for opened in list(_open.values()):
        opened.ending()
    for _, opened in sorted(_open.items(), reverse=True):
        opened.close(left())


def _forked() -> None:
    for opened in list(_open.values()):
        opened.forked()
    _open.clear()


close_at_exit(Turn.COMMUNICATORS, _close_all)
os.register_at_fork(after_in_child=_forked)
