"""The header in which the source of a scatter describes its array to the ranks that receive a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.arrays.base import Buffer, Kind
from rankwise.arrays.dtypes import DTYPES
from rankwise.group.base import GroupBase

# A header holds dtype, ndim and shape. It has as many int64 as fit into an inline payload; a second
# broadcast carries the rest of a longer shape. NumPy arrays have at most 64 dimensions.
SIZE = 12
DIMS = SIZE - 2
MORE_DIMS = 64 - DIMS


def description(given: Buffer) -> Any:
    """The header of an array, followed by the rest of its shape."""
    header = np.zeros(SIZE + MORE_DIMS, np.int64)
    header[: 2 + len(given.shape)] = (given.dtype, len(given.shape), *given.shape)
    return header


def send_rest(group: GroupBase, header: Any, src: int) -> None:
    """On src: broadcast what `described` receives after the header."""
    if header[1] > DIMS:
        group._broadcast_ints(header[SIZE:], src)


def described(group: GroupBase, header: list[int], kind: Kind, src: int) -> Buffer:
    """Off src: the array that a received header describes, without memory."""
    if header[1] > DIMS:
        header = header + group._broadcast_ints(np.zeros(MORE_DIMS, np.int64), src).tolist()
    return Buffer(0, 0, DTYPES[header[0]], tuple(header[2 : 2 + header[1]]), None, kind, None)
