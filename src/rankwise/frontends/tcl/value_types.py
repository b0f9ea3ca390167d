"""The types of command parameters: which words of a Tcl call are valid, and the values they stand for."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.contract.types import DType
from rankwise.frontends.tcl.handles import Handles, Tensor
from rankwise.frontends.tcl.parameters import ValueType

Number = int | float

OPERATIONS = ("sum", "mean", "max", "min", "product")
BACKENDS = ("gloo", "nccl", "mpi", "shm", "hierarchical")
MAX_TAG = 2**31 - 1

# rankwise also communicates complex numbers and 8-bit floats, but Tcl has no complex numbers, and
# NumPy has no arithmetic for 8-bit floats.
DTYPES = {
    dtypes.name(dtype): dtype for dtype in DType if not dtype.is_complex and dtype not in (DType.FP8E4M3, DType.FP8E5M2)
}
_SHORT = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64"}


def dtype_of(word: str) -> np.dtype[Any]:
    """The NumPy dtype that `word` names, in upper or lower case. Raises ValueError if it names none."""
    name = word.lower()
    found = DTYPES.get(_SHORT.get(name, name))
    if found is None:
        raise ValueError(word)
    return _numpy_dtype(found)


@cache
def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    return dtypes.to_numpy(dtype)


def number_of(word: str) -> Number:
    """`word` as a number: an int if it is written as one, else a float. Raises ValueError if it is no number."""
    if "_" in word:  # Python allows it in numbers, Tcl does not
        raise ValueError(word)
    try:
        return int(word)
    except ValueError:
        return float(word)


def nested(text: str) -> list[Any]:
    """A Tcl list of numbers or of such lists: '{1 2} {3 4}' -> [[1, 2], [3, 4]]. Raises ValueError for other text."""
    if "{" not in text and "}" not in text:
        return [number_of(word) for word in text.split()]
    stack: list[list[Any]] = [[]]
    for word in re.findall(r"[{}]|[^\s{}]+", text):
        if word == "{":
            stack.append([])
        elif word == "}":
            inner = stack.pop()
            if not stack:
                raise ValueError(text)
            stack[-1].append(inner)
        else:
            stack[-1].append(number_of(word))
    if len(stack) > 1:
        raise ValueError(text)
    return stack[0]


def _integers(text: str) -> tuple[int, ...]:
    return tuple(_integer(word) for word in text.split())


def _integer(word: str) -> int:
    number = number_of(word)
    if not isinstance(number, int):
        raise ValueError(word)
    return number


def _natural(word: str) -> int:
    number = _integer(word)
    if not 0 <= number <= MAX_TAG:
        raise ValueError(word)
    return number


def _sizes(text: str) -> tuple[int, ...]:
    sizes = _integers(text)
    if min(sizes, default=0) < 0:
        raise ValueError(text)
    return sizes


def _boolean(word: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if word.lower() not in values:
        raise ValueError(word)
    return values[word.lower()]


def _one_of(*names: str) -> Any:
    def parse(handles: Handles, word: str) -> str:
        if word not in names:
            raise ValueError(word)
        return word

    return parse


def _tensor_or_number(handles: Handles, word: str) -> Tensor | Number:
    return handles.tensors[word] if word in handles.tensors else number_of(word)


def _handle_of_tensor(handles: Handles, word: str) -> str:
    handles.tensor(word)
    return word


def _handle_of_work(handles: Handles, word: str) -> str:
    handles.work(word)
    return word


def _some_text(handles: Handles, word: str) -> str:
    if not word:
        raise ValueError(word)
    return word


TENSOR = ValueType("tensor", "Must be a tensor handle.", lambda handles, word: handles.tensor(word))
OTHER = ValueType("tensor or number", "Must be a tensor handle or a number.", _tensor_or_number)
TENSOR_HANDLE = ValueType("tensor", TENSOR.must, _handle_of_tensor)
WORK_HANDLE = ValueType("work", "Must be a handle from distributed_isend or distributed_irecv.", _handle_of_work)
INTEGER = ValueType("integer", "Must be an integer.", lambda handles, word: _integer(word))
NUMBER = ValueType("number", "Must be a number.", lambda handles, word: number_of(word))
TAG = ValueType("integer", f"Must be an integer from 0 to {MAX_TAG}.", lambda handles, word: _natural(word))
BOOLEAN = ValueType("boolean", "Must be 0 or 1.", lambda handles, word: _boolean(word))
SHAPE = ValueType("list of sizes", "Must be a list of integers of at least 0.", lambda handles, word: _sizes(word))
INTEGERS = ValueType("list of integers", "Must be a list of integers.", lambda handles, word: _integers(word))
DATA = ValueType(
    "list of numbers", "Must be a list of numbers, or of lists of them.", lambda handles, word: nested(word)
)
DTYPE = ValueType("dtype", f"Must be one of {', '.join(DTYPES)}.", lambda handles, word: dtype_of(word))
OP = ValueType("operation", f"Valid operations: {', '.join(OPERATIONS)}", _one_of(*OPERATIONS))
BACKEND = ValueType("backend", f"Must be one of {', '.join(BACKENDS)}.", _one_of("", *BACKENDS))
TEXT = ValueType("string", "Must not be empty.", _some_text)
STRING = ValueType("string", "", lambda handles, word: word)
