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
"""In compiled code: one whose elements lie in memory in C's order, on every rank."""


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

# What follows checks types while the caller is compiled. Numba passes on the TypeErrors, unlike its own errors, which
# it wraps. `argument` is the name of what is checked, as a literal.


def _checked(x: types.Type, argument: types.Type) -> str:
    """The name of the argument, which is an array in whose memory C finds what NumPy finds there."""
    name = str(getattr(argument, "literal_value", "x"))
    if not isinstance(x, types.Array) or x.layout != "C":
        raise TypeError(f"{name}: {x} given, expected a contiguous array in C's order; np.ascontiguousarray makes one")
    return name


def source(x: Any, argument: str) -> int:
    """The address of an array that an operation reads."""
    raise NotImplementedError("only compiled code calls this")


@overload(source, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _source(x: types.Type, argument: types.Type) -> Callable[..., Any]:
    _checked(x, argument)
    return lambda x, argument: x.ctypes.data


def target(x: Any, argument: str) -> int:
    """The address of an array that an operation writes."""
    raise NotImplementedError("only compiled code calls this")


@overload(target, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _target(x: types.Type, argument: types.Type) -> Callable[..., Any]:
    name = _checked(x, argument)
    if not x.mutable:
        raise TypeError(f"{name}: {x} given, expected an array that may be written; copy() makes one")
    return lambda x, argument: x.ctypes.data


def dtype(x: Any) -> int:
    """The number of an array's dtype."""
    raise NotImplementedError("only compiled code calls this")


@overload(dtype, strict=False)  # type: ignore[untyped-decorator]
def _dtype(x: types.Type) -> Callable[..., Any]:
    number = np.int32(_dtype_of(x))
    return lambda x: number


def _dtype_of(x: types.Type) -> DType:
    if x.dtype not in _DTYPES:
        raise TypeError(f"x: an array of {x.dtype} given, expected one of {', '.join(map(str, _DTYPES))}")
    return _DTYPES[x.dtype]


def integer(value: Any, argument: str) -> int:
    """A number as C takes it."""
    raise NotImplementedError("only compiled code calls this")


@overload(integer, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _integer(value: types.Type, argument: types.Type) -> Callable[..., Any]:
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


def integers(counts: Any, argument: str) -> Any:
    """Counts as C takes them, each of which the engine checks."""
    raise NotImplementedError("only compiled code calls this")


@overload(integers, prefer_literal=True, strict=False)  # type: ignore[untyped-decorator]
def _integers(counts: types.Type, argument: types.Type) -> Callable[..., Any]:
    if not isinstance(counts, types.Array) or not isinstance(counts.dtype, types.Integer):
        name = getattr(argument, "literal_value", "counts")
        raise TypeError(f"{name}: {counts} given, expected an array of integers")
    return lambda counts, argument: counts.astype(np.uint64)


def started(request: Any) -> int:
    """The address of what isend and irecv return."""
    raise NotImplementedError("only compiled code calls this")


@overload(started, strict=False)  # type: ignore[untyped-decorator]
def _started(request: types.Type) -> Callable[..., Any]:
    if request != types.Array(types.int64, 1, "C"):
        raise TypeError(f"request: {request} given, expected what isend or irecv has returned")
    return lambda request: request.ctypes.data


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
