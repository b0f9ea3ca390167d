"""Buffer, which every kind of array is converted to for a communicator, and Kind, which makes results."""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.contract.types import DType

Shape = tuple[int, ...]
Restore = Callable[[Any], Any]


@dataclass(frozen=True)
class Device:
    """The device of memory that is not the host's. name: such as "cuda:0". stream: the CUDA stream, as an int, on
    which the program fills and reads it."""

    name: str
    stream: int


class Kind(ABC):
    """The library whose arrays results become: NumPy, torch, ..."""

    max_dims = sys.maxsize
    """How many dimensions an array of this kind can have."""

    @abstractmethod
    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        """Uninitialised memory for a result; its `finish()` returns the result as an array of this kind."""

    @abstractmethod
    def over(self, memory: Any, shape: Shape, dtype: DType) -> Any:
        """An array of this kind over `memory`, a NumPy array in host memory, which it keeps alive."""

    def staged(self, buffer: Buffer) -> Buffer:
        """Host memory in place of a buffer of this kind: packed from the buffer, and copied back to it.

        A buffer in host memory is returned as it is.
        """
        return buffer


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that a communicator can work on: contiguous, in this machine's byte order, of a supported dtype.

    ptr, count, dtype, shape  what a communicator needs to know
    array                     owns the memory: the caller's array itself, a view of it, or room for a packed copy
    kind                      makes results of the caller's kind
    device                    the memory's device, or None for the host

    given: what an in-place operation returns, or None if the caller's object cannot hold a result.
    restore: makes that return value from the array, or None if it is `given`. view: the caller's memory
    if the array is room for a packed copy of it, else None. Such room is empty at first: the operation
    calls `pack` when it runs, before it reads, and `finish` when it has written. origin: what an operation that works
    in place on an `out` first copies there: another buffer of the same shape and dtype, or None.
    """

    ptr: int
    count: int
    dtype: DType
    shape: Shape
    array: Any
    kind: Kind
    given: Any
    restore: Restore | None = None
    view: Any = None
    device: Device | None = None
    origin: Buffer | None = None

    @property
    def packed(self) -> bool:
        """Whether an operation works on a copy, which is packed before it and, if written, copied back after it."""
        return self.view is not None or self.origin is not None

    def pack(self) -> None:
        """Copy the caller's memory, as it is now, into the packed copy, if there is one."""
        if self.origin is not None:
            self.origin.pack()
            if self.device is None:
                ctypes.memmove(self.ptr, self.origin.ptr, self.nbytes)
            else:
                self.array[...] = self.origin.array
        elif self.view is not None:
            self.array[...] = self.view

    def finish(self) -> Any:
        """The return value of an operation that wrote this memory: what the caller passed, now holding the result.

        A packed copy is first copied back into the caller's array. For a number it is a new number, for
        an immutable array a new array.
        """
        return self.given if self.restore is None else self.restore(self.array)

    @property
    def in_place(self) -> bool:
        """Whether the memory is the caller's own, not a copy's."""
        return self.restore is None

    @property
    def place(self) -> str:
        """Where the memory is, for messages."""
        return "the host" if self.device is None else self.device.name

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share any bytes."""
        return (
            self.ptr < other.ptr + other.nbytes
            and other.ptr < self.ptr + self.nbytes
            and self.count > 0
            and other.count > 0
        )


def bytes_of(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of a buffer in the host, without a copy; the array keeps the buffer alive."""
    if not buffer.nbytes:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.ptr)
    memory._owner = buffer  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(memory)


def check_own_memory(name: str, shape: Shape, strides: Sequence[int], size: int, copied: str) -> None:
    """Raise ValueError if elements of the argument `name`, an array to write to, share memory with each other.

    size: of an element, in the unit of the strides. copied: the method that makes an array without such elements.
    """
    if 0 not in shape and _elements_meet(shape, strides, size):
        raise ValueError(
            f"{name}: expected elements with memory of their own, as the operation writes them, but some elements of "
            f"this array of shape {shape} and strides {tuple(strides)} share memory; pass a copy, as {name}.{copied}() "
            "makes it"
        )


def _elements_meet(shape: Shape, strides: Sequence[int], size: int) -> bool:
    axes = sorted((abs(stride), length) for stride, length in zip(strides, shape, strict=True) if length != 1)
    span = size
    for stride, length in axes:
        if stride < span:
            break
        span += (length - 1) * stride
    else:
        return False  # each axis steps over all that those with smaller strides span
    if not axes[0][0]:
        return True
    places = np.zeros(1, np.int64)  # of all elements: few arrays get here
    for stride, length in axes:
        places = np.add.outer(places, stride * np.arange(length)).ravel()
    return bool((np.diff(np.sort(places)) < size).any())
