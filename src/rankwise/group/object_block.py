"""Python objects as bytes: plain data so that any sender is safe, other objects by pickle if that is allowed; and an
encoded object as one block.

An object without buffers is its pickle alone. Otherwise the block begins with a table of uint64: the number of parts,
shifted left by 8 bits, and their sizes. The parts follow, the pickle and then the buffers, each at a multiple of
ALIGNMENT, so that arrays can use the memory of the block. A pickle begins with the byte 0x80, a table with 0.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rankwise._native import check_plain, is_basic, load_allowed
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.group.plain_types import make, take_apart

# ---- an object as a pickle and its buffers ----
#
# Encoded, an object is a stream, which is a pickle of protocol 5, and the memory of its large arrays. Pickle has
# opcodes for the basic types; every other plain type (plain_types.py) becomes a call of `make`. Without leave, a stream
# is loaded only after check_plain has walked its opcodes and found nothing but those of the basic types and calls of
# `make`.

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

IN_STREAM = 4096  # bytes; smaller arrays are copied into the stream


def encode(obj: Any, allow_pickle: bool) -> tuple[bytes, list[Bytes]]:
    """Encode an object: its stream and its buffers, which may share memory with its arrays.

    Unless it may be pickled, raises TypeError, which names the first value that is not plain data, and ValueError if it
    is nested too deep.
    """
    try:
        return _encode_plain(obj)
    except (TypeError, ValueError):
        if not allow_pickle:
            raise
    return pickled(obj)


def pickled(obj: Any) -> tuple[bytes, list[Bytes]]:
    """The stream and the buffers of any object, by its own pickle; only a receiver that allows pickles loads it."""
    buffers: list[Bytes] = []
    return pickle.dumps(obj, 5, buffer_callback=_keeper(buffers)), buffers


def decode(stream: Any, buffers: Sequence[Bytes], allow_pickle: bool, rank: int) -> Any:
    """Decode an object that `rank` encoded. Its arrays use the memory of the buffers, so that must be writable.

    stream: bytes, or other memory, which is copied unless pickles are allowed: nobody may change it after the check.

    Unless pickles are allowed, raises TypeError for an object that is not plain data, and ValueError for invalid data.
    """
    if allow_pickle:
        return pickle.loads(stream, buffers=buffers)
    stream = bytes(stream)
    try:
        calls = check_plain(stream, len(buffers), CONSTRUCTOR)
    except TypeError as error:
        raise TypeError(
            f"rank {rank} sent an object that is not plain data ({error}); "
            "pass allow_pickle=True on this rank too if that rank may be trusted"
        ) from None
    except ValueError as error:
        raise ValueError(f"rank {rank} sent an invalid object: {error}") from None
    try:
        return _PlainUnpickler(io.BytesIO(stream), buffers=buffers).load() if calls else pickle.loads(stream)
    except Exception as error:
        raise ValueError(f"rank {rank} sent an invalid object: {error}") from error


CONSTRUCTOR = (make.__module__, make.__qualname__)
"""The one global that a stream of plain data may name."""


class _PlainPickler(pickle.Pickler):
    """Writes plain data. reducer_override is called only for values that have no opcodes of their own."""

    def reducer_override(self, value: Any) -> Any:
        if value is make:
            return NotImplemented  # as a global
        name, parts = take_apart(value)
        return make, (name, *parts)


class _PlainUnpickler(pickle.Unpickler):
    """Knows `make` alone. check_plain has refused everything else; this is a second wall."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != CONSTRUCTOR:
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
        return make


def _encode_plain(obj: Any) -> tuple[bytes, list[Bytes]]:
    file, buffers = io.BytesIO(), list[Bytes]()
    try:
        _PlainPickler(file, 5, buffer_callback=_keeper(buffers)).dump(obj)
    except RecursionError:
        raise ValueError("obj: it is nested too deep, or contains itself") from None
    stream = file.getvalue()
    try:
        check_plain(stream, len(buffers), CONSTRUCTOR)
    except ValueError as error:
        raise ValueError(f"obj: {error}") from None
    return stream, buffers


def _keeper(buffers: list[Bytes]) -> Callable[[pickle.PickleBuffer], bool]:
    """For a pickler, which calls it for each buffer: it keeps large ones, and leaves small ones in the stream."""

    def in_stream(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < IN_STREAM:
            return True
        buffers.append(np.frombuffer(memory, np.uint8))
        return False

    return in_stream


ALIGNMENT = 64  # bytes: a cache line, and enough for any element

_PICKLE = 0x80


Parts: TypeAlias = Sequence[Any]
"""An encoded object, in pieces that lie one after the other."""


class Codec:
    """A way to encode objects.

    encode(obj): the object's block in pieces, which share memory with its arrays. trusted: whether to load any pickle
    that a rank sends, or plain data only.
    """

    def __init__(self, encode: Callable[[Any], list[Any]], *, trusted: bool) -> None:
        self.encode, self.trusted = encode, trusted
        self.constructor = None if trusted else CONSTRUCTOR

    def read(self, block: Any, rank: int) -> Any:
        """The object of a block that `rank` sent. See decode."""
        if type(block) is bytes and (obj := load_allowed(block, self.constructor)) is not NOT_TAKEN:
            return obj  # short blocks come as bytes, and this loads them fastest
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
    if len(pickled) <= IN_STREAM:  # few pieces are faster
        parts[:4] = [b"".join(parts[:4])]
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


PLAIN = Codec(partial(_encode, False), trusted=False)
"""Plain data alone."""

TRUSTING = Codec(partial(_encode, True), trusted=True)
"""Plain data, and the pickles of other objects."""
