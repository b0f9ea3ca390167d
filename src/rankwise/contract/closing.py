"""How things are closed: at the end of a `with` block, and at interpreter exit, within EXIT_TIMEOUT in total."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from enum import IntEnum

TYPE_CHECKING = False  # the launcher does not import typing
if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypeVar

    C = TypeVar("C", bound="Closeable")


class Closeable:
    """Something that the end of a `with` block closes."""

    close: Callable[[], None]

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClosingOrder(IntEnum):
    """The order of closing: streams first, since functions queued on them may use communicators.

    Works are checked before communicators close, because closing makes pending operations fail, and
    again afterwards, because pending operations may have run until then. Last come waits for the other ranks' ends.
    """

    STREAMS = 0
    WORKS = 1
    COMMUNICATORS = 2
    LAST_WORKS = 3
    ENGINES = 4


CLOSE_TIMEOUT = 1.0  # seconds that close() gives pending work by default
EXIT_TIMEOUT = 0.7  # seconds for closing everything, so that the whole exit takes less than one second

_closers: dict[ClosingOrder, Callable[[Callable[[], float]], None]] = {}


def close_at_exit(order: ClosingOrder, close: Callable[[Callable[[], float]], None]) -> None:
    """Call `close(left)` when the interpreter exits. `left()` returns the seconds that remain."""
    _closers[order] = close


@atexit.register
def _close_all() -> None:
    end = time.monotonic() + EXIT_TIMEOUT
    for _, close in sorted(_closers.items()):
        close(lambda: max(0.0, end - time.monotonic()))
