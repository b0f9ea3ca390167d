"""Arrays of other libraries as Buffers, by the protocol with which they offer their memory.

In this order: `__cuda_array_interface__`, `__array_interface__`, DLPack, the buffer protocol. NumPy views host memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.arrays.base import Buffer, Restore, Shape
from rankwise.arrays.dtypes import to_numpy
from rankwise.arrays.numpy import NUMPY, NumpyKind, check_dtype, of_view, plain, room_for
from rankwise.contract.types import DType

_DLPACK_CPU = 1


class _NamespaceKind(NumpyKind):
    """Results for immutable arrays: computed in NumPy, and converted by the array's own library."""

    def __init__(self, x: Any) -> None:
        self.give: Restore = x.__array_namespace__().asarray

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        array = np.empty(shape, to_numpy(dtype))
        return plain(array, array, self.give, self)


def buffer_of(x: Any, name: str, write: bool) -> Buffer | None:
    """A Buffer for an array or buffer of another library; None for anything else."""
    if hasattr(x, "__cuda_array_interface__"):
        from rankwise.arrays import cuda  # few programs have such arrays

        return cuda.buffer_of(x, name, write)
    if hasattr(x, "__array_interface__"):
        return of_view(x, np.asarray(x), name, write)
    if hasattr(x, "__dlpack__"):
        return _by_dlpack(x, name, write)
    try:
        view = memoryview(x)
    except TypeError:
        return None
    try:
        array = np.asarray(view)
    except ValueError as error:
        raise TypeError(f"{name}: expected a buffer of numbers, got format {view.format!r}") from error
    return of_view(x, array, name, write)


def _by_dlpack(x: Any, name: str, write: bool) -> Buffer:
    """Writable memory is used in place; for read-only arrays (JAX) the results are new arrays of their library."""
    if x.__dlpack_device__()[0] != _DLPACK_CPU:
        raise TypeError(
            f"{name}: expected memory of the host, or an array with __cuda_array_interface__, got {type(x).__name__}"
        )
    try:
        view = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        # NumPy's DLPack does not support bfloat16; the library then provides a read-only copy or view.
        if not hasattr(x, "__array__"):
            raise TypeError(f"{name}: NumPy cannot read this {type(x).__name__} by DLPack: {error}") from error
        view = np.asarray(x).view()
        view.flags.writeable = False
    if view.flags.writeable:
        return of_view(x, view, name, write)
    kind = _NamespaceKind(x) if hasattr(x, "__array_namespace__") else NUMPY
    if not write:
        return of_view(x, view, name, write, kind)
    check_dtype(view, name)
    return plain(room_for(view), None, getattr(kind, "give", np.asarray), kind, view)
