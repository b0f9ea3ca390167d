"""Collectives on Python objects: plain data safely, and other objects by pickle if that is allowed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from rankwise.arrays.numpy import address
from rankwise.contract.communicator import Collectives
from rankwise.contract.operations import ALL_GATHER_V, ALL_TO_ALL_V, GATHER_V, Call
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.types import DType
from rankwise.group.base import GroupBase
from rankwise.group.object_block import TRUSTING, Codec, Parts, aligned, assemble, length_of

First: TypeAlias = Callable[[], Any]


class ObjectCollectives(GroupBase):
    """Operations on Python objects.

    Plain data is None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset; NumPy
    arrays, structured and masked ones too, scalars and dtypes, all without objects; dense torch tensors; date, time,
    datetime, timedelta, timezone, Decimal, Fraction, UUID, PurePosixPath, PureWindowsPath, range, slice, Counter,
    OrderedDict, deque, and defaultdict whose factory is None or one of these types; nested up to 100 levels deep. A
    subclass of these types is not plain. An object that contains another one twice, or a list or dict that contains
    itself, arrives like that. A tensor arrives in host memory with the same dtype, and does not require grad.

    Plain data is safe to receive, whoever sent it. Any other object needs allow_pickle=True on all ranks: unpickling
    runs code that the sender chose, so the ranks must trust each other. `rw.init(allow_pickle=True)` allows it for
    all calls. An object that cannot be sent raises TypeError before anything is sent.

    With async_op=True an object is encoded once to check it, and again when the operation runs, so that
    it contains the data that earlier work on streams has stored in it.
    """

    def broadcast_object(
        self, obj: Any = None, src: int = 0, *, allow_pickle: bool | None = None, async_op: bool = False
    ) -> Any:
        """Send rank `src`'s `obj` to every rank.

        Args:
            obj: plain data, such as numbers, text, times, arrays, tensors, and lists, dicts and sets of them; all types
                are listed in docs/how-to/objects.md.
            allow_pickle: whether obj may be any object that can be pickled, which needs True on every rank, and ranks
                that trust each other; by default as `rw.init` says.

        Returns:
            The object; on rank `src` obj itself.

        Example:
            >>> settings = group.broadcast_object({"layers": [3, 4], "rate": 0.1} if group.rank == 0 else None)
            >>> settings["layers"]
            [3, 4]
        """
        codec = self._codec(allow_pickle)
        if not async_op and (quick := self._shortcuts.broadcast_object_plain) is not None:
            received = quick(obj, src, codec, codec.constructor, self._broadcast_rest)
            if received is not NOT_TAKEN:
                return received
        src = self._rank(src, "src")

        def body() -> Any:
            parts = codec.encode(obj) if src == self.rank else None
            received = self._broadcast_rest(src, codec, partial(_first_broadcast, self._collectives, parts, src), parts)
            return obj if src == self.rank else received

        size = length_of(codec.encode(obj)) if async_op and src == self.rank else 0
        return self._run(body, None, async_op, size)

    def _broadcast_rest(self, src: int, codec: Codec, first: First, parts: Parts | None) -> Any:
        """The second step, which is needed if the object is longer than a block. Returns the object, but not on src.

        first: makes the first step, or, here and below, has made it; returns what that has brought.
        """
        with self._one_operation:
            block = first()
            if isinstance(block, int):
                size, block = block, np.empty(block, np.uint8) if parts is None else assemble(parts)
                self._collectives.broadcast(address(block), size, DType.U8, src)
        return codec.read(block, src) if parts is None else None

    def gather_object(self, obj: Any, dst: int = 0, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on rank `dst`, as a list by rank; returns None elsewhere.

        Args:
            allow_pickle: as in `broadcast_object`.

        Example:
            >>> found = group.gather_object(("rank", group.rank))
            >>> found if group.rank == 0 else [("rank", 0), ("rank", 1)]
            [('rank', 0), ('rank', 1)]
        """
        return self._gather(obj, dst, self._codec(allow_pickle), async_op)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on every rank, as a list by rank.

        Args:
            allow_pickle: as in `broadcast_object`.

        Example:
            >>> group.all_gather_object({"rank": group.rank})
            [{'rank': 0}, {'rank': 1}]
        """
        return self._gather(obj, None, self._codec(allow_pickle), async_op)

    def _gather(self, obj: Any, dst: int | None, codec: Codec, async_op: bool) -> Any:
        """Gather the objects on rank `dst`, or, if that is None, on every rank."""
        if not async_op and (quick := self._shortcuts.gather_object_plain) is not None:
            gathered = quick(obj, dst, codec, codec.constructor, self._gather_rest)
            if gathered is not NOT_TAKEN:
                return gathered
        if dst is not None:
            dst = self._rank(dst, "dst")

        def body() -> Any:
            parts = codec.encode(obj)
            if dst is not None and (gather := self._shortcuts.gather_encoded) is not None:
                return self._gather_rest(dst, codec, partial(gather, parts, dst), parts)
            first = partial(_first_all_gather, self._collectives, parts, self.world_size)
            return self._gather_rest(dst, codec, first, parts)

        return self._run(body, None, async_op, length_of(codec.encode(obj)) if async_op else 0)

    def _gather_rest(self, dst: int | None, codec: Codec, first: First, parts: Parts) -> list[Any] | None:
        """The second step, in which objects travel that are longer than a block, if any; and the decoding of all."""
        receives = dst is None or dst == self.rank
        with self._one_operation:
            blocks = first() or []
            if int in map(type, blocks):
                counts = _long(blocks)
                block = assemble(parts) if counts[self.rank] else np.empty(0, np.uint8)
                memory = np.empty(sum(counts) if receives else 0, np.uint8)
                operation, at = ALL_GATHER_V if dst is None else GATHER_V, address(memory) if receives else 0
                self._collectives.run(Call(operation, address(block), at, 0, DType.U8, None, dst, counts))
                del block
                if receives:
                    _put_long(blocks, memory, counts)
        return self._read_all(codec, blocks) if receives else None

    def _read_all(self, codec: Codec, blocks: list[Any]) -> list[Any]:
        return [(TRUSTING if rank == self.rank else codec).read(block, rank) for rank, block in enumerate(blocks)]

    def _exchange_rest(self, codec: Codec, first: First, sent: Sequence[Parts]) -> list[Any]:
        """The second step, in which the objects travel of the ranks that send long ones; and the decoding of all."""
        with self._one_operation:
            blocks = first()
            if int in map(type, blocks):
                receives, own = _long(blocks), sent if isinstance(blocks[self.rank], int) else []
                sends = [aligned(length_of(parts)) for parts in own] or [0] * self.world_size
                block, memory = assemble(*own), np.empty(sum(receives), np.uint8)
                at = address(block), address(memory)
                self._collectives.run(Call(ALL_TO_ALL_V, *at, 0, DType.U8, send_counts=sends, recv_counts=receives))
                del block
                _put_long(blocks, memory, receives)
        return self._read_all(codec, blocks)

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow_pickle: bool | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send rank `src`'s objs[i] to rank i, and return it there.

        Args:
            objs: one object for each rank; used on rank `src` alone.
            allow_pickle: as in `broadcast_object`.

        Example:
            >>> group.scatter_object(["a", "b"] if group.rank == 0 else None) == "ab"[group.rank]
            True
        """
        codec = self._codec(allow_pickle)
        if not async_op and (quick := self._shortcuts.scatter_object_plain) is not None:
            received = quick(objs, src, codec, codec.constructor, self._scatter_rest)
            if received is not NOT_TAKEN:
                return received
        src = self._rank(src, "src")
        given: list[Any] = []
        if src == self.rank:
            if objs is None or len(objs) != self.world_size:
                what = "None" if objs is None else f"{len(objs)} objects"
                raise ValueError(f"objs: expected {self.world_size} objects, one for each rank, got {what}")
            given = list(objs)

        def body() -> Any:
            blocks = [codec.encode(obj) for obj in given]
            return self._scatter_rest(src, codec, partial(_first_scatter, self._collectives, blocks, src), blocks)

        size = sum(length_of(codec.encode(obj)) for obj in given) if async_op else 0
        return self._run(body, None, async_op, size)

    def _scatter_rest(self, src: int, codec: Codec, first: First, blocks: Sequence[Parts]) -> Any:
        """The second step, which is needed if one of the objects is longer than a block."""
        with self._one_operation:
            block = first()
            if isinstance(block, int):
                block_lengths = [length_of(each) for each in blocks] or [0] * self.world_size
                lengths = self._broadcast_ints(np.array(block_lengths), src).tolist()
                counts = [aligned(length) for length in lengths]
                sent, memory = assemble(*blocks), np.empty(counts[self.rank], np.uint8)
                self._collectives.scatter_v(address(sent), address(memory), counts, DType.U8, src)
                del sent
                block = memory[: lengths[self.rank]]
        return (TRUSTING if src == self.rank else codec).read(block, src)


def exchange_objects(group: ObjectCollectives, objs: list[Any]) -> list[Any]:
    """Send objs[i] to rank i; returns what all ranks have sent here. For front-ends that trust the other ranks."""
    codec = group._codec(None)
    if (quick := group._shortcuts.exchange_objects_plain) is not None:
        return quick(objs, codec, codec.constructor, group._exchange_rest)  # type: ignore[no-any-return]

    def body() -> list[Any]:
        sent = [codec.encode(obj) for obj in objs]
        return group._exchange_rest(codec, partial(_first_exchange, group._collectives, sent), sent)

    return group.comm.call(body)


# ---- the first step of a collective: blocks of one size, which hold the objects that are short enough ----
# Each function returns what a block holds: the encoded object, or its length if the longest one does not fit.

_BLOCK = 256
"""Bytes of a block: two uint64, the length of the encoded object and the length of the longest of those that its rank
sends, and, if the longest fits, the object. The engine's shortcuts make the same block."""

_ROOM = _BLOCK - 16
_LAYOUT = struct.Struct(f"=QQ{_ROOM}s")


def _first_broadcast(comm: Collectives, parts: Parts | None, src: int) -> bytes | int:
    """parts: the object, on src; None elsewhere."""
    block = np.empty(_BLOCK, np.uint8) if parts is None else _blocks([parts])
    comm.broadcast(address(block), _BLOCK, DType.U8, src)
    return _contents(block)[0]


def _first_all_gather(comm: Collectives, parts: Parts, world_size: int) -> list[bytes | int]:
    """What each rank's block holds."""
    own, everybody = _blocks([parts]), np.empty(_BLOCK * world_size, np.uint8)
    comm.all_gather(address(own), address(everybody), _BLOCK, DType.U8)
    return _contents(everybody)


def _first_scatter(comm: Collectives, objects: Sequence[Parts], src: int) -> bytes | int:
    """objects: one for each rank, on src; none elsewhere."""
    blocks, own = _blocks(objects), np.empty(_BLOCK, np.uint8)
    comm.scatter(address(blocks), address(own), _BLOCK, DType.U8, src)
    return _contents(own)[0]


def _first_exchange(comm: Collectives, objects: Sequence[Parts]) -> list[bytes | int]:
    """objects: one for each rank. Returns what the block of each rank holds."""
    blocks, received = _blocks(objects), np.empty(_BLOCK * len(objects), np.uint8)
    comm.all_to_all(address(blocks), address(received), _BLOCK, DType.U8)
    return _contents(received)


def _blocks(objects: Sequence[Parts]) -> np.ndarray[Any, Any]:
    blocks = np.empty(_BLOCK * len(objects), np.uint8)
    longest = max(map(length_of, objects), default=0)
    for number, parts in enumerate(objects):
        content = b"".join(parts) if longest <= _ROOM else b""
        _LAYOUT.pack_into(blocks.data, number * _BLOCK, length_of(parts), longest, content)
    return blocks


def _contents(blocks: Any) -> list[bytes | int]:
    return [
        content[:length] if longest <= _ROOM else length for length, longest, content in _LAYOUT.iter_unpack(blocks)
    ]


# ---- the second step: long objects, each at a multiple of ALIGNMENT ----


_QUICK = 16 << 10
"""An object that takes at most so many bytes is decoded from bytes, which is the quickest (see Codec.read)."""


def _long(blocks: Sequence[bytes | int]) -> list[int]:
    """The bytes that each rank's long object takes; 0 for what has come already."""
    return [aligned(each) if isinstance(each, int) else 0 for each in blocks]


def _put_long(blocks: list[Any], memory: Any, counts: Sequence[int]) -> None:
    """Replace the lengths in `blocks` by the objects in `memory`, where each takes counts[rank] bytes."""
    for rank, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        if count:
            block = memory[end - count : end - count + blocks[rank]]
            blocks[rank] = block.tobytes() if count <= _QUICK else block
