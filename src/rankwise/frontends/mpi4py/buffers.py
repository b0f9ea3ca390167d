"""The memory of any buffer of the host, as a NumPy array."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from rankwise.arrays.numpy import address

ndarray = np.ndarray
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def bytes_of(buf: Any, writes: bool) -> Bytes:
    """The memory of a buffer. Raises TypeError or BufferError for what has none, or must not be written to."""
    return parsed(buf, writes)[0]


def parsed(buf: Any, writes: bool) -> tuple[Bytes, str]:
    """The memory of a buffer, and the code of its elements, as the buffer protocol or NumPy has it."""
    x, code = (buf, "") if isinstance(buf, ndarray) else _viewed(buf)
    if writes and not x.flags.writeable:
        raise BufferError("message: the receive buffer is read-only")
    if not x.flags.c_contiguous:
        if not x.flags.f_contiguous:
            raise BufferError("message: expecting contiguous buffer")
        x = x.T
    code = code or (x.dtype.char if x.dtype.isnative else x.dtype.str)
    if x.dtype.hasobject:
        raise KeyError(f"cannot map {code!r} to an MPI datatype: Python objects; the methods in lower case take them")
    return x.reshape(-1).view(np.uint8), code


def _viewed(buf: Any) -> tuple[Any, str]:
    """A NumPy array over the memory of any buffer of the host, and its elements' code if that is not the array's."""
    if hasattr(buf, "__cuda_array_interface__"):
        raise BufferError("message: a buffer on a GPU; rankwise's mpi4py takes host memory, so copy it there first")
    if hasattr(buf, "__array_interface__") and not isinstance(buf, np.generic):  # whose array would be a copy
        return np.asarray(buf), ""
    try:
        view = memoryview(buf)
    except TypeError:
        if hasattr(buf, "__dlpack__"):
            return _array_of(buf), ""
        raise TypeError("message: expecting buffer or list/tuple") from None
    if not view.contiguous:
        raise BufferError("message: expecting contiguous buffer")
    code = view.format[1:] if view.format[:1] in "@<" else view.format
    if view.nbytes:
        return np.frombuffer(view.cast("B") if view.c_contiguous else view.tobytes("A"), np.uint8), code
    empty = np.zeros(0, np.uint8)
    empty.flags.writeable = not view.readonly
    return empty, code


# ---- the host memory of an object that only speaks DLPack, read in place ----

_HOST = (1, 3, 13)  # kDLCPU, and pinned and managed memory of CUDA
_CODES = {(0, 1): "i", (1, 1): "u", (2, 1): "f", (2, 2): "c", (5, 1): "c", (6, 1): "b"}  # by code and lanes


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _array_of(obj: Any) -> Any:
    """A NumPy array over the memory of `obj`, which it keeps alive. Raises BufferError for what is not plain there."""
    capsule = obj.__dlpack__()
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tensor.shape[: tensor.ndim]
    if tensor.device not in _HOST:
        raise BufferError("message: a buffer on a device; rankwise's mpi4py takes host memory, so copy it there first")
    if tensor.strides and prod(shape):
        row_major = [prod(shape[axis + 1 :]) for axis in range(tensor.ndim)]
        if any(n > 1 and stride != at for n, stride, at in zip(shape, tensor.strides[: tensor.ndim], row_major)):  # noqa: B905
            raise BufferError("message: expecting contiguous buffer")
    code = _CODES.get((tensor.code, tensor.lanes), "V")
    dtype = np.dtype(f"{code}{tensor.bits * tensor.lanes // 8}")
    if not (size := prod(shape)):
        return np.empty(0, dtype)
    memory: Any = (ctypes.c_ubyte * (size * dtype.itemsize)).from_address(tensor.data + tensor.byte_offset)
    memory.owner = (obj, capsule)
    return np.frombuffer(memory, dtype)


# ---- memory objects: MPI.buffer, and what MPI.Alloc_mem returns ----


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
        return cls.frombuffer((ctypes.c_ubyte * nbytes).from_address(address) if nbytes else b"", readonly)

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
