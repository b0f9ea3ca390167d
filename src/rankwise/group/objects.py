"""Collectives on Python objects: plain data safely, and other objects by pickle if that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.contract.types import DType
from rankwise.group.base import GroupBase
from rankwise.group.encoding import Bytes, decode, encode


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
    all calls. An object that cannot be sent raises TypeError before anything is sent. Large arrays are not copied
    into the encoding, but sent directly.

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
            if src == self.rank:
                stream, *buffers = encode(obj, trusted).parts
                sizes = np.array([buffer.size for buffer in buffers], np.int64)
                start = np.concatenate([sizes.view(np.uint8), stream])
                self._broadcast_ints(np.array([len(buffers), start.size], np.int64), src)
                for part in (start, *buffers):
                    self._broadcast_bytes(part, src)
                return obj
            count, length = self._broadcast_ints(np.empty(2, np.int64), src).tolist()
            start = self._broadcast_bytes(np.empty(length, np.uint8), src)
            sizes = start[: 8 * count].view(np.int64)
            buffers = [self._broadcast_bytes(np.empty(size, np.uint8), src) for size in sizes]
            return decode(start[8 * count :].tobytes(), buffers, trusted, src)

        if async_op and src == self.rank:
            encode(obj, trusted)
        return self._run(body, None, async_op)

    def gather_object(self, obj: Any, dst: int = 0, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on rank `dst`, as a list by rank; returns None elsewhere.

        >>> found = group.gather_object(("rank", group.rank))
        >>> found if group.rank == 0 else [("rank", 0), ("rank", 1)]
        [('rank', 0), ('rank', 1)]
        """
        dst, trusted = self._rank(dst, "dst"), self._trusted(allow_pickle)

        def body() -> Any:
            mine = encode(obj, trusted).parts
            sizes = self._exchange_sizes(mine)
            parts: list[list[Bytes]] = [[] for _ in sizes]
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                part = mine[number] if counts[self.rank] else _NOTHING
                memory = np.empty(sum(counts) if dst == self.rank else 0, np.uint8)
                ptr = memory.ctypes.data if dst == self.rank else 0
                self.comm.gather_v(part.ctypes.data, ptr, counts, DType.U8, dst)
                self._sync()
                if dst == self.rank:
                    _share_out(memory, counts, sizes, number, parts)
            return _decode_all(parts, trusted) if dst == self.rank else None

        if async_op:
            encode(obj, trusted)
        return self._run(body, None, async_op)

    def all_gather_object(self, obj: Any, *, allow_pickle: bool | None = None, async_op: bool = False) -> Any:
        """Collect every rank's `obj` on every rank, as a list by rank.

        >>> group.all_gather_object({"rank": group.rank})
        [{'rank': 0}, {'rank': 1}]
        """
        trusted = self._trusted(allow_pickle)

        def body() -> list[Any]:
            mine = encode(obj, trusted).parts
            sizes = self._exchange_sizes(mine)
            parts: list[list[Bytes]] = [[] for _ in sizes]
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                part = mine[number] if counts[self.rank] else _NOTHING
                memory = np.empty(sum(counts), np.uint8)
                self.comm.all_gather_v(part.ctypes.data, memory.ctypes.data, counts, DType.U8)
                self._sync()
                _share_out(memory, counts, sizes, number, parts)
            return _decode_all(parts, trusted)

        if async_op:
            encode(obj, trusted)
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
            encoded = [encode(obj, trusted).parts for obj in given]
            table = np.zeros(self.world_size, np.int64)
            if encoded:
                table[...] = [len(each) for each in encoded]
            self._broadcast_ints(table, src)
            flat = np.zeros(table.sum(), np.int64)
            if encoded:
                flat[...] = [part.size for each in encoded for part in each]
            self._broadcast_ints(flat, src)
            sizes = [part.tolist() for part in np.split(flat, np.cumsum(table)[:-1])]
            parts: list[Bytes] = []
            for number in range(max(map(len, sizes))):
                counts = [each[number] if number < len(each) else 0 for each in sizes]
                blocks = [each[number] for each in encoded if number < len(each)]
                memory = np.concatenate(blocks) if blocks else _NOTHING
                part = np.empty(counts[self.rank], np.uint8)
                self.comm.scatter_v(memory.ctypes.data, part.ctypes.data, counts, DType.U8, src)
                self._sync()
                if number < len(sizes[self.rank]):
                    parts.append(part)
            return decode(parts[0].tobytes(), parts[1:], trusted, src)

        if async_op:
            for obj in given:
                encode(obj, trusted)
        return self._run(body, None, async_op)

    def _broadcast_bytes(self, part: Bytes, src: int) -> Bytes:
        """Broadcast bytes in place; src's part may be read-only."""
        self.comm.broadcast(part.ctypes.data, part.size, DType.U8, src)
        self._sync()
        return part

    def _exchange_sizes(self, parts: list[Bytes]) -> list[list[int]]:
        """The sizes of every rank's parts."""
        counts = self._all_gather_ints(np.array([len(parts)], np.int64))[:, 0]
        mine = np.array([part.size for part in parts], np.int64)
        flat = np.empty(counts.sum(), np.int64)
        self.comm.all_gather_v(mine.ctypes.data, flat.ctypes.data, counts.tolist(), DType.I64)
        self._sync()
        return [part.tolist() for part in np.split(flat, np.cumsum(counts)[:-1])]


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


def _decode_all(parts: list[list[Bytes]], trusted: bool) -> list[Any]:
    return [decode(each[0].tobytes(), each[1:], trusted, rank) for rank, each in enumerate(parts)]
