"""The plain types for which pickle has no opcodes: the parts that a value is taken apart into, and made of again.

The parts are plain data too. They come from another rank, so `make` checks their types, and whatever their values are,
it runs no foreign code and needs no more memory than was received.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from importlib import import_module
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from pickle import PickleBuffer
from types import NoneType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rankwise.arrays import torch as tensors
from rankwise.arrays.numpy import address
from rankwise.contract.types import DType
from rankwise.group.references import Reference, take

Parts = tuple[Any, ...]


def take_apart(value: Any) -> tuple[str, Parts]:
    """The name under which `make` knows the value's type, and the value's parts. TypeError if it is not plain data."""
    kind = type(value)
    name = _name(kind)
    if name is None:
        if kind is Reference:
            name = "reference"
        elif isinstance(value, np.dtype):
            name = _kind_of_dtype(value)
        elif isinstance(value, np.generic) and kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
            name = "scalar"
        else:
            refuse(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
    return name, _TYPES[name].parts(value)


def make(name: str, *parts: Any) -> Any:
    """Make the value that was taken apart into these parts."""
    made = _TYPES.get(name)
    if made is None or len(parts) != len(made.types) or not all(map(isinstance, parts, made.types)):
        raise ValueError(f"a {name} cannot be made of ({', '.join(type(part).__name__ for part in parts)})")
    return made.make(*parts)


def refuse(what: str) -> NoReturn:
    raise TypeError(f"obj: {what} is not plain data; pass allow_pickle=True if every rank of the group may be trusted")


class PlainType(NamedTuple):
    make: Callable[..., Any]
    types: tuple[type | tuple[type, ...], ...]
    """The types of the parts."""
    parts: Callable[[Any], Parts]


# ---- types by name ----

_LOADED = {
    kind.__name__: kind
    for kind in (
        bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice,
        PurePosixPath, PureWindowsPath, date, time, datetime, timedelta, timezone, Counter, OrderedDict, deque,
        defaultdict, np.ndarray, np.bytes_, np.str_,
    )
}  # fmt: skip
_LOADED_IF_USED = {
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "MaskedArray": "numpy.ma",
    "Tensor": "torch",
}


def _name(kind: Any) -> str | None:
    """The name of a plain type; None for any other object."""
    if not isinstance(kind, type):
        return None
    name = kind.__name__
    known = _LOADED.get(name) or getattr(sys.modules.get(_LOADED_IF_USED.get(name, "")), name, None)
    return name if known is kind else None


def _type(name: str) -> Any:
    """The plain type of this name."""
    return _LOADED[name] if name in _LOADED else getattr(import_module(_LOADED_IF_USED[name]), name)


# ---- NumPy and torch ----

# Compiled when the first array is sent, not when rankwise is imported.
_NAMED_DTYPE = r"(?a)[<>|](b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SUV]\d{1,9}|[mM]8(\[\w{1,20}\])?)"
_ML_DTYPE = r"(?a)(b?float|int|uint)\w+"


def _kind_of_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.subdtype is not None:
        return "subarray dtype"
    return "dtype" if dtype.names is None else "structured dtype"


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return str(dtype.name)
    if re.fullmatch(_NAMED_DTYPE, dtype.str) is None or dtype.type is np.record:
        refuse(f"dtype {dtype}")
    return str(dtype.str)


def _dtype(name: str) -> np.dtype[Any]:
    if re.fullmatch(_NAMED_DTYPE, name):
        return np.dtype(name)
    if re.fullmatch(_ML_DTYPE, name):
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    raise ValueError(f"{name!r} is not the name of a plain dtype")


def _fields(dtype: np.dtype[Any]) -> Parts:
    if dtype.type is not np.void:  # np.record
        refuse(f"dtype {dtype}")
    names = list(dtype.names or ())
    fields = [(*dtype.fields[name], None)[:3] for name in names] if dtype.fields else []
    formats, offsets, titles = ([field[i] for field in fields] for i in range(3))
    return names, formats, offsets, titles, dtype.itemsize, dtype.isalignedstruct


def _structured(
    names: list[str], formats: list[np.dtype[Any]], offsets: list[int], titles: list[Any], itemsize: int, aligned: bool
) -> np.dtype[Any]:
    if not all(isinstance(each, np.dtype) for each in formats):
        raise ValueError("a field of a structured dtype has no dtype")
    fields = {"names": names, "formats": formats, "offsets": offsets, "titles": titles, "itemsize": itemsize}
    dtype: np.dtype[Any] = np.dtype(fields, align=aligned)  # type: ignore[call-overload]
    return dtype


_MEMORY = (bytes, bytearray, np.ndarray)


def _memory(array: np.ndarray[Any, Any]) -> PickleBuffer:
    """The elements in C order, without a copy if they have it already."""
    if array.dtype.hasobject:
        refuse(f"dtype {array.dtype}")
    if not array.nbytes:
        return PickleBuffer(b"")
    memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not memory.flags.writeable:  # nobody writes to it here, but what is received is to be writable
        interface = {**memory.__array_interface__, "data": (address(memory), False)}
        memory = np.asarray(SimpleNamespace(__array_interface__=interface, owner=memory))
    return PickleBuffer(memory.data)


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], memory: Any) -> np.ndarray[Any, Any]:
    if isinstance(memory, bytes):
        memory = bytearray(memory)  # which can be written
    size, received = _elements(shape) * dtype.itemsize, memoryview(memory).nbytes
    if size != received:
        raise ValueError(f"an array needs {size} bytes, but came with {received}")
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory)
    return array


def _elements(shape: tuple[int, ...]) -> int:
    if not all(type(length) is int for length in shape):
        raise ValueError(f"{shape} is not a shape")
    return prod(shape)


def _parts_of_masked(array: Any) -> Parts:
    fill_value, usual = (np.asarray(v, array.dtype) for v in (array.fill_value, np.ma.default_fill_value(array.dtype)))
    return (
        array.data,
        None if array.mask is np.ma.nomask else array.mask,
        None if fill_value.tobytes() == usual.tobytes() else fill_value,
        array.hardmask,
    )


def _masked(data: Any, mask: Any, fill_value: Any, hard: bool) -> Any:
    if mask is None:
        mask = np.ma.nomask
    elif (mask.shape, mask.dtype) != (data.shape, np.ma.make_mask_descr(data.dtype)):
        raise ValueError("a mask does not fit its array")
    if fill_value is not None and (fill_value.shape, fill_value.dtype) != ((), data.dtype):
        raise ValueError("a fill value does not fit its array")
    return np.ma.MaskedArray(data, mask, fill_value=fill_value, hard_mask=hard)


def _parts_of_tensor(tensor: Any) -> Parts:
    dtype, memory = tensors.content(tensor, "obj")
    return int(dtype), tuple(tensor.shape), _memory(memory)


def _tensor(number: int, shape: tuple[int, ...], memory: Any) -> Any:
    try:
        dtype = DType(number)
        tensors.to_torch(dtype)
    except KeyError:
        raise ValueError(f"it contains a tensor of {dtype.name}, which the torch of this rank does not have") from None
    except ModuleNotFoundError:
        raise ValueError("it contains a torch tensor, but this rank has no torch: pip install torch") from None
    return tensors.TORCH.over(_array(np.dtype(np.uint8), (_elements(shape) * dtype.itemsize,), memory), shape, dtype)


# ---- the standard library ----


def _factory_name(factory: Any) -> str | None:
    if factory is None:
        return None
    name = _name(factory)
    return name or refuse(f"a defaultdict with the factory {getattr(factory, '__name__', factory)}")


# ---- the table ----

_TZ, _ARRAY = (NoneType, timezone), (NoneType, np.ndarray)
_TYPES: dict[str, PlainType] = {
    "complex": PlainType(complex, (float, float), lambda z: (z.real, z.imag)),
    "range": PlainType(range, (int, int, int), lambda r: (r.start, r.stop, r.step)),
    "slice": PlainType(slice, (object, object, object), lambda s: (s.start, s.stop, s.step)),
    "Decimal": PlainType(lambda text: _type("Decimal")(text), (str,), lambda d: (str(d),)),
    "Fraction": PlainType(lambda n, d: _type("Fraction")(n, d), (int, int), lambda f: (f.numerator, f.denominator)),
    "UUID": PlainType(lambda number: _type("UUID")(int=number), (int,), lambda u: (u.int,)),
    "PurePosixPath": PlainType(PurePosixPath, (str,), lambda p: (str(p),)),
    "PureWindowsPath": PlainType(PureWindowsPath, (str,), lambda p: (str(p),)),
    "date": PlainType(date, (int, int, int), lambda d: (d.year, d.month, d.day)),
    "time": PlainType(
        lambda *parts: time(*parts[:-1], fold=parts[-1]),
        (int, int, int, int, _TZ, int),
        lambda t: (t.hour, t.minute, t.second, t.microsecond, t.tzinfo, t.fold),
    ),
    "datetime": PlainType(
        lambda *parts: datetime(*parts[:-1], fold=parts[-1]),
        (int, int, int, int, int, int, int, _TZ, int),
        lambda d: (d.year, d.month, d.day, d.hour, d.minute, d.second, d.microsecond, d.tzinfo, d.fold),
    ),
    "timedelta": PlainType(timedelta, (int, int, int), lambda d: (d.days, d.seconds, d.microseconds)),
    "timezone": PlainType(
        lambda offset, name: timezone(offset) if name is None else timezone(offset, name),
        (timedelta, (str, NoneType)),
        lambda tz: (*tz.__getinitargs__(), None)[:2],
    ),
    "Counter": PlainType(Counter, (dict,), lambda c: (dict(c),)),
    "OrderedDict": PlainType(OrderedDict, (dict,), lambda d: (dict(d),)),
    "deque": PlainType(deque, (list, (int, NoneType)), lambda d: (list(d), d.maxlen)),
    "defaultdict": PlainType(
        lambda factory, items: defaultdict(None if factory is None else _type(factory), items),
        ((str, NoneType), dict),
        lambda d: (_factory_name(d.default_factory), dict(d)),
    ),
    "ndarray": PlainType(_array, (np.dtype, tuple, _MEMORY), lambda a: (a.dtype, a.shape, _memory(a))),
    "scalar": PlainType(
        lambda dtype, memory: _array(dtype, (), memory)[()],
        (np.dtype, _MEMORY),
        lambda n: (n.dtype, _memory(np.asarray(n))),
    ),
    # Not as arrays, which would drop the NULs at the end.
    "bytes_": PlainType(np.bytes_, (bytes,), lambda b: (bytes(b),)),
    "str_": PlainType(np.str_, (str,), lambda s: (str.__str__(s),)),
    "MaskedArray": PlainType(_masked, (np.ndarray, _ARRAY, _ARRAY, bool), _parts_of_masked),
    "dtype": PlainType(_dtype, (str,), lambda dtype: (_dtype_name(dtype),)),
    "subarray dtype": PlainType(lambda base, shape: np.dtype((base, shape)), (np.dtype, tuple), lambda d: d.subdtype),
    "structured dtype": PlainType(_structured, (list, list, list, list, int, bool), _fields),
    "Tensor": PlainType(_tensor, (int, tuple, _MEMORY), _parts_of_tensor),
    "reference": PlainType(take, (int, int), tuple),
}
