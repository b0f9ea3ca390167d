"""What is open in this process: closed at interpreter exit, and the parent's alone after a fork."""

from __future__ import annotations

import atexit
import itertools
import os
import time
from typing import Protocol
from weakref import WeakValueDictionary

from rankwise.contract.closing import CLOSE_TIMEOUT


class Closable(Protocol):
    def close(self, timeout: float = CLOSE_TIMEOUT) -> None: ...

    def forked(self) -> None:
        """This process is a child of the one that opened it."""


def register(opened: Closable) -> None:
    """Close this at interpreter exit, unless it is gone by then."""
    _open[next(_numbers)] = opened


_open: WeakValueDictionary[int, Closable] = WeakValueDictionary()
_numbers = itertools.count()


@atexit.register
def _close_all() -> None:
    """Close what is still open, the newest first, in CLOSE_TIMEOUT altogether."""
    end = time.monotonic() + CLOSE_TIMEOUT
    for _, opened in sorted(_open.items(), reverse=True):
        opened.close(max(0.0, end - time.monotonic()))


def _forked() -> None:
    for opened in list(_open.values()):
        opened.forked()
    _open.clear()


os.register_at_fork(after_in_child=_forked)
