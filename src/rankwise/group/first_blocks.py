"""The first step of a collective of objects: blocks of one size, which hold the objects that are short enough.

Each function returns what a block holds: the encoded object, or the length of the longest one if that does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np

from rankwise.arrays.numpy import address
from rankwise.contract.communicator import Collectives
from rankwise.contract.types import DType
from rankwise.group.object_block import Parts, length_of

BLOCK = 256
"""Bytes of a block: two uint64, the length of the encoded object and the length of the longest of those that src
scatters, and, if the longest fits, the object. The engine's shortcuts make the same block."""

_ROOM = BLOCK - 16
_LAYOUT = struct.Struct(f"=QQ{_ROOM}s")


def broadcast(comm: Collectives, parts: Parts | None, src: int) -> bytes | int:
    """parts: the object, on src; None elsewhere."""
    block = np.empty(BLOCK, np.uint8) if parts is None else _blocks([parts])
    comm.broadcast(address(block), BLOCK, DType.U8, src)
    return _contents(block)[0]


def all_gather(comm: Collectives, parts: Parts, world_size: int) -> list[bytes | int]:
    """What each rank's block holds."""
    mine, everybody = _blocks([parts]), np.empty(BLOCK * world_size, np.uint8)
    comm.all_gather(address(mine), address(everybody), BLOCK, DType.U8)
    return _contents(everybody)


def scatter(comm: Collectives, objects: Sequence[Parts], src: int) -> bytes | int:
    """objects: one for each rank, on src; none elsewhere."""
    blocks, mine = _blocks(objects), np.empty(BLOCK, np.uint8)
    comm.scatter(address(blocks), address(mine), BLOCK, DType.U8, src)
    return _contents(mine)[0]


def _blocks(objects: Sequence[Parts]) -> np.ndarray[Any, Any]:
    blocks = np.empty(BLOCK * len(objects), np.uint8)
    longest = max(map(length_of, objects), default=0)
    for number, parts in enumerate(objects):
        content = b"".join(parts) if longest <= _ROOM else b""
        _LAYOUT.pack_into(blocks.data, number * BLOCK, length_of(parts), longest, content)
    return blocks


def _contents(blocks: Any) -> list[bytes | int]:
    return list(starmap(_content, _LAYOUT.iter_unpack(blocks)))


def _content(length: int, longest: int, content: bytes) -> bytes | int:
    return content[:length] if longest <= _ROOM else longest
