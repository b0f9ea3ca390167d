"""The end of the interpreter: everything that is still open is closed, in EXIT_TIMEOUT altogether."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from enum import IntEnum


class Turn(IntEnum):
    """Who is closed when: streams first, since what is queued on them may use communicators.

    Works before communicators, since what fails by closing those is not the operation's own failure, and
    after them, since what was under way may have run.
    """

    STREAMS = 0
    WORKS = 1
    COMMUNICATORS = 2
    LAST_WORKS = 3


CLOSE_TIMEOUT = 1.0  # seconds that close() gives to pending work unless told otherwise
EXIT_TIMEOUT = 0.7  # seconds for all of it at the interpreter's end, which with the rest then takes less than one

_closers: dict[Turn, Callable[[Callable[[], float]], None]] = {}


def close_at_exit(turn: Turn, close: Callable[[Callable[[], float]], None]) -> None:
    """Call `close(left)` when the interpreter ends. `left()` is the seconds that may still be spent."""
    _closers[turn] = close


@atexit.register
def _close_all() -> None:
    end = time.monotonic() + EXIT_TIMEOUT
    for _, close in sorted(_closers.items()):
        close(lambda: max(0.0, end - time.monotonic()))
