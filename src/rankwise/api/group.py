"""The group object: operations on arrays over one communicator."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Sequence
from math import prod
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from rankwise._native import describe
from rankwise.api import arrays, ops
from rankwise.api.arrays import Buffer, Shape, source, target
from rankwise.api.dtypes import DTYPES
from rankwise.api.ops import Op
from rankwise.api.work import ArrayWork, Pending
from rankwise.contract.communicator import CLOSE_TIMEOUT, Communicator
from rankwise.contract.errors import MismatchError
from rankwise.contract.work import Work

T = TypeVar("T")

# What scatter's src tells the others: dtype, ndim, shape. NumPy arrays have at most 64 dimensions.
_HEADER_SIZE = 2 + 64


class Group:
    """An ordered set of ranks that communicate, seen from one of them.

    rank, world_size: this rank's number in the group, and how many there are. name: for messages.

    Arrays: NumPy and anything with `__array_interface__`, the buffer protocol or DLPack, torch
    tensors in host memory, and Python or NumPy numbers. Types: bool, integers, floats, complex,
    bfloat16, float8_e4m3fn, float8_e5m2. A new result is of the input's kind (torch for torch, NumPy
    for most others) and dtype; `out=`, where given, receives it instead and is returned. Numbers
    count as 0-d arrays; operations that work in place return a new number for them. Arrays that are
    not contiguous work as well, at the price of a copy; immutable arrays give new ones.

    Every rank of the group calls the same operations in the same order, with the same shape, dtype,
    op and root. A difference raises MismatchError on the ranks; a rank that died, PeerLostError; one
    that does not come within `timeout`, CollectiveTimeout. After these the group stays failed. A bad
    argument raises TypeError or ValueError on this rank before anything is sent, and does no harm.

    All operations block until their result is there, but isend and irecv. Any thread may call. The
    group owns its communicator: close, a `with` block's end and the destructor close that too.
    """

    def __init__(self, comm: Communicator, name: str = "world", backend: str = "") -> None:
        self.comm = comm
        self.rank = comm.rank
        self.world_size = comm.world_size
        self.name = name
        self.backend = backend
        self._pending = Pending()
        self._syncs = not comm.blocking
        self._all_reduce_array = comm.all_reduce_array
        self._closed = False

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Group {self.name!r}, rank {self.rank} of {self.world_size}, {self.backend or 'own'} backend{state}>"

    @property
    def timeout(self) -> float:
        """Seconds that an operation may wait for the other ranks; may be set."""
        return self.comm.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.comm.timeout = check_timeout(seconds)

    @property
    def closed(self) -> bool:
        return self._closed

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.comm.barrier()
        if self._pending.works:
            self._pending.release_done()

    def all_reduce(self, x: T, op: Op = "sum") -> T:
        """Reduce `x` over the ranks, in place, the result on every rank. Returns x."""
        shortcut = self._all_reduce_array
        if shortcut is not None and shortcut(x, op):
            return x
        buffer = target(x)
        self.comm.all_reduce(buffer.ptr, buffer.count, buffer.dtype, ops.resolve(op, buffer.dtype))
        result: T = self._finish(buffer)
        return result

    def broadcast(self, x: T, src: int = 0) -> T:
        """Copy `x` of rank `src` into x of every rank. Returns x."""
        src = self._rank(src, "src")
        found = describe(x)
        # The common case, a plain NumPy array, by the shortest way; here and in all_gather.
        if found is not None and found[4] and found[5]:
            self.comm.broadcast(found[0], found[1], DTYPES[found[2]], src)
            self._sync()
            return x
        buffer = source(x) if src == self.rank else target(x)
        self.comm.broadcast(buffer.ptr, buffer.count, buffer.dtype, src)
        result: T = self._finish(buffer)
        return x if src == self.rank else result

    def reduce(self, x: T, dst: int = 0, op: Op = "sum") -> T | None:
        """Reduce `x` over the ranks, in place on rank `dst`. Returns x there and None elsewhere, where x is kept."""
        dst = self._rank(dst, "dst")
        buffer = target(x) if dst == self.rank else source(x)
        self.comm.reduce(buffer.ptr, buffer.count, buffer.dtype, ops.resolve(op, buffer.dtype), dst)
        result: T = self._finish(buffer)
        return result if dst == self.rank else None

    def gather(self, x: Any, dst: int = 0, *, out: Any = None) -> Any:
        """Every rank's `x`, by rank: shape (world_size, *x.shape) on rank `dst`, None elsewhere (`out` is unused)."""
        dst = self._rank(dst, "dst")
        given = source(x)
        if dst != self.rank:
            self.comm.gather(given.ptr, 0, given.count, given.dtype, dst)
            self._sync()
            return None
        result = arrays.result(out, (self.world_size, *given.shape), given)
        self.comm.gather(given.ptr, result.ptr, given.count, given.dtype, dst)
        return self._finish(result)

    def all_gather(self, x: Any, *, out: Any = None) -> Any:
        """Every rank's `x`, by rank, on every rank: shape (world_size, *x.shape)."""
        found = describe(x)
        if found is not None and found[4] and out is None:
            array = np.empty((self.world_size, *found[3]), x.dtype)
            self.comm.all_gather(found[0], describe(array)[0], found[1], DTYPES[found[2]])  # type: ignore[index]
            self._sync()
            return array
        given = source(x)
        result = arrays.result(out, (self.world_size, *given.shape), given)
        self.comm.all_gather(given.ptr, result.ptr, given.count, given.dtype)
        return self._finish(result)

    def all_gather_v(self, x: Any, *, out: Any = None) -> Any:
        """Every rank's `x`, concatenated by rank along axis 0, on every rank. The lengths of axis 0 may differ."""
        given = source(x)
        _check_axis_0(given)
        if out is not None:
            arrays.check_rows(out, given)
        lengths: list[int] = self.all_gather(np.array(given.shape[0], np.int64)).tolist()
        row = prod(given.shape[1:])
        result, refused = self._late_result(out, (sum(lengths), *given.shape[1:]), given)
        self.comm.all_gather_v(given.ptr, result.ptr, [n * row for n in lengths], given.dtype)
        return self._finish(result, refused)

    def scatter(self, x: Any = None, src: int = 0, *, out: Any = None) -> Any:
        """This rank's part of `x` of rank `src`: axis 0 split as numpy.array_split does.

        x: read on rank `src` alone. Elsewhere it may be None, and the part is then a NumPy array;
        an array given there says only of what kind the part shall be.
        """
        src = self._rank(src, "src")
        header = np.zeros(_HEADER_SIZE, np.int64)
        if src == self.rank:
            given = source(x)
            _check_axis_0(given)
            header[: 2 + len(given.shape)] = (given.dtype, len(given.shape), *given.shape)
            result, refused = arrays.result(out, self._part(given.shape), given), None
            self.broadcast(header, src)
        else:
            kind = arrays.NUMPY if x is None else source(x).kind
            if out is not None:
                arrays.writable(out)
            self.broadcast(header, src)
            dtype, shape = DTYPES[header[0]], tuple(header[2 : 2 + header[1]].tolist())
            given = Buffer(0, 0, dtype, shape, None, kind, None)
            result, refused = self._late_result(out, self._part(shape), given)
        if given.shape[0] % self.world_size == 0:
            self.comm.scatter(given.ptr, result.ptr, result.count, given.dtype, src)
        else:
            counts = _split_counts(given.shape, self.world_size)
            self.comm.scatter_v(given.ptr, result.ptr, counts, given.dtype, src)
        return self._finish(result, refused)

    def reduce_scatter(self, x: Any, op: Op = "sum", *, out: Any = None) -> Any:
        """Reduce `x` over the ranks; returns this rank's part, axis 0 split as numpy.array_split does."""
        given = source(x)
        reduce_op = ops.resolve(op, given.dtype)
        _check_axis_0(given)
        result = arrays.result(out, self._part(given.shape), given)
        if given.shape[0] % self.world_size == 0:
            self.comm.reduce_scatter(given.ptr, result.ptr, result.count, given.dtype, reduce_op)
        else:
            counts = _split_counts(given.shape, self.world_size)
            self.comm.reduce_scatter_v(given.ptr, result.ptr, counts, given.dtype, reduce_op)
        return self._finish(result)

    def all_to_all(self, x: Any, *, out: Any = None) -> Any:
        """Part j of `x` goes to rank j, axis 0 split as numpy.array_split does; returns the parts received.

        They are concatenated by rank along axis 0. x has the same shape on every rank, so that all
        parts received are as long as this rank's own; other lengths raise MismatchError.
        """
        given = source(x)
        _check_axis_0(given)
        world = self.world_size
        own = self._part(given.shape)
        result = arrays.result(out, (own[0] * world, *own[1:]), given)
        if given.shape[0] % world == 0:
            self.comm.all_to_all(given.ptr, result.ptr, given.count // world, given.dtype)
        else:
            counts = _split_counts(given.shape, world)
            self.comm.all_to_all_v(given.ptr, result.ptr, counts, [counts[self.rank]] * world, given.dtype)
        return self._finish(result)

    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Send `x` to rank `dst`. Messages match by (sender, tag) in the order sent."""
        self.isend(x, dst, tag).wait()

    def recv(self, x: Any, src: int, tag: int = 0, *, dtype: Any = None) -> Any:
        """Receive from rank `src` into the array `x` and return it.

        x may also be a shape, a tuple of ints, for a new array of `dtype` (float64 where None;
        a torch dtype gives a tensor). The message must have that many elements of that dtype.
        """
        return self.irecv(x, src, tag, dtype=dtype).wait()

    def isend(self, x: Any, dst: int, tag: int = 0) -> Work[None]:
        """Begin to send `x` to rank `dst`. x must not change before the Work is done."""
        buffer = source(x)
        dst, tag = self._rank(dst, "dst"), _tag(tag)
        inner = self.comm.send(buffer.ptr, buffer.count, buffer.dtype, dst, tag)
        return ArrayWork(inner, buffer, False, self._pending)

    def irecv(self, x: Any, src: int, tag: int = 0, *, dtype: Any = None) -> Work[Any]:
        """Begin to receive, as `recv` does. The result of the Work is the array."""
        buffer = arrays.receiver(x, dtype)
        src, tag = self._rank(src, "src"), _tag(tag)
        inner = self.comm.recv(buffer.ptr, buffer.count, buffer.dtype, src, tag)
        return ArrayWork(inner, buffer, True, self._pending)

    def split(self, color: int, key: int = 0, name: str | None = None) -> Group | None:
        """Collective: the ranks of one color make a new group, ordered by (key, rank).

        color < 0: this rank takes no part and receives None.
        """
        color, key = _integer(color, "color"), _integer(key, "key")
        part = self.comm.split(color, key)
        return None if part is None else Group(part, name or f"{self.name}.{color}", self.backend)

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Group | None:
        """Collective: a new group of `ranks`, in that order, or None where this rank is not one of them.

        Every rank of this group calls it. Ranks may ask for different groups in one call, as long as
        the ranks of each group ask for the same; else MismatchError.
        """
        members = [self._rank(rank, "ranks") for rank in ranks]
        if not members or len(set(members)) != len(members):
            raise ValueError(f"ranks={members}: expected at least one rank, and each once")
        if self.rank not in members:
            self.comm.split(-1, 0)
            return None
        color = zlib.crc32(repr(members).encode()) & 0x7FFFFFFF
        part = self.split(color, members.index(self.rank), name or f"{self.name}{members}")
        assert part is not None  # color >= 0
        if part.world_size != len(members):
            part.close()
            raise MismatchError(f"subgroup(ranks={members}): only {part.world_size} of these ranks asked for it")
        return part

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give pending work up to `timeout` seconds, then release everything. Never raises; may be repeated."""
        if not self._closed:
            self._closed = True
            self.comm.close(timeout)
            self._pending.clear()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The engine must have let go of the memory of pending works before that is freed.
        if hasattr(self, "_closed"):
            self.close()

    def _sync(self) -> None:
        """Complete what was called, where the backend has not."""
        if self._syncs:
            self.comm.sync()

    def _finish(self, buffer: Buffer, refused: Exception | None = None) -> Any:
        """The operation's result, complete."""
        self._sync()
        if refused is not None:
            raise refused
        return buffer.finish()

    def _rank(self, value: int, name: str) -> int:
        number = _integer(value, name)
        if 0 <= number < self.world_size:
            return number
        raise ValueError(f"{name}={number}: expected a rank of the group, 0 to {self.world_size - 1}")

    def _part(self, shape: Shape) -> Shape:
        """The shape of this rank's part when axis 0 is split as numpy.array_split does."""
        rows, longer = divmod(shape[0], self.world_size)
        return (rows + (self.rank < longer), *shape[1:])

    def _late_result(self, out: Any, shape: Shape, like: Buffer) -> tuple[Buffer, Exception | None]:
        """As arrays.result, where the shape came from other ranks, which by now count on this one.

        A bad `out` is therefore not raised but returned, to be raised after the operation.
        """
        try:
            return arrays.result(out, shape, like), None
        except (TypeError, ValueError, ImportError) as error:
            return arrays.scratch(shape, like.dtype), error


def check_timeout(seconds: float) -> float:
    """`seconds` as a float; TypeError or ValueError where it is not a number above 0."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"timeout={seconds!r}: expected a number of seconds, got {type(seconds).__name__}")
    if not seconds > 0:
        raise ValueError(f"timeout={seconds}: expected more than 0 seconds")
    return float(seconds)


def _integer(value: int, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected an int, got {type(value).__name__}") from None


def _tag(value: int) -> int:
    tag = _integer(value, "tag")
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"tag={tag}: expected 0 to {MAX_TAG}")
    return tag


MAX_TAG = 2**31 - 1


def _check_axis_0(given: Buffer) -> None:
    if not given.shape:
        raise ValueError("x: expected an array with an axis 0, got a number or a 0-d array")


def _split_counts(shape: Shape, parts: int) -> list[int]:
    """The elements of each part of the same split: the first parts are one row longer."""
    rows, longer = divmod(shape[0], parts)
    row = prod(shape[1:])
    return [(rows + 1) * row] * longer + [rows * row] * (parts - longer)
