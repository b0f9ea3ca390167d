"""How communicators written in Python count their operations for `rankwise.trace.measure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise._native import counted
from rankwise.contract import measuring
from rankwise.contract.communicator import Communicator
from rankwise.contract.types import ITEMSIZE, DType
from rankwise.contract.work import Work


def message(
    comm: Communicator,
    operation: str,
    start: Callable[..., Work[None]],
    ptr: int,
    count: int,
    dtype: DType,
    *to: object,
) -> Work[None]:
    """Call start(ptr, count, dtype, *to), which starts a message of `comm`, and count it. Returns the Work that it
    returned, or one that also counts how long the program waits for it.
    """
    if not (measuring.measurements and comm.counted):
        return start(ptr, count, dtype, *to)
    return CountedMessage(operation, counted(operation, 1, count * ITEMSIZE[dtype], start, ptr, count, dtype, *to))


def moved(operation: str, nbytes: int) -> None:
    """Add the bytes of an operation that has been counted without them."""
    if measuring.measurements:
        counted(operation, 0, nbytes, _nothing)


def _nothing() -> None: ...


def waits(function: Callable[..., None], *args: Any) -> None:
    """Call function(*args), which waits for operations that have been started, and count it as the operation `sync`."""
    if measuring.measurements:
        counted("sync", 1, 0, function, *args)
    else:
        function(*args)


class CountedMessage(Work[None]):
    """A message in progress, which counts how long the program waits for it."""

    def __init__(self, operation: str, inner: Work[None]) -> None:
        self._operation, self._inner = operation, inner

    def wait(self, timeout: float | None = None) -> None:
        counted(self._operation, 0, 0, self._inner.wait, timeout)

    def done(self) -> bool:
        return self._inner.done()

    def cancel(self) -> bool:
        return self._inner.cancel()

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "tag"):  # of a receive
            return getattr(self._inner, name)
        raise AttributeError(name)
