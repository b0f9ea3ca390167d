"""Encodes plain Python data as bytes. Decoding never runs code from the data, so any sender is safe.

Plain: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, and
NumPy arrays and scalars of numbers, bool, text and times, and dense torch tensors, which come back as
tensors in host memory that do not require grad. Exactly these types: a subclass (a namedtuple, an enum)
would come back as another type.

Encoded, an object is a list of parts, each a one-dimensional uint8 array: first the stream, then the
memory of every array or tensor of at least INLINE bytes, as it is. In the stream a value is a letter for its
type, then what that type needs: lengths as unsigned 64-bit numbers, all numbers little-endian.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from rankwise.contract.types import DType

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

INLINE = 4096  # bytes; smaller arrays are stored in the stream
MAX_DEPTH = 100  # lists in lists


def encode(value: Any) -> list[Bytes]:
    """The parts of a value. They may share memory with its arrays.

    Raises TypeError, which names the first value that is not plain, and ValueError if the nesting is
    deeper than MAX_DEPTH, for example because a list contains itself.
    """
    writer = _Writer()
    writer.value(value, 0)
    return [np.frombuffer(writer.stream, np.uint8), *writer.parts]


def decode(parts: Sequence[Bytes]) -> Any:
    """Decode parts, which must be writable, since the value's arrays use their memory. Raises ValueError if invalid."""
    reader = _Reader(parts)
    value = reader.value(0)
    if reader.at != len(reader.stream):
        raise ValueError(f"encoded object: {len(reader.stream) - reader.at} bytes too many")
    return value


class _Writer:
    def __init__(self) -> None:
        self.stream = bytearray()
        self.parts: list[Bytes] = []

    def value(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"obj: nested deeper than {MAX_DEPTH} levels, or it contains itself")
        kind = type(value)
        if value is None:
            self.stream += b"N"
        elif kind is bool:
            self.stream += b"T" if value else b"F"
        elif kind is int:
            self.sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is float:
            self.stream += b"f" + struct.pack("<d", value)
        elif kind is complex:
            self.stream += b"c" + struct.pack("<dd", value.real, value.imag)
        elif kind is str:
            self.sized(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            self.sized(b"b", value)
        elif kind is bytearray:
            self.sized(b"B", value)
        elif kind in _SEQUENCES:
            self.stream += _SEQUENCES[kind]
            self.length(len(value))
            for item in value:
                self.value(item, depth + 1)
        elif kind is np.bytes_:  # not as an array: that, and str() of np.str_, would drop the trailing NULs
            self.sized(b"x", bytes(value))
        elif kind is np.str_:
            self.sized(b"u", value.encode("utf-8", "surrogatepass"))
        elif kind is dict:
            self.stream += b"d"
            self.length(len(value))
            for key, item in value.items():
                self.value(key, depth + 1)
                self.value(item, depth + 1)
        elif kind is np.ndarray:
            self.array(b"a", value)
        elif isinstance(value, np.generic) and kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
            self.array(b"n", np.asarray(value))
        elif (torch := sys.modules.get("torch")) is not None and kind is torch.Tensor:
            from rankwise.arrays import torch as tensors

            dtype, memory = tensors.content(value, "obj")
            self.stream += b"q" + struct.pack("<B", dtype)
            self.block(tuple(value.shape), memory)
        else:
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            raise TypeError(
                f"obj: {name} is not plain data; pass allow_pickle=True if every rank of the group may be trusted"
            )

    def length(self, length: int) -> None:
        self.stream += struct.pack("<Q", length)

    def sized(self, letter: bytes, data: bytes | bytearray) -> None:
        self.stream += letter
        self.length(len(data))
        self.stream += data

    def array(self, letter: bytes, array: np.ndarray[Any, Any]) -> None:
        self.sized(letter, _name(array.dtype).encode())
        memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
        self.block(array.shape, memory)

    def block(self, shape: tuple[int, ...], memory: Bytes) -> None:
        """The number of axes, their lengths, then "h" and the bytes, or "p" and the number of their part."""
        self.length(len(shape))
        for size in shape:
            self.length(size)
        if memory.nbytes < INLINE:
            self.stream += b"h" + memory.tobytes()
        else:
            self.parts.append(memory)
            self.stream += b"p"
            self.length(len(self.parts))


class _Reader:
    def __init__(self, parts: Sequence[Bytes]) -> None:
        if not parts:
            raise ValueError("encoded object: expected at least one part")
        self.stream = parts[0].tobytes()
        self.parts = parts
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self.stream) - self.at:
            raise ValueError(f"encoded object: {count} bytes expected at {self.at} of {len(self.stream)}")
        self.at += count
        return self.stream[self.at - count : self.at]

    def length(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def items(self, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(self.length())]

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"encoded object: nested deeper than {MAX_DEPTH} levels")
        letter = self.take(1)
        if letter in _CONSTANTS:
            return _CONSTANTS[letter]
        if letter in _MAKERS:
            items = self.items(depth)
            try:
                return _MAKERS[letter](items)
            except TypeError as error:
                raise ValueError(f"encoded object: {error}") from None  # an unhashable item of a set
        match letter:
            case b"i":
                return int.from_bytes(self.take(self.length()), "little", signed=True)
            case b"f":
                return struct.unpack("<d", self.take(8))[0]
            case b"c":
                return complex(*struct.unpack("<dd", self.take(16)))
            case b"s":
                return self.take(self.length()).decode("utf-8", "surrogatepass")
            case b"b":
                return self.take(self.length())
            case b"B":
                return bytearray(self.take(self.length()))
            case b"x":
                return np.bytes_(self.take(self.length()))
            case b"u":
                return np.str_(self.take(self.length()).decode("utf-8", "surrogatepass"))
            case b"d":
                return self.dictionary(depth)
            case b"a":
                return self.array()
            case b"n":
                return self.array()[()]
            case b"q":
                return self.tensor()
        raise ValueError(f"encoded object: {letter!r} at {self.at - 1} does not begin a value")

    def dictionary(self, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(self.length()):
            key, value = self.value(depth + 1), self.value(depth + 1)
            try:
                found[key] = value
            except TypeError as error:
                raise ValueError(f"encoded object: {error}") from None
        return found

    def array(self) -> np.ndarray[Any, Any]:
        dtype = _dtype(self.take(self.length()).decode("ascii", "replace"))
        shape, memory = self.block(dtype.itemsize)
        return memory.view(dtype).reshape(shape) if memory.size else np.empty(shape, dtype)

    def tensor(self) -> Any:
        from rankwise.arrays import torch as tensors

        number = self.take(1)[0]
        try:
            dtype = DType(number)
            tensors.to_torch(dtype)
        except (ValueError, KeyError):
            raise ValueError(f"encoded object: this torch has no dtype {number}") from None
        except ModuleNotFoundError:
            raise ValueError("encoded object: a torch tensor, but this rank has no torch: pip install torch") from None
        shape, memory = self.block(dtype.itemsize)
        return tensors.TORCH.over(memory, shape, dtype)

    def block(self, itemsize: int) -> tuple[tuple[int, ...], Bytes]:
        """The shape and the memory of an array or tensor."""
        ndim = self.length()
        if ndim > 64:
            raise ValueError(f"encoded object: an array of {ndim} axes")
        shape = tuple(self.length() for _ in range(ndim))
        size = prod(shape) * itemsize
        where = self.take(1)
        if where == b"h":
            memory = np.frombuffer(bytearray(self.take(size)), np.uint8)
        else:
            number = self.length()
            if where != b"p" or not 0 < number < len(self.parts) or self.parts[number].size != size:
                raise ValueError(f"encoded object: the memory of an array of {size} bytes is missing")
            memory = self.parts[number]
        return shape, memory


_SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}
_MAKERS: dict[bytes, Callable[[list[Any]], Any]] = {letter: kind for kind, letter in _SEQUENCES.items()}
_CONSTANTS = {b"N": None, b"T": True, b"F": False}

_PLAIN = re.compile(r"[<>|](b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|S\d{1,9}|U\d{1,9}|[mM]8(\[\w{1,20}\])?)")
_ML_DTYPES = re.compile(r"(b?float|int|uint)\w+")


def _name(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return str(dtype.name)
    if _PLAIN.fullmatch(dtype.str) is None:
        raise TypeError(
            f"obj: arrays of dtype {dtype} are not plain data; pass allow_pickle=True if every rank of the group may "
            "be trusted"
        )
    return str(dtype.str)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        if _PLAIN.fullmatch(name):
            return np.dtype(name)
        if _ML_DTYPES.fullmatch(name):
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return dtype
    except (TypeError, AttributeError) as error:
        raise ValueError(f"encoded object: dtype {name!r}: {error}") from None
    raise ValueError(f"encoded object: no dtype {name!r}")
