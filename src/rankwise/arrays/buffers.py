"""From whatever the caller holds to checked memory: any array, buffer or number becomes a Buffer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from rankwise._native import describe
from rankwise.arrays import dtypes
from rankwise.arrays.dtypes import DTYPES
from rankwise.contract.errors import UnsupportedError, shown
from rankwise.contract.types import DType

Shape = tuple[int, ...]
Restore = Callable[[Any], Any]


class Kind:
    """What new arrays are made as. This one makes NumPy arrays; other kinds of array have their own."""

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        """Memory for a result, not initialised; its `finish()` is the result as an array of this kind."""
        return target(np.empty(shape, dtypes.to_numpy(dtype)))

    def over(self, memory: np.ndarray[Any, Any], shape: Shape, dtype: DType) -> Any:
        """An array of this kind in the bytes of `memory`, which it keeps alive."""
        return memory.view(dtypes.to_numpy(dtype)).reshape(shape)

    def scaled(self, array: Any, factor: float | complex) -> Any:
        """A new array, `array` times a factor that its type can hold, rounded to its type."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.multiply(array, array.dtype.type(factor), out=np.empty_like(array))


class _NamespaceKind(Kind):
    """Results for immutable arrays: made in NumPy, handed back through the array's own library."""

    def __init__(self, x: Any) -> None:
        self.give: Restore = x.__array_namespace__().asarray

    def empty(self, shape: Shape, dtype: DType) -> Buffer:
        buffer = super().empty(shape, dtype)
        buffer._restore = self.give
        return buffer


class Buffer:
    """Memory that a communicator can work on: contiguous, in this machine's byte order, of a known type.

    ptr, count, dtype, shape  what a communicator needs to know
    array                     owns the memory: the caller's array itself, a view of it, or room for a packed copy
    kind                      makes results of the caller's kind

    given is what an operation that works in place returns, or None where the caller's object cannot
    hold a result; restore makes that return value of the array, or is None where it is `given`. view is
    the caller's memory where the array is room for a packed copy of it, else None. Such room is empty at
    first: the operation calls `pack` when it runs, before it reads, and `finish` when it has written.
    """

    __slots__ = ("_given", "_restore", "_view", "array", "count", "dtype", "kind", "ptr", "shape")

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


def source(x: Any, name: str = "x") -> Buffer:
    """`x` to be read, after `pack()`. `finish()` gives x itself.

    TypeError where `x` is no array, buffer or number, or of a type that does not travel;
    UnsupportedError where it is in device memory.
    """
    found = describe(x)
    if found is not None and found[4]:
        return Buffer(found[0], found[1], DTYPES[found[2]], found[3], x, NUMPY, x)
    return _convert(x, name, write=False)


def target(x: Any, name: str = "x") -> Buffer:
    """`x` to be read, after `pack()`, and written in place; `finish()` gives what the operation returns.

    Raises as `source` does, and ValueError where `x` is read-only.
    """
    found = describe(x)
    if found is not None and found[4] and found[5]:
        return Buffer(found[0], found[1], DTYPES[found[2]], found[3], x, NUMPY, x)
    return _convert(x, name, write=True)


def result(out: Any, shape: Shape, like: Buffer) -> Buffer:
    """Memory for an operation's result: `out` where it is given, else a new array of the kind and type of `like`.

    ValueError or TypeError where `out` is not a writable array of that shape and type, or
    overlaps `like`.
    """
    if out is None:
        return like.kind.empty(shape, like.dtype)
    return check_result(out, shape, like)


def check_result(out: Any, shape: Shape, like: Buffer) -> Buffer:
    """`out` as memory for a result of `shape`, of the type of `like`, which is read meanwhile."""
    buffer = writable(out)
    if buffer.dtype is not like.dtype:
        raise ValueError(f"out: expected dtype {dtypes.name(like.dtype)}, got {dtypes.name(buffer.dtype)}")
    if buffer.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {buffer.shape}")
    if buffer.overlaps(like):
        raise ValueError("out: expected memory of its own, but it overlaps x")
    return buffer


def check_rows(out: Any, like: Buffer) -> None:
    """Check what can be known of `out` before the length of the result's axis 0 is."""
    buffer = writable(out)
    check_result(out, (*buffer.shape[:1], *like.shape[1:]), like)


def writable(out: Any) -> Buffer:
    """`out` as memory to write to, whatever its shape and type."""
    buffer = target(out, "out")
    if buffer._given is not out:
        raise TypeError(f"out: expected a writable array, got an immutable {type(out).__name__}")
    return buffer


def receiver(x: Any, dtype: Any) -> Buffer:
    """Memory for a message: the array `x`, or a new one where `x` is a shape; `dtype` None means float64 then."""
    if not isinstance(x, (tuple, list, int, np.integer)):
        buffer = target(x)
        if dtype is not None and dtype_argument(dtype)[0] is not buffer.dtype:
            raise ValueError(f"dtype={dtype!r}: expected that of x, {dtypes.name(buffer.dtype)}, or None")
        return buffer
    wanted, kind = (DType.F64, NUMPY) if dtype is None else dtype_argument(dtype)
    shape = shape_argument(x, "x", wanted, "an array, or ")
    return kind.empty(shape, wanted)


def shape_argument(x: Any, name: str, dtype: DType, or_else: str = "") -> Shape:
    """A shape that was given as an int or a sequence of ints; ValueError where it is none, or no memory can hold it."""
    shape = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    for length in shape:
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
            raise ValueError(f"{name}={x!r}: expected {or_else}a shape of ints >= 0")
    if prod(max(1, int(length)) for length in shape) * dtype.itemsize >= 2**63:
        raise ValueError(
            f"{name}={shown(x)}: expected {or_else}a shape of fewer than 2**63 bytes in {dtypes.name(dtype)}"
        )
    return tuple(map(int, shape))


def dtype_argument(dtype: Any) -> tuple[DType, Kind]:
    """The type, and the kind of array that this way to write it asks for."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        from rankwise.arrays import torch as torch_arrays

        return torch_arrays.dtype_of(dtype), torch_arrays.TORCH
    return dtypes.parse(dtype), NUMPY


def scratch(shape: Shape, dtype: DType) -> Buffer:
    """Memory of the right size whose content nobody will look at."""
    count = prod(shape)
    memory = _wrap(np.empty(count * dtype.itemsize, np.uint8), None)
    return Buffer(memory.ptr, count, dtype, shape, memory.array, NUMPY, None)


NUMPY = Kind()


def _convert(x: Any, name: str, write: bool) -> Buffer:
    """source and target for everything but contiguous NumPy arrays."""
    if isinstance(x, np.ndarray):
        return _from_view(x, x, name, write)
    if isinstance(x, (int, float, complex, np.generic)):
        return _from_number(x, name, write)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from rankwise.arrays import torch as torch_arrays

        return torch_arrays.convert(x, name, write)
    if hasattr(x, "__cuda_array_interface__"):
        raise device_memory(name, type(x).__name__)
    if hasattr(x, "__array_interface__"):
        return _from_view(x, np.asarray(x), name, write)
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, name, write)
    try:
        view = memoryview(x)
    except TypeError:
        raise TypeError(f"{name}: expected an array, a buffer or a number, got {type(x).__name__}") from None
    try:
        array = np.asarray(view)
    except ValueError as error:
        raise TypeError(f"{name}: expected a buffer of numbers, got format {view.format!r}") from error
    return _from_view(x, array, name, write)


def _from_view(given: Any, view: np.ndarray[Any, Any], name: str, write: bool, kind: Kind | None = None) -> Buffer:
    """`view` is a NumPy view of what the caller gave. It is to be packed where it is not plain memory."""
    if isinstance(view, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a plain array, got a masked one; pass its data and its mask apart")
    _check_dtype(view, name)
    flags = view.flags
    if write and not flags.writeable:
        raise ValueError(f"{name}: expected a writable array, got a read-only one ({type(given).__name__})")
    if flags.c_contiguous and flags.aligned and view.dtype.isnative:
        return _wrap(view.view(np.ndarray), given, kind=kind)

    def put_back(packed: np.ndarray[Any, Any]) -> Any:
        view[...] = packed
        return given

    return _wrap(_room(view), given, put_back if write else None, kind, view)


def _from_number(x: Any, name: str, write: bool) -> Buffer:
    if isinstance(x, np.generic):
        array = np.array(x)
        _check_dtype(array, name)
        return _wrap(array, None, _scalar) if write else _wrap(array, x)
    code = "?" if isinstance(x, bool) else "i8" if isinstance(x, int) else "f8" if isinstance(x, float) else "c16"
    try:
        array = np.array(x, code)
    except OverflowError:
        raise ValueError(
            f"{name}={shown(x)}: expected an int from -2**63 to 2**63 - 1, as it travels as an int64"
        ) from None
    return _wrap(array, None, np.ndarray.item) if write else _wrap(array, x)


def _from_dlpack(x: Any, name: str, write: bool) -> Buffer:
    """Writable memory is used in place; a read-only producer (JAX) gives new arrays of its own library."""
    if x.__dlpack_device__()[0] != _DLPACK_CPU:
        raise device_memory(name, type(x).__name__)
    try:
        view = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        # DLPack in NumPy knows no bfloat16; such libraries then offer a read-only copy or view.
        if not hasattr(x, "__array__"):
            raise TypeError(f"{name}: NumPy cannot read this {type(x).__name__} by DLPack: {error}") from error
        view = np.asarray(x).view()
        view.flags.writeable = False
    if view.flags.writeable:
        return _from_view(x, view, name, write)
    kind = _NamespaceKind(x) if hasattr(x, "__array_namespace__") else None
    if not write:
        return _from_view(x, view, name, write, kind)
    _check_dtype(view, name)
    return _wrap(_room(view), None, kind.give if kind else _same, kind, view)


def _wrap(
    array: np.ndarray[Any, Any],
    given: Any,
    restore: Restore | None = None,
    kind: Kind | None = None,
    view: np.ndarray[Any, Any] | None = None,
) -> Buffer:
    """A Buffer over plain memory: a contiguous, aligned array of native byte order and a checked dtype."""
    found = describe(array)
    assert found is not None
    return Buffer(found[0], found[1], DTYPES[found[2]], found[3], array, kind or NUMPY, given, restore, view)


def _room(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous array of its own for what `view` holds, in native byte order."""
    return np.empty(view.shape, view.dtype.newbyteorder("="))


def _scalar(array: np.ndarray[Any, Any]) -> Any:
    return array[()]


def _same(array: Any) -> Any:
    return array


def _check_dtype(array: np.ndarray[Any, Any], name: str) -> None:
    if array.dtype.names:
        field = f"{name}[{array.dtype.names[0]!r}]"
        raise TypeError(f"{name}: structured arrays do not travel; pass each field, such as {field}, by itself")
    if dtypes.from_numpy(array.dtype) is None:
        raise TypeError(f"{name}: arrays of dtype {array.dtype} do not travel; expected {dtypes.EXPECTED}")


def device_memory(name: str, kind: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} in device memory ({kind})", "host-memory", "it works on host memory", "copy it to the host first"
    )


_DLPACK_CPU = 1
