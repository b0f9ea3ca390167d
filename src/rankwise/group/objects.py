"""Collectives on Python objects: plain data in a safe encoding, and other objects by pickle if that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.contract.types import DType
from rankwise.group.base import GroupBase
from rankwise.group.codec import Bytes
from rankwise.group.packing import Packed, pack, unpack


class ObjectCollectives(GroupBase):
    """Operations on Python objects.

    Plain data is None, bool, numbers, str, bytes, lists, tuples, dicts, sets, NumPy arrays and torch tensors,
    in any nesting. A tensor arrives in host memory with the same dtype, and does not require grad. The encoding
    can only be decoded to plain data, whoever sent it. Any other object needs allow_pickle=True on all ranks:
    unpickling runs code that the sender chose, so the ranks must trust each other. An object that cannot be
    sent raises TypeError before anything is sent. Large arrays are not copied into the encoding, but sent
    directly.

    With async_op=True an object is encoded once to check it, and again when the operation runs, so that
    it contains the data that earlier work on streams has stored in it.
    """

    def broadcast_object(
        self, obj: Any = None, src: int = 0, *, allow_pickle: bool = False, async_op: bool = False
    ) -> Any:
        """Send rank `src`'s `obj` to every rank. Returns it; src returns obj itself.

        >>> settings = group.broadcast_object({"layers": [3, 4], "rate": 0.1} if group.rank == 0 else None)
        >>> settings["layers"]
        [3, 4]
        """
        src = self._rank(src, "src")

        def body() -> Any:
            if src == self.rank:
                packed = pack(obj, allow_pickle)
                sizes = np.array(packed.sizes, np.int64)
                start = np.concatenate([sizes.view(np.uint8), packed.parts[0]])
                self._broadcast_ints(np.array([packed.kind, len(packed.parts), start.size], np.int64), src)
                for part in (start, *packed.parts[1:]):
                    self._broadcast_bytes(part, src)
                return obj
            kind, count, length = self._broadcast_ints(np.empty(3, np.int64), src).tolist()
            start = self._broadcast_bytes(np.empty(length, np.uint8), src)
            sizes = start[: 8 * count].view(np.int64)
            parts = [self._broadcast_bytes(np.empty(size, np.uint8), src) for size in sizes[1:]]
            return unpack(Packed(kind, [start[8 * count :], *parts]), allow_pickle, src)

        if async_op and src == self.rank:
            pack(obj, allow_pickle)
        return self._run(body, None, async_op)

    def gather_object(self, obj: Any, dst: int = 0, *, allow_pickle: bool = False, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on rank `dst`, as a list by rank; returns None elsewhere.

        >>> found = group.gather_object(("rank", group.rank))
        >>> found if group.rank == 0 else [("rank", 0), ("rank", 1)]
        [('rank', 0), ('rank', 1)]
        """
        dst = self._rank(dst, "dst")

        def body() -> Any:
            packed = pack(obj, allow_pickle)
            kinds, sizes = self._exchange_sizes(packed)
            parts: list[list[Bytes]] = [[] for _ in kinds]
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                mine = packed.parts[number] if counts[self.rank] else _NOTHING
                memory = np.empty(sum(counts) if dst == self.rank else 0, np.uint8)
                ptr = memory.ctypes.data if dst == self.rank else 0
                self.comm.gather_v(mine.ctypes.data, ptr, counts, DType.U8, dst)
                self._sync()
                if dst == self.rank:
                    _share_out(memory, counts, sizes, number, parts)
            return _unpack_all(kinds, parts, allow_pickle) if dst == self.rank else None

        if async_op:
            pack(obj, allow_pickle)
        return self._run(body, None, async_op)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool = False, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on every rank, as a list by rank.

        >>> group.all_gather_object({"rank": group.rank})
        [{'rank': 0}, {'rank': 1}]
        """

        def body() -> list[Any]:
            packed = pack(obj, allow_pickle)
            kinds, sizes = self._exchange_sizes(packed)
            parts: list[list[Bytes]] = [[] for _ in kinds]
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                mine = packed.parts[number] if counts[self.rank] else _NOTHING
                memory = np.empty(sum(counts), np.uint8)
                self.comm.all_gather_v(mine.ctypes.data, memory.ctypes.data, counts, DType.U8)
                self._sync()
                _share_out(memory, counts, sizes, number, parts)
            return _unpack_all(kinds, parts, allow_pickle)

        if async_op:
            pack(obj, allow_pickle)
        return self._run(body, None, async_op)

    def scatter_object(
        self, objs: Sequence[Any] | None = None, src: int = 0, *, allow_pickle: bool = False, async_op: bool = False
    ) -> Any:
        """Send rank `src`'s objs[i] to rank i. objs has one object per rank and is read only on src.

        >>> group.scatter_object(["a", "b"] if group.rank == 0 else None) == "ab"[group.rank]
        True
        """
        src = self._rank(src, "src")
        given: list[Any] = []
        if src == self.rank:
            if objs is None or len(objs) != self.world_size:
                what = "None" if objs is None else f"{len(objs)} objects"
                raise ValueError(f"objs: expected {self.world_size} objects, one for each rank, got {what}")
            given = list(objs)

        def body() -> Any:
            packed = [pack(obj, allow_pickle) for obj in given]
            table = np.zeros((self.world_size, 2), np.int64)
            if packed:
                table[...] = [[each.kind, len(each.parts)] for each in packed]
            self._broadcast_ints(table, src)
            flat = np.zeros(table[:, 1].sum(), np.int64)
            if packed:
                flat[...] = [size for each in packed for size in each.sizes]
            self._broadcast_ints(flat, src)
            sizes = [part.tolist() for part in np.split(flat, np.cumsum(table[:, 1])[:-1])]
            parts: list[Bytes] = []
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                blocks = [each.parts[number] for each in packed if number < len(each.parts)]
                memory = np.concatenate(blocks) if blocks else _NOTHING
                part = np.empty(counts[self.rank], np.uint8)
                self.comm.scatter_v(memory.ctypes.data, part.ctypes.data, counts, DType.U8, src)
                self._sync()
                if number < len(sizes[self.rank]):
                    parts.append(part)
            return unpack(Packed(int(table[self.rank, 0]), parts), allow_pickle, src)

        if async_op:
            for obj in given:
                pack(obj, allow_pickle)
        return self._run(body, None, async_op)

    def _broadcast_bytes(self, part: Bytes, src: int) -> Bytes:
        """Broadcast bytes in place; src's part may be read-only."""
        self.comm.broadcast(part.ctypes.data, part.size, DType.U8, src)
        self._sync()
        return part

    def _exchange_sizes(self, packed: Packed) -> tuple[list[int], list[list[int]]]:
        """The kind of every rank's encoding, and the sizes of its parts."""
        table = self._all_gather_ints(np.array([packed.kind, len(packed.parts)], np.int64))
        mine = np.array(packed.sizes, np.int64)
        flat = np.empty(table[:, 1].sum(), np.int64)
        self.comm.all_gather_v(mine.ctypes.data, flat.ctypes.data, table[:, 1].tolist(), DType.I64)
        self._sync()
        return table[:, 0].tolist(), [part.tolist() for part in np.split(flat, np.cumsum(table[:, 1])[:-1])]


_NOTHING: Bytes = np.empty(0, np.uint8)


def _share_out(memory: Bytes, counts: list[int], sizes: list[list[int]], number: int, parts: list[list[Bytes]]) -> None:
    """Append each rank's piece of `memory` to its parts, if it has a part with this number."""
    end = 0
    for rank, count in enumerate(counts):
        start, end = end, end + count
        if number < len(sizes[rank]):
            piece = memory[start:end]
            parts[rank].append(piece if piece.ctypes.data % _ALIGNMENT == 0 else piece.copy())


_ALIGNMENT = 16  # bytes; enough for any element


def _unpack_all(kinds: list[int], parts: list[list[Bytes]], allow_pickle: bool) -> list[Any]:
    packed = [Packed(kind, each) for kind, each in zip(kinds, parts, strict=True)]
    return [unpack(each, allow_pickle, rank) for rank, each in enumerate(packed)]
