"""NumPy's arrays and scalars, and Python's numbers, as Buffers; and whatever NumPy can view as an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise._native import address as address
from rankwise._native import describe
from rankwise.arrays import dtypes
from rankwise.arrays.base import Buffer, Kind, Restore, Shape, check_own_memory
from rankwise.arrays.dtypes import DTYPES
from rankwise.contract.errors import shown
from rankwise.contract.types import DType


class NumpyKind(Kind):
    """Makes NumPy arrays."""

    max_dims = int(getattr(np, "MAXDIMS", 64))

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        array = np.empty(shape, dtypes.to_numpy(dtype))
        return plain(array, array, kind=self)

    def over(self, memory: np.ndarray[Any, Any], shape: Shape, dtype: DType) -> Any:
        return memory.view(dtypes.to_numpy(dtype)).reshape(shape)


NUMPY = NumpyKind()

_NUMBERS = (int, float, complex, np.generic)


def buffer_of(x: Any, name: str, write: bool) -> Buffer | None:
    """A Buffer for an array or a number; None for anything else."""
    if isinstance(x, np.ndarray):
        return of_view(x, x, name, write)
    return _of_number(x, name, write) if isinstance(x, _NUMBERS) else None


def of_view(given: Any, view: np.ndarray[Any, Any], name: str, write: bool, kind: Kind = NUMPY) -> Buffer:
    """A Buffer for `view`, a NumPy view of the caller's object, which will be packed if it is not plain memory."""
    if isinstance(view, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a plain array, got a masked one; pass its data and its mask separately")
    check_dtype(view, name)
    flags = view.flags
    if write and not flags.writeable:
        raise ValueError(f"{name}: expected a writable array, got a read-only one ({type(given).__name__})")
    if flags.c_contiguous and flags.aligned and view.dtype.isnative:
        return plain(view.view(np.ndarray), given, kind=kind)
    if write:
        check_own_memory(name, view.shape, view.strides, view.itemsize, "copy")

    def put_back(packed: np.ndarray[Any, Any]) -> Any:
        view[...] = packed
        return given

    return plain(room_for(view), given, put_back if write else None, kind, view)


def plain(
    array: np.ndarray[Any, Any],
    given: Any,
    restore: Restore | None = None,
    kind: Kind = NUMPY,
    view: np.ndarray[Any, Any] | None = None,
) -> Buffer:
    """A Buffer over plain memory: a contiguous, aligned array of native byte order and a checked dtype."""
    described = describe(array)
    assert described is not None
    return Buffer(described[0], described[1], DTYPES[described[2]], described[3], array, kind, given, restore, view)


def room_for(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An uninitialised contiguous array of native byte order for a packed copy of `view`."""
    return np.empty(view.shape, view.dtype.newbyteorder("="))


def _of_number(x: Any, name: str, write: bool) -> Buffer:
    if isinstance(x, np.generic):
        array = np.array(x)
        check_dtype(array, name)
        return plain(array, None, _scalar) if write else plain(array, x)
    code = "?" if isinstance(x, bool) else "i8" if isinstance(x, int) else "f8" if isinstance(x, float) else "c16"
    try:
        array = np.array(x, code)
    except OverflowError:
        raise ValueError(
            f"{name}={shown(x)}: expected an int from -2**63 to 2**63 - 1, because it is sent as an int64"
        ) from None
    return plain(array, None, np.ndarray.item) if write else plain(array, x)


def _scalar(array: np.ndarray[Any, Any]) -> Any:
    return array[()]


def check_dtype(array: np.ndarray[Any, Any], name: str) -> None:
    if array.dtype.names:
        field = f"{name}[{array.dtype.names[0]!r}]"
        raise TypeError(f"{name}: structured arrays are not supported; pass each field separately, such as {field}")
    if dtypes.from_numpy(array.dtype) is None:
        raise TypeError(f"{name}: arrays of dtype {array.dtype} are not supported; expected {dtypes.EXPECTED}")
