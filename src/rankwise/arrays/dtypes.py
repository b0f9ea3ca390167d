"""Conversion between DType and NumPy's dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rankwise.contract.types import DTYPE_NAMES, DType

_ML_DTYPES = {DTYPE_NAMES[dtype]: dtype for dtype in (DType.BF16, DType.FP8E4M3, DType.FP8E5M2)}
_TO_NUMPY = {dtype: np.dtype(name) for dtype, name in DTYPE_NAMES.items() if name not in _ML_DTYPES}
# By kind and size, so that platform aliases (long, long long) are the same type.
_FROM_NUMPY = {(numpy.kind, numpy.itemsize): dtype for dtype, numpy in _TO_NUMPY.items()}

DTYPES = tuple(DType)
"""DTYPES[number] is the DType with that number."""


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The DType of a NumPy dtype of any byte order, or None if there is none (object, str, ...)."""
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        return _ML_DTYPES.get(dtype.name)
    return _FROM_NUMPY.get((dtype.kind, dtype.itemsize))


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype of a DType. Raises ImportError if bfloat16 or an 8-bit float lacks the package ml_dtypes."""
    numpy_dtype = _TO_NUMPY.get(dtype)
    return _ml_dtype(DTYPE_NAMES[dtype]) if numpy_dtype is None else numpy_dtype


@cache
def _ml_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"NumPy arrays of {name} need the package ml_dtypes; pip install ml_dtypes") from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def parse(given: object) -> DType:
    """The DType of a `dtype` argument: a DType, "float32", "bfloat16", np.float32 or a NumPy dtype.

    Raises TypeError for types that cannot be sent between ranks.
    """
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given in _ML_DTYPES:
        return _ML_DTYPES[given]
    try:
        parsed = from_numpy(np.dtype(given))  # type: ignore[call-overload]
    except TypeError:
        parsed = None
    if parsed is None:
        raise TypeError(f"dtype={given!r}: expected {EXPECTED}")
    return parsed


EXPECTED = "bool, an integer, float or complex type of at most 64 bits a part, bfloat16, float8_e4m3fn or float8_e5m2"
