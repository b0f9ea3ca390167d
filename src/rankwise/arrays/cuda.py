"""Arrays in CUDA memory as Buffers: arrays with `__cuda_array_interface__`, such as CuPy's, Numba's and JAX's."""

from __future__ import annotations

import operator
import sys
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.arrays.base import Buffer, Device, Kind, Shape
from rankwise.arrays.numpy import NUMPY, address
from rankwise.contract.types import DType

LEGACY_STREAM = 1  # cudaStreamLegacy, the stream of programs that name none


class CudaKind(Kind):
    """Makes arrays of the same library as a given array, on the library's current device."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        make = getattr(_library(self._x), "empty", None)
        if make is None:
            raise TypeError(f"out: expected an array for the result, but no {type(self._x).__name__} can be made here")
        return buffer_of(make(shape, dtype=dtypes.to_numpy(dtype)), "out", write=True)

    def over(self, memory: Any, shape: Shape, dtype: DType) -> Any:
        raise TypeError(f"{type(self._x).__name__}: expected a kind of array in host memory")

    def staged(self, buffer: Buffer) -> Buffer:
        room, on_device = np.empty(buffer.shape, dtypes.to_numpy(buffer.dtype)), buffer.array

        def put_back(room: Any) -> Any:
            if hasattr(on_device, "set"):
                on_device.set(room)  # CuPy's
            elif hasattr(on_device, "copy_to_device"):
                on_device.copy_to_device(room)  # Numba's
            else:
                on_device[...] = room
            return buffer.finish()

        ptr = address(room)
        return Buffer(
            ptr, buffer.count, buffer.dtype, buffer.shape, room, NUMPY, buffer.given, put_back, _Fetched(on_device)
        )


class _Fetched:
    """A device array that NumPy reads by copying it to the host."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        for method in ("get", "copy_to_host"):  # CuPy's, Numba's
            if hasattr(self._array, method):
                return getattr(self._array, method)()
        return np.array(self._array, dtype)


def buffer_of(x: Any, name: str, write: bool) -> Buffer:
    """A Buffer for an array with `__cuda_array_interface__`, without a copy.

    Raises TypeError if its dtype is not supported, if it is masked, or if it is not contiguous; ValueError if it must
    be written but is read-only.
    """
    interface = x.__cuda_array_interface__
    kind, shape = type(x).__name__, tuple(interface["shape"])
    dtype = _dtype(x, interface["typestr"])
    if dtype is None:
        raise TypeError(
            f"{name}: arrays of type {interface['typestr']} in device memory are not supported; got a {kind}"
        )
    if interface.get("mask") is not None:
        raise TypeError(f"{name}: expected a plain array, got a masked one; pass its data and its mask separately")
    strides = interface.get("strides")
    if strides is not None and prod(shape) and tuple(strides) != _contiguous(shape, dtype.itemsize):
        raise TypeError(
            f"{name}: expected contiguous device memory, got a {kind} with strides {tuple(strides)}; pass a copy"
        )
    ptr, read_only = interface["data"]
    if write and read_only:
        raise ValueError(f"{name}: expected a writable array, got a read-only one ({kind})")
    device = Device("CUDA memory", interface.get("stream") or LEGACY_STREAM)
    return Buffer(ptr, prod(shape), dtype, shape, x, CudaKind(x), x, device=device)


def _dtype(x: Any, typestr: str) -> DType | None:
    """The DType. The interface has no code for bfloat16 and 8-bit floats, but the array's own dtype may name them."""
    try:
        named = dtypes.from_numpy(np.dtype(getattr(x, "dtype", typestr)))
    except TypeError:
        named = None
    native = typestr[0] in "|=" or (typestr[0] == "<") == (sys.byteorder == "little")
    return named if native else None


def _library(x: Any) -> Any:
    """The array library to which `x` belongs."""
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__()
    return sys.modules.get(type(x).__module__.partition(".")[0])


def _contiguous(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """The strides of contiguous memory."""
    *strides, _whole = accumulate(reversed(shape), operator.mul, initial=itemsize)
    return tuple(reversed(strides))
