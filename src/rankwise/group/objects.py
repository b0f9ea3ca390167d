"""Collectives on Python objects: plain data safely, and other objects by pickle if that is allowed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.contract.types import DType
from rankwise.group.base import GroupBase
from rankwise.group.encoding import Bytes
from rankwise.group.object_block import aligned, block_of, read


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
        """Send rank `src`'s `obj` to every rank. Returns it; src returns obj itself.

        obj: plain data, such as numbers, text, times, arrays, tensors, and lists, dicts and sets of them; all types are
        listed in docs/how-to/objects.md. allow_pickle: whether it may be any object that can be pickled, which needs
        True on every rank, and ranks that trust each other; by default as `rw.init` says.

        >>> settings = group.broadcast_object({"layers": [3, 4], "rate": 0.1} if group.rank == 0 else None)
        >>> settings["layers"]
        [3, 4]
        """
        src, trusted = self._rank(src, "src"), self._trusted(allow_pickle)

        def body() -> Any:
            mine = block_of(obj, trusted) if src == self.rank else None
            found: Any = self._broadcast_block(mine, src)
            if isinstance(found, int):  # its length
                memory = np.empty(found, np.uint8) if mine is None else np.frombuffer(mine, np.uint8)
                self.comm.broadcast(memory.ctypes.data, memory.size, DType.U8, src)
                self._sync()
                found = memory
            return obj if mine is not None else read(found, trusted, src)

        if async_op and src == self.rank:
            block_of(obj, trusted)
        return self._run(body, None, async_op)

    def gather_object(self, obj: Any, dst: int = 0, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on rank `dst`, as a list by rank; returns None elsewhere.

        >>> found = group.gather_object(("rank", group.rank))
        >>> found if group.rank == 0 else [("rank", 0), ("rank", 1)]
        [('rank', 0), ('rank', 1)]
        """
        dst, trusted = self._rank(dst, "dst"), self._trusted(allow_pickle)

        def body() -> Any:
            found = self._gather_blocks(block_of(obj, trusted), dst)
            return None if found is None else [read(block, trusted, rank) for rank, block in enumerate(found)]

        if async_op:
            block_of(obj, trusted)
        return self._run(body, None, async_op)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on every rank, as a list by rank.

        >>> group.all_gather_object({"rank": group.rank})
        [{'rank': 0}, {'rank': 1}]
        """
        trusted = self._trusted(allow_pickle)

        def body() -> list[Any]:
            found = self._gather_blocks(block_of(obj, trusted), None)
            assert found is not None  # every rank receives them
            return [read(block, trusted, rank) for rank, block in enumerate(found)]

        if async_op:
            block_of(obj, trusted)
        return self._run(body, None, async_op)

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow_pickle: bool | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send rank `src`'s objs[i] to rank i. objs has one object per rank and is read only on src.

        >>> group.scatter_object(["a", "b"] if group.rank == 0 else None) == "ab"[group.rank]
        True
        """
        src, trusted = self._rank(src, "src"), self._trusted(allow_pickle)
        given: list[Any] = []
        if src == self.rank:
            if objs is None or len(objs) != self.world_size:
                what = "None" if objs is None else f"{len(objs)} objects"
                raise ValueError(f"objs: expected {self.world_size} objects, one for each rank, got {what}")
            given = list(objs)

        def body() -> Any:
            blocks = [block_of(obj, trusted) for obj in given]
            longest = max(map(len, blocks), default=0)
            rows = np.zeros((len(blocks), BLOCK), np.uint8)
            for row, block in zip(rows, blocks, strict=True):
                _fill(row, block, longest)
            row = np.empty(BLOCK, np.uint8)
            self.comm.scatter(rows.ctypes.data, row.ctypes.data, BLOCK, DType.U8, src)
            self._sync()
            length, longest = row[:_HEAD].view(np.uint64).tolist()
            if longest <= BLOCK - _HEAD:
                return read(row[_HEAD : _HEAD + length].tobytes(), trusted, src)
            sizes = self._broadcast_ints(
                np.array([len(block) for block in blocks] or [0] * self.world_size), src
            ).tolist()
            counts = [aligned(size) for size in sizes]
            all_blocks = np.frombuffer(b"".join(block.ljust(aligned(len(block))) for block in blocks), np.uint8)
            memory = np.empty(counts[self.rank], np.uint8)
            self.comm.scatter_v(all_blocks.ctypes.data, memory.ctypes.data, counts, DType.U8, src)
            self._sync()
            return read(memory[: sizes[self.rank]], trusted, src)

        if async_op:
            for obj in given:
                block_of(obj, trusted)
        return self._run(body, None, async_op)

    def _broadcast_block(self, mine: bytes | None, src: int) -> bytes | int:
        """src's block if it is short, else its length."""
        if self._broadcast_block_now is not None:
            return self._broadcast_block_now(mine, src)
        row = np.empty(BLOCK, np.uint8)
        if mine is not None:
            _fill(row, mine)
        self.comm.broadcast(row.ctypes.data, BLOCK, DType.U8, src)
        self._sync()
        return _content(row)

    def _all_gather_blocks(self, mine: bytes) -> list[bytes | int]:
        """Every rank's block if it is short, else its length."""
        if self._all_gather_blocks_now is not None:
            return self._all_gather_blocks_now(mine)
        row, rows = np.empty(BLOCK, np.uint8), np.empty((self.world_size, BLOCK), np.uint8)
        _fill(row, mine)
        self.comm.all_gather(row.ctypes.data, rows.ctypes.data, BLOCK, DType.U8)
        self._sync()
        return [_content(each) for each in rows]

    def _gather_blocks(self, mine: bytes, dst: int | None) -> list[Any] | None:
        """Every rank's block, on rank `dst`, or, if that is None, on every rank; None elsewhere."""
        found: list[Any] = self._all_gather_blocks(mine)
        here = dst is None or dst == self.rank
        sizes = [block if isinstance(block, int) else 0 for block in found]
        if any(sizes):
            counts = [aligned(size) for size in sizes]
            mine = mine.ljust(counts[self.rank]) if counts[self.rank] else b""
            block = np.frombuffer(mine, np.uint8) if mine else np.empty(0, np.uint8)
            memory = np.empty(sum(counts) if here else 0, np.uint8)
            if dst is None:
                self.comm.all_gather_v(block.ctypes.data, memory.ctypes.data, counts, DType.U8)
            else:
                self.comm.gather_v(block.ctypes.data, memory.ctypes.data if here else 0, counts, DType.U8, dst)
            self._sync()
            if here:
                ends = np.cumsum(counts).tolist()
                for rank, size in enumerate(sizes):
                    if size:
                        start = ends[rank] - counts[rank]
                        found[rank] = memory[start : start + size]
        return found if here else None


BLOCK = 256
"""Bytes of the block that every rank exchanges first: the length of its object as uint64, and the object if it fits. In
scatter_object the length of the longest object follows its own."""

_HEAD = 16


def _fill(row: Bytes, block: bytes, longest: int | None = None) -> None:
    head = struct.pack("<Q", len(block)) if longest is None else struct.pack("<QQ", len(block), longest)
    content = head + block if len(head) + len(block) <= BLOCK else head
    row[: len(content)] = np.frombuffer(content, np.uint8)


def _content(row: Bytes) -> bytes | int:
    length = int(row[:8].view(np.uint64)[0])
    return row[8 : 8 + length].tobytes() if length <= BLOCK - 8 else length
