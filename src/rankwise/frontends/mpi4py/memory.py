"""Memory objects: MPI.buffer, and what MPI.Alloc_mem returns."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rankwise.arrays.numpy import address
from rankwise.frontends.mpi4py.buffers import bytes_of


class buffer(np.ndarray[Any, np.dtype[np.uint8]]):  # mpi4py's name
    """Bytes of memory, as a NumPy array with mpi4py's attributes."""

    obj: Any = None
    format = "B"

    def __new__(cls, buf: Any) -> buffer:
        data = bytes_of(buf, False).view(cls)
        data.obj = buf
        return data

    @classmethod
    def allocate(cls, nbytes: int, clear: bool = False) -> buffer:
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes}: expected 0 or more")
        return cls(np.zeros(nbytes, np.uint8))

    @classmethod
    def fromaddress(cls, address: int, nbytes: int, readonly: bool = False) -> buffer:
        data = cls((ctypes.c_ubyte * nbytes).from_address(address) if nbytes else b"")
        data.flags.writeable = data.flags.writeable and not readonly
        return data

    @classmethod
    def frombuffer(cls, buf: Any, readonly: bool = False) -> buffer:
        data = cls(buf)
        if readonly:
            data.flags.writeable = False
        return data

    @property
    def address(self) -> int:
        return address(self)

    @property
    def readonly(self) -> bool:
        return not self.flags.writeable

    def __setitem__(self, item: Any, value: Any) -> None:
        """As a memoryview: a slice takes the bytes of any buffer."""
        if isinstance(item, slice) and not isinstance(value, int):
            value = bytes_of(value, False)
        super().__setitem__(item, value)

    def cast(self, *args: Any) -> memoryview:
        return memoryview(self.view(np.ndarray)).cast(*args)  # type: ignore[arg-type]

    def toreadonly(self) -> buffer:
        return self.frombuffer(self, readonly=True)

    def release(self) -> None:
        """Nothing to do: Python frees the memory."""
