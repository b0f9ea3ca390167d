"""Turns any array, buffer or number that a caller passes into a Buffer, which is checked memory."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from rankwise._native import describe
from rankwise.arrays import dtypes, numpy, protocols, torch
from rankwise.arrays.base import Buffer, Kind, Shape
from rankwise.arrays.dtypes import DTYPES
from rankwise.arrays.numpy import NUMPY
from rankwise.contract.errors import shown
from rankwise.contract.types import DTYPE_NAMES, DType

_KINDS = (numpy.buffer_of, torch.buffer_of, protocols.buffer_of)
"""Each makes the Buffer of the objects that it knows, and returns None for others. They are asked in this order."""


def source(x: Any, name: str = "x") -> Buffer:
    """A Buffer for reading `x`, after `pack()`. `finish()` returns x itself.

    Raises TypeError unless `x` is an array, a buffer or a number of a supported dtype. Its memory may be on a device;
    the caller checks whether the communicator can access it.
    """
    described = describe(x)
    if described is not None and described[4]:
        return Buffer(described[0], described[1], DTYPES[described[2]], described[3], x, NUMPY, x)
    return _made(x, name, write=False)


def target(x: Any, name: str = "x") -> Buffer:
    """A Buffer for reading `x`, after `pack()`, and writing it in place; `finish()` returns the operation's result.

    Raises the errors of `source`, and ValueError if `x` is read-only.
    """
    described = describe(x)
    if described is not None and described[4] and described[5]:
        return Buffer(described[0], described[1], DTYPES[described[2]], described[3], x, NUMPY, x)
    return _made(x, name, write=True)


def result(out: Any, shape: Shape, like: Buffer) -> Buffer:
    """Memory for an operation's result: `out` if it is given, else a new array of the kind and dtype of `like`.

    Raises ValueError or TypeError if `out` is not a writable array of that shape and dtype, or overlaps `like`.
    """
    if out is None:
        return like.kind.empty(shape, like.dtype)
    return check_result(out, shape, like)


def check_result(out: Any, shape: Shape, like: Buffer) -> Buffer:
    """Check `out` as memory for a result of `shape` with the dtype of `like`, which the operation reads."""
    buffer = writable(out)
    if buffer.dtype is not like.dtype:
        raise ValueError(f"out: expected dtype {DTYPE_NAMES[like.dtype]}, got {DTYPE_NAMES[buffer.dtype]}")
    if buffer.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {buffer.shape}")
    if like.array is not None and (buffer.device is None) != (like.device is None):
        raise ValueError(f"out: expected memory of {like.place}, as x has, got memory of {buffer.place}")
    if buffer.overlaps(like):
        raise ValueError("out: expected memory of its own, but it overlaps x")
    return buffer


def in_place(x: Any, out: Any, name: str = "x") -> Buffer:
    """The Buffer of an operation that works in place: on `x`, or if it is given on `out`, after x was copied there."""
    if out is None or out is x:
        return target(x, name)
    given = source(x, name)
    buffer = check_result(out, given.shape, given)
    buffer.origin = given
    return buffer


def gathered_shape(ranks: int, like: Buffer) -> Shape:
    """(ranks, *like.shape). ValueError where `like`, an argument x, has as many dimensions as an array can have."""
    dims = len(like.shape)
    if dims >= like.kind.max_dims:
        raise ValueError(
            f"x: expected an array of at most {like.kind.max_dims - 1} dimensions, as the result has one more, "
            f"got {dims}"
        )
    return (ranks, *like.shape)


def check_rows(out: Any, like: Buffer) -> Buffer:
    """`out` as memory for a result, checked as far as possible before the length of the result's axis 0 is known."""
    buffer = writable(out)
    return check_result(buffer, (*buffer.shape[:1], *like.shape[1:]), like)


def writable(out: Any) -> Buffer:
    """`out` as memory to write to, of any shape and dtype; it may already be a Buffer that this has returned."""
    if isinstance(out, Buffer):
        return out
    buffer = target(out, "out")
    if buffer.given is not out:
        raise TypeError(f"out: expected a writable array, got an immutable {type(out).__name__}")
    return buffer


def receiver(x: Any, dtype: Any) -> Buffer:
    """Memory for a message: the array `x`, or a new array if `x` is a shape; then `dtype` None means float64."""
    if not isinstance(x, (tuple, list, int, np.integer)):
        buffer = target(x)
        if dtype is not None and dtype_argument(dtype)[0] is not buffer.dtype:
            raise ValueError(f"dtype={dtype!r}: expected x's dtype, {DTYPE_NAMES[buffer.dtype]}, or None")
        return buffer
    wanted, kind = (DType.F64, NUMPY) if dtype is None else dtype_argument(dtype)
    shape = shape_argument(x, "x", wanted, "an array, or ")
    return kind.empty(shape, wanted)


def shape_argument(x: Any, name: str, dtype: DType, or_else: str = "") -> Shape:
    """Check a shape given as an int or a sequence of ints. Raises ValueError if it is invalid or impossibly large."""
    shape = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    for length in shape:
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
            raise ValueError(f"{name}={x!r}: expected {or_else}a shape of ints >= 0")
    if prod(max(1, int(length)) for length in shape) * dtype.itemsize >= 2**63:
        raise ValueError(
            f"{name}={shown(x)}: expected {or_else}a shape of fewer than 2**63 bytes in {DTYPE_NAMES[dtype]}"
        )
    return tuple(map(int, shape))


def dtype_argument(dtype: Any) -> tuple[DType, Kind]:
    """The DType of a dtype argument, and the kind of array that it implies: torch's for a torch dtype, else NumPy's."""
    parsed = torch.dtype_argument(dtype)
    return (dtypes.parse(dtype), NUMPY) if parsed is None else (parsed, torch.TORCH)


def scratch(shape: Shape, dtype: DType) -> Buffer:
    """Memory of the right size whose content is not used."""
    count = prod(shape)
    memory = numpy.plain(np.empty(count * dtype.itemsize, np.uint8), None)
    return Buffer(memory.ptr, count, dtype, shape, memory.array, NUMPY, None)


def _made(x: Any, name: str, write: bool) -> Buffer:
    """source and target for everything but contiguous NumPy arrays."""
    for buffer_of in _KINDS:
        buffer = buffer_of(x, name, write)
        if buffer is not None:
            return buffer
    hint = _hint(x) if name == "x" else ""
    raise TypeError(f"{name}: expected an array, a buffer or a number, got {type(x).__name__}{hint}")


def _hint(x: Any) -> str:
    if isinstance(x, (list, tuple)) and x and all(hasattr(item, "shape") for item in x):
        return "; of several arrays, pass one at a time, or a single one that holds them all, as numpy.stack makes it"
    is_object = isinstance(x, (dict, list, tuple, set, str))
    return "; Python objects are for broadcast_object, all_gather_object, ..." if is_object else ""
