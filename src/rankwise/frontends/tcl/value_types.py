"""The types of command parameters: which words of a Tcl call are valid, and the values they stand for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
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
    dtype = DTYPES.get(_SHORT.get(name, name))
    if dtype is None:
        raise ValueError(word)
    return dtypes.to_numpy(dtype)


def number_of(word: str) -> Number:
    """`word` as a number: an int if it is written as one, 0x1f, 0b101 and 0o17 too, else a float. Else a ValueError."""
    if "_" in word:  # Python allows it in numbers, Tcl does not
        raise ValueError(word)
    try:
        return int(word, 0 if re.match(r"\s*[+-]?0[xXbBoO]", word) else 10)
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


def _handle_of_tensor(handles: Handles, word: str) -> str:
    handles.tensor(word)
    return word


def _handle_of_module(handles: Handles, word: str) -> str:
    handles.module(word)
    return word


def _all_of(parse: Callable[[Handles, str], Any]) -> Callable[[Handles, str], tuple[Any, ...]]:
    return lambda handles, text: tuple(parse(handles, word) for word in text.split())


def _of_word(
    name: str, must: str, parse: Callable[[str], Any], fits: Callable[[Any], object] = lambda value: True
) -> ValueType:
    """A type of which no value is a handle. fits: whether what `parse` makes of a word is a value of the type."""

    def checked(handles: Handles, word: str) -> Any:
        value = parse(word)
        if not fits(value):
            raise ValueError(word)
        return value

    return ValueType(name, must, checked)


def _is_address(word: str) -> bool:
    """Whether it looks like an address, which distributed_init takes in the same place as a backend."""
    return word == "localhost" or "." in word or ":" in word


_BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)

TENSOR = ValueType("tensor", "Must be a tensor handle.", Handles.tensor)
OPERAND = ValueType("tensor", TENSOR.must, Handles.operand)
OTHER = ValueType(
    "tensor or number",
    "Must be a tensor handle or a number.",
    lambda handles, word: handles.tensors[word] if word in handles.tensors else number_of(word),
)
WEIGHTS = ValueType(
    "tensor",
    "Must be a tensor handle, or empty for none.",
    lambda handles, word: handles.tensor(word) if word else None,
)
TENSOR_HANDLE = ValueType("tensor", TENSOR.must, _handle_of_tensor)
TENSORS = ValueType("list of tensors", "Must be a list of tensor handles.", _all_of(Handles.operand))
MODULE = ValueType("module", "Must be a module handle.", Handles.module)
MODULE_HANDLE = ValueType("module", MODULE.must, _handle_of_module)
MODULES = ValueType("list of modules", "Must be a list of module handles.", _all_of(Handles.module))
OPTIMIZER = ValueType("optimizer", "Must be an optimizer handle.", Handles.optimizer)
INTEGER = _of_word("integer", "Must be an integer.", _integer)
NUMBER = _of_word("number", "Must be a number.", number_of)
# math.isfinite raises OverflowError for an int of 400 digits.
FINITE = _of_word("number", "Must be a finite number.", number_of, lambda n: abs(n) <= sys.float_info.max)
NATURAL = _of_word("integer", f"Must be an integer from 0 to {LARGEST}.", _integer, lambda n: 0 <= n <= LARGEST)
SIZE = _of_word("integer", f"Must be an integer from 1 to {LARGEST}.", _integer, lambda n: 1 <= n <= LARGEST)
BOOLEAN = _of_word("boolean", "Must be 0 or 1.", lambda word: _BOOLEANS.get(word.lower()), lambda x: x is not None)
SHAPE = _of_word(
    "list of sizes", "Must be a list of integers of at least 0.", _integers, lambda sizes: min(sizes, default=0) >= 0
)
INTEGERS = _of_word("list of integers", "Must be a list of integers.", _integers)
DATA = _of_word("list of numbers", "Must be a list of numbers, or of lists of them.", nested)
DTYPE = _of_word("dtype", f"Must be one of {', '.join(DTYPES)}.", dtype_of)
OP = _of_word("operation", f"Valid operations: {', '.join(OPERATIONS)}", str, (*OPERATIONS, "prod").__contains__)
REDUCTION = _of_word("reduction", f"Must be one of {', '.join(REDUCTIONS)}.", str, REDUCTIONS.__contains__)
DEVICE = _of_word("device", "Must be cpu: tensors are in host memory.", str, lambda word: word == "cpu")
BACKEND = _of_word("backend", "Must be the name of a backend.", str, lambda word: not _is_address(word))
TEXT = _of_word("string", "Must not be empty.", str, bool)
STRING = _of_word("string", "", str)
