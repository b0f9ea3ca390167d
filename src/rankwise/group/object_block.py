"""An encoded object as one block of bytes.

An object without buffers is its pickle alone. Otherwise the block begins with a table of uint64: the number of parts,
shifted left by 8 bits, and their sizes. The parts follow, the pickle and then the buffers, each at a multiple of
ALIGNMENT, so that arrays can use the memory of the block. A pickle begins with the byte 0x80, a table with 0.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rankwise._native import is_basic, load_allowed
from rankwise.group.encoding import CONSTRUCTOR, Bytes, decode, encode

ALIGNMENT = 64  # bytes: a cache line, and enough for any element

_PICKLE = 0x80


Parts: TypeAlias = Sequence[Any]
"""An encoded object, in pieces that lie one after the other."""


class Codec:
    """A way to encode objects.

    encode(obj): the object's block in pieces, which share memory with its arrays. trusted: whether to load any pickle
    that a rank sends, or plain data only.
    """

    def __init__(self, encode: Callable[[Any], list[Any]], trusted: bool) -> None:
        self.encode, self.trusted = encode, trusted
        self.constructor = None if trusted else CONSTRUCTOR

    def read(self, block: Any, rank: int) -> Any:
        """The object of a block that `rank` sent. See decode."""
        if type(block) is bytes and (found := load_allowed(block, self.constructor)) is not NotImplemented:
            return found  # short blocks come as bytes, and this loads them fastest
        return decode(*_from_block(block, rank), self.trusted, rank)


def length_of(parts: Sequence[Any]) -> int:
    return sum(map(len, parts))


def assemble(*blocks: Sequence[Any]) -> Bytes:
    """Blocks in one piece of new memory, each at a multiple of ALIGNMENT."""
    lengths = [*map(length_of, blocks)]
    memory = np.empty(sum(map(aligned, lengths)), np.uint8)
    view, at = memory.data, 0
    for block, length in zip(blocks, lengths, strict=True):
        for part in (*block, bytes(-length % ALIGNMENT)):
            view[at : at + len(part)] = part
            at += len(part)
    return memory


def pieces(pickled: bytes, buffers: list[Bytes]) -> list[Any]:
    """The block of an encoded object, in pieces that share memory with its buffers."""
    if not buffers:
        return [pickled]
    sizes = [len(pickled), *(buffer.size for buffer in buffers)]
    table = struct.pack(f"<{1 + len(sizes)}Q", len(sizes) << 8, *sizes)
    parts: list[Any] = []
    for part in (table, pickled, *buffers):
        parts += [part, bytes(-len(part) % ALIGNMENT)]
    return parts


def _from_block(block: Any, rank: int) -> tuple[Any, list[Bytes]]:
    """The pickle and the buffers, which use the memory of the block. Raises ValueError if it is invalid."""
    if isinstance(block, bytes) and block[:1] == b"\x80":
        return block, []
    memory: Bytes = np.frombuffer(block, np.uint8)
    if memory.size and memory[0] == _PICKLE:
        return memory, []
    if not memory.flags.writeable:  # a short block, which comes as bytes; arrays will use the memory
        memory = memory.copy()
    count = int(memory[:8].view(np.uint64)[0]) >> 8 if memory.size >= 8 else 0
    if not 0 < count <= memory.size // 8 - 1:
        raise ValueError(f"rank {rank} sent an invalid object: the table of its parts is invalid")
    at, parts = aligned(8 + 8 * count), list[Bytes]()
    for size in memory[8 : 8 + 8 * count].view(np.uint64).tolist():
        if size > memory.size - at:
            what = f"a part of {size} bytes at {at} exceeds its block of {memory.size}"
            raise ValueError(f"rank {rank} sent an invalid object: {what}")
        parts.append(memory[at : at + size])
        at += aligned(size)
    return parts[0], parts[1:]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _encode(allow_pickle: bool, obj: Any) -> list[Any]:
    return [pickle.dumps(obj, 5)] if is_basic(obj) else pieces(*encode(obj, allow_pickle))


PLAIN = Codec(partial(_encode, False), False)
"""Plain data alone."""

TRUSTING = Codec(partial(_encode, True), True)
"""Plain data, and the pickles of other objects."""
