"""The host memory of an object that only speaks DLPack, read in place."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

_HOST = (1, 3, 13)  # kDLCPU, and pinned and managed memory of CUDA
_CODES = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def array_of(obj: Any) -> Any:
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
    code = _CODES.get(tensor.code)
    bits = tensor.bits * tensor.lanes
    if tensor.lanes != 1:
        code = "c" if (tensor.code, tensor.lanes) == (2, 2) else None
    dtype = np.dtype(f"{code or 'V'}{bits // 8}")
    if not (size := prod(shape)):
        return np.empty(0, dtype)
    memory: Any = (ctypes.c_ubyte * (size * dtype.itemsize)).from_address(tensor.data + tensor.byte_offset)
    memory.owner = (obj, capsule)
    return np.frombuffer(memory, dtype)
