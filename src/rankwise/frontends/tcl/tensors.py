"""The functions of the tensor commands; no command changes a tensor in place.

A tensor is a NumPy array, or a torch tensor where autograd tracks it. Differentiable commands take an
`Operand`, which is either, and compute with NumPy or torch accordingly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.frontends.tcl.handles import Tensor, to_numpy, to_torch
from rankwise.frontends.tcl.parameters import invalid
from rankwise.frontends.tcl.session import Session
from rankwise.frontends.tcl.value_types import DTYPES, Number

Shape = tuple[int, ...]
DTypeLike = np.dtype[Any]
Operand = Any
"""A NumPy array, or a torch tensor that autograd tracks."""


def words_of(tensor: Tensor) -> list[str]:
    """The elements, row by row, as Tcl numbers; each is the shortest text that denotes the same number."""
    flat = tensor.reshape(-1)
    if flat.dtype.kind == "b":
        flat = flat.astype(np.int8)
    elif dtypes.from_numpy(flat.dtype) == DTYPES["bfloat16"]:
        flat = flat.astype(np.float32)
    if flat.dtype.kind == "f" and flat.dtype.itemsize < 8:
        words: list[str] = flat.astype(str).tolist()
        return words
    return [repr(value) for value in flat.tolist()]


def shape_text(shape: Shape) -> str:
    return " ".join(map(str, shape))


def _new(make: Callable[..., Tensor]) -> Callable[..., Operand]:
    """A command that makes a new tensor in host memory; autograd tracks it if requires_grad is true."""

    @wraps(make)
    def command(session: Session, *, device: str, requires_grad: bool, **given: Any) -> Operand:
        tensor = make(session, **given)
        if not requires_grad:
            return tensor
        if tensor.dtype.kind in "iub":
            raise invalid("requiresGrad", 1, f"The tensor is of {tensor.dtype.name}, and only floats have gradients.")
        return to_torch(tensor).requires_grad_()

    return command


@_new
def create(session: Session, data: list[Any], shape: Shape | None, dtype: DTypeLike) -> Tensor:
    try:
        exact = np.array(data)
    except ValueError:
        raise ValueError("Invalid -data parameter. Its lists must be of one length.") from None
    if dtype == np.uint64 and exact.dtype.kind == "f":  # NumPy's result for a mixture of small and very large integers
        whole = np.array(data, object)
        if all(isinstance(number, int) and 0 <= number < 2**64 for number in whole.flat):
            exact = whole.astype(np.uint64)
    if exact.dtype == object:
        raise ValueError("Invalid -data parameter. Its numbers must have at most 64 bits.")
    tensor = _converted(exact, dtype)
    if shape is None:
        return tensor
    if tensor.size != prod(shape):
        must = f"-data has {tensor.size} numbers, and this shape needs {prod(shape)}."
        raise invalid("shape", shape_text(shape), must)
    return tensor.reshape(shape)


def _converted(exact: Tensor, dtype: DTypeLike) -> Tensor:
    with np.errstate(all="ignore"):
        tensor = exact.astype(dtype)
        lost = dtype.kind in "iub" and not np.array_equal(tensor, exact)
    if lost:
        where = np.flatnonzero(np.asarray(tensor != exact).reshape(-1))[0]
        raise invalid("data", exact.reshape(-1)[where], f"Must be numbers that {dtype.name} can hold.")
    return tensor


zeros = _new(lambda session, shape, dtype: np.zeros(shape, dtype))
ones = _new(lambda session, shape, dtype: np.ones(shape, dtype))
empty = _new(lambda session, shape, dtype: np.empty(shape, dtype))
rand = _new(lambda session, shape, dtype: session.random.random(shape).astype(floating(dtype)))
randn = _new(lambda session, shape, dtype: session.random.standard_normal(shape).astype(floating(dtype)))


@_new
def full(session: Session, shape: Shape, value: Number, dtype: DTypeLike) -> Tensor:
    tensor = np.empty(shape, dtype)
    tensor[...] = _as_element(value, "value", dtype)
    return tensor


def _as_element(value: Number, option: str, dtype: DTypeLike) -> Tensor:
    try:
        return _converted(np.array(value), dtype)
    except (ValueError, OverflowError):
        raise invalid(option, value, f"Must be a number that {dtype.name} can hold.") from None


@_new
def arange(session: Session, end: Number, start: Number, step: Number, dtype: DTypeLike) -> Tensor:
    if step == 0:
        raise invalid("step", step, "Must not be 0.")
    return np.arange(start, end, step).astype(dtype)


def floating(dtype: DTypeLike) -> DTypeLike:
    if dtype.kind in "iub":
        raise invalid("dtype", dtype.name, "Must be a floating-point type.")
    return dtype


def dtype(session: Session, tensor: Tensor) -> str:
    """Float32, Int64, UInt8, BFloat16, Bool: the name's words with capitals."""
    name: str = tensor.dtype.name
    for word in ("float", "int"):
        name = name.replace(word, word.capitalize())
    return name[0].upper() + name[1:]


def item(session: Session, tensor: Tensor) -> str:
    if tensor.size != 1:
        raise ValueError(f"A tensor of {tensor.size} elements has no single item: shape {{{shape_text(tensor.shape)}}}")
    return words_of(tensor)[0]


def print_text(session: Session, tensor: Tensor) -> str:
    text = np.array2string(tensor, separator=" ", threshold=1000)
    return f"{text}\n{dtype(session, tensor)} {{{shape_text(tensor.shape)}}}"


def reshape(session: Session, tensor: Operand, shape: Shape) -> Operand:
    try:
        return _apart(tensor.reshape(shape))
    except (ValueError, RuntimeError):
        must = f"The tensor has {prod(tensor.shape)} elements, shape {{{shape_text(tensor.shape)}}}."
        raise invalid("shape", shape_text(shape), must) from None


def cut(session: Session, tensor: Operand, dim: int, start: int, end: int | None, step: int) -> Operand:
    if step < 1:
        raise invalid("step", step, "Must be at least 1.")
    places: list[slice] = [slice(None)] * tensor.ndim
    places[_dim(tensor, dim)] = slice(start, end, step)
    return _apart(tensor[tuple(places)])


def transpose(session: Session, tensor: Operand, dim0: int, dim1: int) -> Operand:
    return _apart(tensor.swapaxes(_dim(tensor, dim0, "dim0"), _dim(tensor, dim1, "dim1")))


def _apart(view: Operand) -> Operand:
    """A contiguous copy, which shares no memory with the view."""
    return np.array(view, order="C") if isinstance(view, np.ndarray) else view.clone().contiguous()


def _dim(tensor: Operand, dim: int, option: str = "dim") -> int:
    if -tensor.ndim <= dim < tensor.ndim:
        return dim
    raise invalid(option, dim, f"The tensor has {tensor.ndim} dimensions, shape {{{shape_text(tensor.shape)}}}.")


# The differentiable functions, with torch's names for them.
_DIFFERENTIABLE = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "div",
    np.matmul: "matmul",
    np.exp: "exp",
    np.log: "log",
    np.sum: "sum",
    np.mean: "mean",
    np.max: "amax",
}


def _compute(function: Callable[..., Any], *operands: Operand | Number, **options: Any) -> Operand:
    """Apply the function to the operands: torch's if autograd tracks one of them, else NumPy's."""
    tracked = function in _DIFFERENTIABLE and not all(isinstance(x, np.ndarray | int | float) for x in operands)
    convert = to_torch if tracked else to_numpy
    given = [operand if isinstance(operand, int | float) else convert(operand) for operand in operands]
    if tracked:
        import torch

        return getattr(torch, _DIFFERENTIABLE[function])(*given, **options)
    with np.errstate(all="ignore"):  # infinities and NaN in the result are warning enough
        return np.asarray(function(*given, **options))


def _kind(operand: Operand | Number) -> str:
    if isinstance(operand, int | float):
        return str(operand)
    return f"{to_numpy(operand).dtype.name} {{{shape_text(operand.shape)}}}"


def element_wise(function: Callable[..., Any]) -> Callable[..., Operand]:
    """A command with two operands: a tensor, and `other`, which is a tensor of a compatible shape or a number."""

    def command(session: Session, tensor: Operand, other: Operand | Number) -> Operand:
        try:
            return _compute(function, tensor, other)
        except OverflowError:
            dtype = to_numpy(tensor).dtype.name
            raise invalid("other", other, f"Must be a number that fits into the tensor's type, {dtype}.") from None
        except (ValueError, RuntimeError):
            raise ValueError(f"Operands do not fit together: {_kind(tensor)} and {_kind(other)}") from None

    return command


def of_each(function: Callable[..., Any]) -> Callable[..., Operand]:
    """A command that applies a function to every element."""
    return lambda session, tensor: _compute(function, tensor)


def along(function: Callable[..., Any]) -> Callable[..., Operand]:
    """A command that reduces one dimension, or all elements."""

    def command(session: Session, tensor: Operand, dim: int | None, keepdim: bool) -> Operand:
        axis = None if dim is None else _dim(tensor, dim)
        size = prod(tensor.shape) if axis is None else tensor.shape[axis]
        if size == 0 and function is not np.sum:
            raise ValueError(f"Nothing to choose from: shape {{{shape_text(tensor.shape)}}}")
        axes = tuple(range(tensor.ndim)) if axis is None else axis  # torch.amax does not take None
        return _compute(function, tensor, axis=axes if function is np.max else axis, keepdims=keepdim)

    return command


def save(session: Session, tensor: Tensor, file: str) -> None:
    if tensor.dtype.kind == "V":  # bfloat16; numpy.load would give raw bytes
        raise ValueError(f"Invalid -tensor parameter. A .npy file cannot hold {tensor.dtype.name}.")
    try:
        with open(file, "wb") as out:
            np.save(out, tensor, allow_pickle=False)
    except OSError as error:
        raise invalid("file", file, f"{error.strerror}.") from None


def load(session: Session, file: str) -> Tensor:
    try:
        with open(file, "rb") as stream:
            tensor = np.load(stream, allow_pickle=False)
    except OSError as error:
        raise invalid("file", file, f"{error.strerror}.") from None
    except (ValueError, EOFError):
        raise invalid("file", file, "Must be a file that tensor_save or numpy.save wrote.") from None
    if not isinstance(tensor, np.ndarray) or dtypes.from_numpy(tensor.dtype) not in DTYPES.values():
        content = tensor.dtype if isinstance(tensor, np.ndarray) else "several arrays"
        raise invalid("file", file, f"It holds {content}, and a tensor is one array of {', '.join(DTYPES)}.")
    return tensor.astype(tensor.dtype.newbyteorder("="))


def delete(session: Session, tensor: str) -> None:
    del session.handles.tensors[tensor]
