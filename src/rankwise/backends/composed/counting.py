"""How communicators written in Python count their operations for `rankwise.trace.measure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise._native import counted
from rankwise.backends.composed.outer_work import OuterWork
from rankwise.contract import measuring
from rankwise.contract.types import ITEMSIZE, DType
from rankwise.contract.work import Work


def message(
    operation: str, start: Callable[..., Work[None]], ptr: int, count: int, dtype: DType, *to: object
) -> CountedMessage:
    """Count start(ptr, count, dtype, *to), which starts a message. The Work also counts how long the program waits."""
    return CountedMessage(operation, counted(operation, 1, count * ITEMSIZE[dtype], start, ptr, count, dtype, *to))


def moved(operation: str, nbytes: int) -> None:
    """Add the bytes of an operation that has been counted without them."""
    if measuring.measurements:
        counted(operation, 0, nbytes, lambda: None)


def waits(function: Callable[..., None], *args: Any) -> None:
    """Call function(*args), which waits for operations that have been started, and count it as the operation `sync`."""
    if measuring.measurements:
        counted("sync", 1, 0, function, *args)
    else:
        function(*args)


class CountedMessage(OuterWork):
    """A message in progress, which counts how long the program waits for it."""

    def __init__(self, operation: str, inner: Work[None]) -> None:
        super().__init__(inner)
        self._operation = operation

    def wait(self, timeout: float | None = None) -> None:
        counted(self._operation, 0, 0, self.inner.wait, timeout)
