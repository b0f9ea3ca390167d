"""librankwise's functions in compiled code, what their arguments need, and the exceptions of their statuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
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
"""In compiled code: one whose elements lie in memory in C's order, on every rank."""


def external(name: str, *arguments: types.Type) -> types.ExternalFunction:
    """A function of `rankwise.h` that returns an int."""
    return types.ExternalFunction(f"rankwise_{name}", types.int32(*arguments))


def compiled(function: F) -> F:
    """A function that compiled code can call, and Python too."""
    made: F = numba.njit(nogil=True)(function)
    return made


def by_types(choose: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled code alone can call. choose: takes the types of the arguments, and returns what is
    compiled in place of the call.
    """

    @wraps(choose)
    def function(*arguments: object) -> None:
        raise NotImplementedError("only compiled code calls this")

    overload(function, prefer_literal=True, strict=False)(choose)
    return function


_DTYPES: dict[types.Type, DType] = {
    **{getattr(types, name): dtype for dtype, name in DTYPE_NAMES.items() if hasattr(types, name)},
    types.boolean: DType.BOOL,
}

# What follows checks types while the caller is compiled. Numba passes on the TypeErrors, unlike its own errors, which
# it wraps. `argument` is the name of what is checked, as a literal.


def _checked(x: types.Type, argument: types.Type) -> str:
    """The name of the argument, which is an array in whose memory C finds what NumPy finds there."""
    name = str(getattr(argument, "literal_value", "x"))
    if not isinstance(x, types.Array) or x.layout != "C":
        raise TypeError(f"{name}: {x} given, expected a contiguous array in C's order; np.ascontiguousarray makes one")
    return name


@by_types
def source(x: types.Type, argument: types.Type) -> Any:
    """The address of an array that an operation reads."""
    _checked(x, argument)
    return lambda x, argument: x.ctypes.data


@by_types
def target(x: types.Type, argument: types.Type) -> Any:
    """The address of an array that an operation writes."""
    name = _checked(x, argument)
    if not x.mutable:
        raise TypeError(f"{name}: {x} given, expected an array that may be written; copy() makes one")
    return lambda x, argument: x.ctypes.data


@by_types
def dtype(x: types.Type) -> Any:
    """The number of an array's dtype."""
    number = np.int32(_dtype_of(x))
    return lambda x: number


def _dtype_of(x: types.Type) -> DType:
    if x.dtype not in _DTYPES:
        raise TypeError(f"x: an array of {x.dtype} given, expected one of {', '.join(map(str, _DTYPES))}")
    return _DTYPES[x.dtype]


@by_types
def integer(value: types.Type, argument: types.Type) -> Any:
    """A number as C takes it."""
    name = str(getattr(argument, "literal_value", "value"))
    if isinstance(value, types.Omitted):
        default = np.int32(value.value)
        return lambda value, argument: default
    if not isinstance(value, types.Integer):
        raise TypeError(f"{name}: {value} given, expected an integer")
    wrong = f"{name}: a number that does not fit into 32 bits given"

    def checked(value: Any, argument: str) -> Any:
        if np.int32(value) != value:
            raise ValueError(wrong)
        return np.int32(value)

    return checked


@by_types
def integers(counts: types.Type, argument: types.Type) -> Any:
    """Counts as C takes them, each of which the engine checks."""
    if not isinstance(counts, types.Array) or not isinstance(counts.dtype, types.Integer):
        name = getattr(argument, "literal_value", "counts")
        raise TypeError(f"{name}: {counts} given, expected an array of integers")
    return lambda counts, argument: counts.astype(np.uint64)


@by_types
def started(request: types.Type) -> Any:
    """The address of what isend and irecv return."""
    if request != types.Array(types.int64, 1, "C"):
        raise TypeError(f"request: {request} given, expected what isend or irecv has returned")
    return lambda request: request.ctypes.data


@by_types
def op_number(op: Any, x: types.Type) -> Any:
    """The number of a reduction op for an array: of a name, which the code must contain literally, or a ReduceOp."""
    if isinstance(op, types.UnicodeType):
        return lambda op, x: literally(op)
    name = op.value if isinstance(op, types.Omitted) else getattr(op, "literal_value", op)
    if isinstance(name, str):
        named: Any = name
        number = np.int32(resolve(named, _dtype_of(x)))
        return lambda op, x: number
    if isinstance(op, types.IntEnumMember):
        return lambda op, x: np.int32(op)
    return lambda op, x: integer(op, "op")  # a ReduceOp's number, which the engine checks


_INTERRUPTED = 8
_KINDS: dict[int, type[BaseException]] = {
    1: ValueError,
    3: errors.MismatchError,
    4: errors.CollectiveTimeout,
    6: errors.ClosedError,
    7: MemoryError,
}


class Failure(Exception):
    """In compiled code, the error of a status. In Python it is the exception that a group's method would raise."""

    def __new__(cls, status: Any) -> Any:
        """Called when the error leaves compiled code, in the thread whose latest error it is."""
        if isinstance(status, BaseException):  # Python calls the class once more with what it has returned
            return status
        if status == _INTERRUPTED:
            return KeyboardInterrupt()
        text = _library.rankwise_error_message().decode(errors="replace")
        if status == 2:
            return errors.PeerLostError(text, rank=_library.rankwise_error_rank())
        return _KINDS.get(status, errors.RankwiseError)(text)


_hold_python = types.ExternalFunction("PyGILState_Ensure", types.int32())
_clear = types.ExternalFunction("PyErr_Clear", types.void())
_release_python = types.ExternalFunction("PyGILState_Release", types.void(types.int32))


@compiled
def check(status: int) -> None:
    """Raise the exception of a status, unless it is 0."""
    if status == _INTERRUPTED:  # what a signal handler has raised is pending in Python, unless it is raised from here
        held = _hold_python()
        _clear()
        _release_python(held)
    if status != 0:
        raise Failure(status)


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
