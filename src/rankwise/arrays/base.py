"""What every kind of array becomes: a Buffer, which a communicator can work on, and the Kind that makes results."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankwise.contract.types import DType

Shape = tuple[int, ...]
Restore = Callable[[Any], Any]


@dataclass(frozen=True)
class Device:
    """Where memory lies that is not the host's. name: "cuda:0", say. stream: the CUDA stream, as an int, on which the
    program fills and reads it."""

    name: str
    stream: int


class Kind(ABC):
    """What new arrays are made as: NumPy's, torch's, ..."""

    max_dims = sys.maxsize
    """How many dimensions an array of this kind can have."""

    @abstractmethod
    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        """Memory for a result, not initialised; its `finish()` is the result as an array of this kind."""

    @abstractmethod
    def over(self, memory: Any, shape: Shape, dtype: DType) -> Any:
        """An array of this kind in the bytes of `memory`, a NumPy array of host memory, which it keeps alive."""

    @abstractmethod
    def scaled(self, array: Any, factor: float | complex) -> Any:
        """A new array, `array` times a factor that its type can hold, rounded to its type."""

    def staged(self, buffer: Buffer) -> Buffer:
        """Host memory in the place of a buffer of this kind, which is packed from that and put back there.

        Memory of the host is itself.
        """
        return buffer


class Buffer:
    """Memory that a communicator can work on: contiguous, in this machine's byte order, of a known type.

    ptr, count, dtype, shape  what a communicator needs to know
    array                     owns the memory: the caller's array itself, a view of it, or room for a packed copy
    kind                      makes results of the caller's kind
    device                    where the memory lies, or None for the host's

    given is what an operation that works in place returns, or None where the caller's object cannot
    hold a result; restore makes that return value of the array, or is None where it is `given`. view is
    the caller's memory where the array is room for a packed copy of it, else None. Such room is empty at
    first: the operation calls `pack` when it runs, before it reads, and `finish` when it has written.
    """

    __slots__ = ("_given", "_restore", "_view", "array", "count", "device", "dtype", "kind", "ptr", "shape")

    def __init__(
        self,
        ptr: int,
        count: int,
        dtype: DType,
        shape: Shape,
        array: Any,
        kind: Kind,
        given: Any,
        restore: Restore | None = None,
        view: Any = None,
        device: Device | None = None,
    ) -> None:
        self.ptr = ptr
        self.count = count
        self.dtype = dtype
        self.shape = shape
        self.array = array
        self.kind = kind
        self._given = given
        self._restore = restore
        self._view = view
        self.device = device

    @property
    def packed(self) -> bool:
        """Whether an operation works on a copy, to be packed before it and, if written, put back after it."""
        return self._view is not None

    def pack(self) -> None:
        """Copy what the caller's memory holds now into the room for it, where this is not that memory itself."""
        if self._view is not None:
            self.array[...] = self._view

    def finish(self) -> Any:
        """What an operation that wrote this memory gives back: what the caller passed, now holding the result.

        A packed copy is put back into the caller's array first; a number gives a new number, an
        immutable array a new array.
        """
        return self._given if self._restore is None else self._restore(self.array)

    @property
    def in_place(self) -> bool:
        """Whether the memory is the caller's own, not that of a copy."""
        return self._restore is None

    @property
    def place(self) -> str:
        """Where the memory lies, for messages."""
        return "the host" if self.device is None else self.device.name

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share a byte."""
        return (
            self.ptr < other.ptr + other.nbytes
            and other.ptr < self.ptr + self.nbytes
            and self.count > 0
            and other.count > 0
        )

    @property
    def given(self) -> Any:
        """What an operation that works in place returns, or None where the caller's object cannot hold a result."""
        return self._given

    def restored_by(self, restore: Restore) -> Buffer:
        """The same memory, of which `finish()` gives restore(array)."""
        self._restore = restore
        return self
