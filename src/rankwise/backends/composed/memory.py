"""Addresses of arrays, and how elements and blocks are divided among ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise._native import address as address
from rankwise.contract.types import ITEMSIZE, DType


def blocks(ptr: int, count: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of `count` blocks of `size` bytes as an array, one row per block, without a copy."""
    memory = memoryview((ctypes.c_uint8 * (count * size)).from_address(ptr)).cast("B")
    return np.frombuffer(memory, np.uint8).reshape(count, size)


def sizes(counts: Sequence[int], dtype: DType) -> tuple[int, ...]:
    item = ITEMSIZE[dtype]
    return tuple(count * item for count in counts)
