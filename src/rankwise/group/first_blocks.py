"""The first step of a collective of objects: blocks of one size, which hold the objects that are short enough."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import numpy as np

from rankwise.arrays.numpy import address
from rankwise.contract.communicator import Communicator, complete
from rankwise.contract.operations import ALL_GATHER, BROADCAST, SCATTER, Call, Operation
from rankwise.contract.types import DType
from rankwise.group.object_block import Parts, length_of

BLOCK = 256
"""Bytes of a block: two uint64, the length of the encoded object and the length of the longest of those that src
scatters, and, if the longest fits, the object. The engine's shortcuts make the same block."""

_ROOM = BLOCK - 16
_LAYOUT = struct.Struct(f"=QQ{_ROOM}s")


class FirstBlocks:
    """The exchange of blocks in one group, in memory that is kept for all of its calls.

    The methods are called within a call of the communicator, so by one thread at a time. They return what a block
    holds: the encoded object, or the length of the longest one if that does not fit.
    """

    def __init__(self, comm: Communicator) -> None:
        self._collectives = complete(comm)
        self._block: Any = np.zeros(BLOCK, np.uint8)
        self._blocks: Any = np.zeros(BLOCK * comm.world_size, np.uint8)

    def broadcast(self, parts: Parts | None, src: int) -> bytes | int:
        """parts: the object, on src; None elsewhere."""
        if parts is not None:
            _write(self._block, 0, parts, length_of(parts))
        self._run(BROADCAST, self._block, self._block, src)
        return _content(*_LAYOUT.unpack(self._block))

    def all_gather(self, parts: Parts) -> list[bytes | int]:
        """Returns what each rank's block holds."""
        _write(self._block, 0, parts, length_of(parts))
        self._run(ALL_GATHER, self._block, self._blocks)
        return list(starmap(_content, _LAYOUT.iter_unpack(self._blocks)))

    def scatter(self, objects: Sequence[Parts], src: int) -> bytes | int:
        """objects: one for each rank, on src; none elsewhere."""
        if objects:
            longest = max(map(length_of, objects))
            for rank, parts in enumerate(objects):
                _write(self._blocks, rank * BLOCK, parts, longest)
        self._run(SCATTER, self._blocks, self._block, src)
        return _content(*_LAYOUT.unpack(self._block))

    def _run(self, operation: Operation, send: Any, recv: Any, src: int | None = None) -> None:
        self._collectives.run(Call(operation, address(send), address(recv), BLOCK, DType.U8, None, src))


def _write(memory: Any, at: int, parts: Parts, longest: int) -> None:
    """Fill the block at `at`."""
    content = b"".join(parts) if longest <= _ROOM else b""
    _LAYOUT.pack_into(memory, at, len(content) or length_of(parts), longest, content)


def _content(length: int, longest: int, content: bytes) -> bytes | int:
    """What a block holds."""
    return content[:length] if longest <= _ROOM else longest
