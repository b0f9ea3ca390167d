"""librankwise's functions in compiled code, what their arguments need, and the exceptions of their statuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding
import numba
import numpy as np
from numba import literally, types
from numba.extending import overload

from rankwise.arrays.ops import resolve
from rankwise.contract import errors
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.system.library import get_library

F = TypeVar("F", bound=Callable[..., Any])

llvmlite.binding.load_library_permanently(get_library())
_library = ctypes.CDLL(get_library())
_library.rankwise_error_message.restype = ctypes.c_char_p

# How C passes them: a handle and a count, an address, and an int or an enumerator.
HANDLE = COUNT = types.int64
ADDRESS = types.uint64
INT = types.int32
DOUBLE = types.float64

Array = np.ndarray[Any, Any]
"""In compiled code: a contiguous one."""


def external(name: str, *arguments: types.Type) -> types.ExternalFunction:
    """A function of `rankwise.h` that returns an int."""
    return types.ExternalFunction(f"rankwise_{name}", types.int32(*arguments))


def compiled(function: F) -> F:
    """A function that compiled code can call, and Python too."""
    made: F = numba.njit(nogil=True)(function)
    return made


_DTYPES: dict[types.Type, DType] = {
    **{getattr(types, name): dtype for dtype, name in DTYPE_NAMES.items() if hasattr(types, name)},
    types.boolean: DType.BOOL,
}


def _dtype_of(x: types.Type) -> DType:
    """The dtype of a type of arrays. Numba passes on what this raises, unlike its own errors, which it wraps."""
    if not isinstance(x, types.Array) or x.layout not in "CF":
        raise TypeError(f"x: {x} given, expected a contiguous array; np.ascontiguousarray makes one")
    if x.dtype not in _DTYPES:
        raise TypeError(f"x: an array of {x.dtype} given, expected one of {', '.join(map(str, _DTYPES))}")
    return _DTYPES[x.dtype]


def dtype(x: Any) -> int:
    """The number of a contiguous array's dtype."""
    raise NotImplementedError("only compiled code calls this")


@overload(dtype, strict=False)  # type: ignore[untyped-decorator]
def _dtype(x: types.Type) -> Callable[..., Any]:
    number = np.int32(_dtype_of(x))
    return lambda x: number


def op_number(op: Any, x: Any) -> int:
    """The number of a reduction op for an array: of a name, which the code must contain literally, or a ReduceOp."""
    raise NotImplementedError("only compiled code calls this")


@overload(op_number, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _op_number(op: Any, x: types.Type) -> Callable[..., Any]:
    if isinstance(op, types.UnicodeType):
        return lambda op, x: literally(op)
    name = op.value if isinstance(op, types.Omitted) else getattr(op, "literal_value", op)
    if isinstance(name, str):
        named: Any = name
        number = np.int32(resolve(named, _dtype_of(x)))
        return lambda op, x: number
    return lambda op, x: np.int32(op)  # a ReduceOp, or its number, which the engine checks


_KINDS: dict[int, type[Exception]] = {
    1: ValueError,
    3: errors.MismatchError,
    4: errors.CollectiveTimeout,
    6: errors.ClosedError,
    7: MemoryError,
}


def _raise_in_python(status: int) -> None:
    if status == 8:  # a signal handler has raised, which is pending
        raise KeyboardInterrupt
    text = _library.rankwise_error_message().decode(errors="replace")
    if status == 2:
        raise errors.PeerLostError(text, rank=_library.rankwise_error_rank())
    raise _KINDS.get(status, errors.RankwiseError)(text)


@numba.njit  # type: ignore[untyped-decorator]  # it holds the GIL
def check(status: int) -> None:
    """Raise the exception of a status, unless it is 0."""
    if status != 0:
        with numba.objmode():
            _raise_in_python(status)


_rank = external("rank", HANDLE)
_world_size = external("world_size", HANDLE)


@compiled
def rank(handle: int) -> int:
    """This rank's number in the group."""
    number: int = _rank(handle)
    return number


@compiled
def world_size(handle: int) -> int:
    """The number of ranks of the group."""
    number: int = _world_size(handle)
    return number
