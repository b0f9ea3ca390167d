"""The types of command parameters: which words of a Tcl call are valid, and the values they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from rankwise.arrays import dtypes
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.frontends.tcl.handles import Handles
from rankwise.frontends.tcl.parameters import ValueType

Number = int | float

OPERATIONS = ("sum", "mean", "max", "min", "product")
REDUCTIONS = ("mean", "sum", "none")
BACKENDS = ("gloo", "nccl", "mpi", "shm", "hierarchical")
LARGEST = 2**31 - 1  # the largest tag, size or seed

# rankwise also communicates complex numbers and 8-bit floats, but Tcl has no complex numbers, and
# NumPy has no arithmetic for 8-bit floats.
DTYPES = {
    DTYPE_NAMES[dtype]: dtype for dtype in DType if not dtype.is_complex and dtype not in (DType.FP8E4M3, DType.FP8E5M2)
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


def _finite(word: str) -> Number:
    number = number_of(word)
    if not isfinite(float(word)):  # not float(number), which raises OverflowError for an int of 400 digits
        raise ValueError(word)
    return number


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


def _within(word: str, least: int) -> int:
    number = _integer(word)
    if not least <= number <= LARGEST:
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


def _operand_or_number(handles: Handles, word: str) -> Any:
    return handles.tensors[word] if word in handles.tensors else number_of(word)


def _handle_of_tensor(handles: Handles, word: str) -> str:
    handles.tensor(word)
    return word


def _handle_of_module(handles: Handles, word: str) -> str:
    handles.module(word)
    return word


def _all_of(parse: Callable[[Handles, str], Any]) -> Callable[[Handles, str], tuple[Any, ...]]:
    return lambda handles, text: tuple(parse(handles, word) for word in text.split())


def _optional(parse: Callable[[Handles, str], Any]) -> Callable[[Handles, str], Any]:
    """The same, with the empty string for None."""
    return lambda handles, word: parse(handles, word) if word else None


def _backend(handles: Handles, word: str) -> str:
    """Any name, unless it looks like an address, which distributed_init takes in the same place."""
    if word == "localhost" or "." in word or ":" in word:
        raise ValueError(word)
    return word


def _some_text(handles: Handles, word: str) -> str:
    if not word:
        raise ValueError(word)
    return word


TENSOR = ValueType("tensor", "Must be a tensor handle.", lambda handles, word: handles.tensor(word))
OPERAND = ValueType("tensor", TENSOR.must, lambda handles, word: handles.operand(word))
OTHER = ValueType("tensor or number", "Must be a tensor handle or a number.", _operand_or_number)
WEIGHTS = ValueType("tensor", "Must be a tensor handle, or empty for none.", _optional(Handles.tensor))
TENSOR_HANDLE = ValueType("tensor", TENSOR.must, _handle_of_tensor)
TENSORS = ValueType("list of tensors", "Must be a list of tensor handles.", _all_of(Handles.operand))
MODULE = ValueType("module", "Must be a module handle.", lambda handles, word: handles.module(word))
MODULE_HANDLE = ValueType("module", MODULE.must, _handle_of_module)
MODULES = ValueType("list of modules", "Must be a list of module handles.", _all_of(Handles.module))
OPTIMIZER = ValueType("optimizer", "Must be an optimizer handle.", lambda handles, word: handles.optimizer(word))
INTEGER = ValueType("integer", "Must be an integer.", lambda handles, word: _integer(word))
NUMBER = ValueType("number", "Must be a number.", lambda handles, word: number_of(word))
FINITE = ValueType("number", "Must be a finite number.", lambda handles, word: _finite(word))
NATURAL = ValueType("integer", f"Must be an integer from 0 to {LARGEST}.", lambda handles, word: _within(word, 0))
SIZE = ValueType("integer", f"Must be an integer from 1 to {LARGEST}.", lambda handles, word: _within(word, 1))
BOOLEAN = ValueType("boolean", "Must be 0 or 1.", lambda handles, word: _boolean(word))
SHAPE = ValueType("list of sizes", "Must be a list of integers of at least 0.", lambda handles, word: _sizes(word))
INTEGERS = ValueType("list of integers", "Must be a list of integers.", lambda handles, word: _integers(word))
DATA = ValueType(
    "list of numbers", "Must be a list of numbers, or of lists of them.", lambda handles, word: nested(word)
)
DTYPE = ValueType("dtype", f"Must be one of {', '.join(DTYPES)}.", lambda handles, word: dtype_of(word))
OP = ValueType("operation", f"Valid operations: {', '.join(OPERATIONS)}", _one_of(*OPERATIONS, "prod"))
REDUCTION = ValueType("reduction", f"Must be one of {', '.join(REDUCTIONS)}.", _one_of(*REDUCTIONS))
DEVICE = ValueType("device", "Must be cpu: tensors are in host memory.", _one_of("cpu"))
BACKEND = ValueType("backend", "Must be the name of a backend.", _backend)
TEXT = ValueType("string", "Must not be empty.", _some_text)
STRING = ValueType("string", "", lambda handles, word: word)
