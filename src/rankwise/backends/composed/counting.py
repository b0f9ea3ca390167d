"""How communicators written in Python count their operations for `rankwise.trace.measure`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankwise._native import counted
from rankwise.contract import measuring
from rankwise.contract.types import ITEMSIZE, DType
from rankwise.contract.work import OuterWork, Work


def message(
    operation: str, start: Callable[..., Work[None]], ptr: int, count: int, dtype: DType, *to: object
) -> Work[None]:
    """Count start(ptr, count, dtype, *to), which starts a message. The Work also counts how long the program waits."""
    work = counted(operation, 1, count * ITEMSIZE[dtype], start, ptr, count, dtype, *to)
    return OuterWork(partial(counted, operation, 0, 0, work.wait), work)


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
