"""The collectives in which the ranks' shares differ in length: the lengths are along axis 0."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers, ops
from rankwise.arrays.base import Buffer, Shape
from rankwise.arrays.buffers import source
from rankwise.arrays.dtypes import DTYPES
from rankwise.arrays.numpy import NUMPY
from rankwise.arrays.ops import Op
from rankwise.contract.operations import (
    ALL_GATHER_V,
    ALL_TO_ALL_V,
    GATHER_V,
    REDUCE_SCATTER_V,
    SCATTER,
    SCATTER_V,
    Call,
    Operation,
    divided,
)
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.types import DType
from rankwise.contract.work import Work
from rankwise.group import composed_ops
from rankwise.group.base import GroupBase, IntArray, array_for_part, check_axis_0, shaped, without_memory

D = TypeVar("D", bound=np.dtype[Any])
Counts: TypeAlias = "Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]]"


class VectorCollectives(GroupBase):
    """The collectives whose names end in _v. `counts` are numbers of rows of axis 0, one per rank."""

    @overload
    def all_gather_v(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def all_gather_v(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def all_gather_v(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any: ...
    def all_gather_v(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """Concatenate every rank's `x` by rank along axis 0, on every rank. The lengths of axis 0 may differ.

        Example:
            >>> group.all_gather_v(np.full(1 + group.rank, group.rank)).tolist()
            [0, 1, 1]
        """
        if async_op and (work := self._shortcuts.start_all_gather_rows(self, x, out)):
            return work
        if not async_op and (gathered := self._shortcuts.all_gather_rows(x, out)) is not NOT_TAKEN:
            return gathered
        given = check_axis_0(source(x))
        if out is not None:
            out = buffers.check_rows(out, given)  # now, as torch's grad mode is this thread's
        return self._run(partial(self._gather_rows, ALL_GATHER_V, given, out), given, async_op)

    @overload
    def gather_v(
        self, x: np.ndarray[Any, D], dst: int = 0, *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D] | None: ...
    @overload
    def gather_v(
        self, x: np.ndarray[Any, D], dst: int = 0, *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D] | None]: ...
    @overload
    def gather_v(self, x: Any, dst: int = 0, *, out: Any = None, async_op: bool = False) -> Any: ...
    def gather_v(self, x: Any, dst: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """Like all_gather_v, but only rank `dst` receives the result; the others return None and ignore `out`.

        Example:
            >>> rows = group.gather_v(np.full(2 - group.rank, group.rank), dst=1)
            >>> rows.tolist() if group.rank == 1 else [0, 0, 1]
            [0, 0, 1]
        """
        if async_op and (work := self._shortcuts.start_gather_rows(self, x, dst, out)):
            return work
        if not async_op and (gathered := self._shortcuts.gather_rows(x, dst, out)) is not NOT_TAKEN:
            return gathered
        dst = self._rank(dst, "dst")
        given = check_axis_0(source(x))
        if out is not None and dst == self.rank:
            out = buffers.check_rows(out, given)  # now, as torch's grad mode is this thread's
        return self._run(partial(self._gather_rows, GATHER_V, given, out, dst), given, async_op)

    @overload
    def scatter_v(
        self,
        x: np.ndarray[Any, D],
        counts: Counts | None = None,
        src: int = 0,
        *,
        out: Any = None,
        async_op: Literal[False] = False,
    ) -> np.ndarray[Any, D]: ...
    @overload
    def scatter_v(
        self,
        x: np.ndarray[Any, D],
        counts: Counts | None = None,
        src: int = 0,
        *,
        out: Any = None,
        async_op: Literal[True],
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def scatter_v(
        self,
        x: Any = None,
        counts: Counts | None = None,
        src: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
    ) -> Any: ...
    def scatter_v(
        self,
        x: Any = None,
        counts: Counts | None = None,
        src: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
    ) -> Any:
        """Split rank `src`'s `x` along axis 0, counts[i] rows for rank i; returns this rank's rows.

        Args:
            x: used on rank `src` alone. Elsewhere it is as in scatter.
            counts: used on rank `src` alone; they add up to the length of axis 0.

        Example:
            >>> x, counts = (np.arange(4), [1, 3]) if group.rank == 0 else (None, None)
            >>> part = group.scatter_v(x, counts)
            >>> part.tolist() == [[0], [1, 2, 3]][group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_scatter_rows(self, x, counts, src, out, array_for_part, False)):
            return work
        if not async_op:
            own_rows = self._shortcuts.scatter_rows(x, counts, src, out, array_for_part, False)
            if own_rows is not NOT_TAKEN:
                return own_rows
        return scatter_rows(self, x, partial(self._counts, counts), src, out, async_op)

    @overload
    def reduce_scatter_v(
        self,
        x: np.ndarray[Any, D],
        counts: Counts,
        op: Op = "sum",
        *,
        out: Any = None,
        async_op: Literal[False] = False,
    ) -> np.ndarray[Any, D]: ...
    @overload
    def reduce_scatter_v(
        self, x: np.ndarray[Any, D], counts: Counts, op: Op = "sum", *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def reduce_scatter_v(
        self, x: Any, counts: Counts, op: Op = "sum", *, out: Any = None, async_op: bool = False
    ) -> Any: ...
    def reduce_scatter_v(
        self, x: Any, counts: Counts, op: Op = "sum", *, out: Any = None, async_op: bool = False
    ) -> Any:
        """Reduce `x` over the ranks; rank i receives the next counts[i] rows.

        Args:
            counts: the numbers of rows, by rank, the same on all ranks.

        Example:
            >>> part = group.reduce_scatter_v(np.arange(4), [3, 1])
            >>> part.tolist() == [[0, 2, 4], [6]][group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_reduce_scatter_rows(self, x, counts, op, out)):
            return work
        if not async_op and (own_rows := self._shortcuts.reduce_scatter_rows(x, counts, op, out)) is not NOT_TAKEN:
            return own_rows
        given = check_axis_0(source(x))
        rows = self._counts(counts, given)
        if ops.is_composed(op):
            return self._run(composed_ops.reduce_scatter(self, given, op, rows, out), given, async_op)
        reduce_op = ops.resolve(op, given.dtype)
        result = buffers.result(out, (rows[self.rank], *given.shape[1:]), given)
        counts = _elements(rows, given)
        call = Call(REDUCE_SCATTER_V, given.ptr, result.ptr, 0, given.dtype, reduce_op, counts=counts)
        return self._call(call, given, result, async_op)

    @overload
    def all_to_all_v(
        self, x: np.ndarray[Any, D], counts: Counts, *, out: Any = None, async_op: Literal[False] = False
    ) -> tuple[np.ndarray[Any, D], list[int]]: ...
    @overload
    def all_to_all_v(
        self, x: np.ndarray[Any, D], counts: Counts, *, out: Any = None, async_op: Literal[True]
    ) -> Work[tuple[np.ndarray[Any, D], list[int]]]: ...
    @overload
    def all_to_all_v(
        self, x: Any, counts: Counts, *, out: Any = None, async_op: Literal[True]
    ) -> Work[tuple[Any, list[int]]]: ...
    @overload
    def all_to_all_v(
        self, x: Any, counts: Counts, *, out: Any = None, async_op: bool = False
    ) -> tuple[Any, list[int]]: ...
    def all_to_all_v(self, x: Any, counts: Counts, *, out: Any = None, async_op: bool = False) -> Any:
        """Send the next counts[j] rows of `x` to rank j.

        Args:
            counts: the numbers of rows, by rank; each rank passes its own.

        Returns:
            The rows received, concatenated by rank along axis 0, and how many came from each rank.

        Example:
            >>> x = np.full(3, group.rank)
            >>> group.all_to_all_v(x, [1, 2])[0].tolist() == ([0, 1] if group.rank == 0 else [0, 0, 1, 1])
            True
        """
        if async_op and (work := self._shortcuts.start_all_to_all_rows(self, x, counts, out)):
            return work
        if not async_op and (exchanged := self._shortcuts.all_to_all_rows(x, counts, out)) is not NOT_TAKEN:
            return exchanged
        return self._all_to_all_rows(x, counts, out, async_op)

    def _all_to_all_rows(self, x: Any, counts: Counts, out: Any, async_op: bool) -> Any:
        """The general case of all_to_all_v. It is separate because closures would slow down the shortcut."""
        given = check_axis_0(source(x))
        rows = self._counts(counts, given)
        if out is not None:
            out = buffers.check_rows(out, given)  # now, as torch's grad mode is this thread's

        def body() -> tuple[Any, list[int]]:
            if (native := self._shortcuts.rows_call) is not None:
                late = _LateRows(self, out, given)
                native("all_to_all_v", given.ptr, rows, given.dtype, given.shape[1:], 0, [], late.room)
                return late.finish(), late.counts
            with self._one_operation:
                received = self._exchange_ints(np.array(rows, np.int64)).tolist()
                result, refused = self._late_result(out, (sum(received), *given.shape[1:]), given)
                sends, receives = _elements(rows, given), _elements(received, given)
                call = Call(
                    ALL_TO_ALL_V, given.ptr, result.ptr, 0, given.dtype, send_counts=sends, recv_counts=receives
                )
                self._collectives.run(shaped(call, given.shape[1:]))
            return self._finished(result, refused), received

        return self._run(body, given, async_op)

    def _gather_rows(self, operation: Operation, given: Buffer, out: Any, dst: int | None = None) -> Any:
        """The body of gather_v, and of all_gather_v, for which dst is None."""
        if (native := self._shortcuts.rows_call) is not None:
            late = _LateRows(self, out, given)
            native(operation.name, given.ptr, given.shape[:1], given.dtype, given.shape[1:], dst or 0, [], late.room)
            return late.finish()
        with self._one_operation:
            lengths = self._all_gather_ints(np.array(given.shape[0], np.int64)).tolist()
            call = Call(operation, given.ptr, 0, 0, given.dtype, None, dst, _elements(lengths, given))
            call = shaped(call, given.shape[1:])  # the shape of a row
            if dst not in (None, self.rank):
                return self._collectives.run(call)
            result, refused = self._late_result(out, (sum(lengths), *given.shape[1:]), given)
            self._collectives.run(call._replace(recv=result.ptr))
        return self._finished(result, refused)

    def _counts(self, counts: Counts | None, given: Buffer) -> list[int]:
        """`counts`, checked: one int >= 0 for each rank, together the length of axis 0."""
        try:
            rows = [operator.index(count) for count in (() if counts is None else counts)]
        except TypeError:
            raise TypeError(f"counts={counts!r}: expected a sequence of ints") from None
        if len(rows) != self.world_size or min(rows) < 0 or sum(rows) != given.shape[0]:
            raise ValueError(
                f"counts={counts!r}: expected {self.world_size} counts, one per rank, that add up to {given.shape[0]}, "
                "the length of x's axis 0"
            )
        return rows


class _LateRows:
    """The result of a call of the engine that learns only while it runs how many rows it receives."""

    def __init__(self, group: GroupBase, out: Any, like: Buffer) -> None:
        self._group, self._out, self._like = group, out, like
        self._result: Buffer | None = None
        self.counts: list[int] = []
        """How many rows come from each rank."""

    def room(self, counts: list[int], words: list[int]) -> int:
        """The address for them. Raises an error about `out`."""
        self.counts = counts
        return self._made((sum(counts), *self._like.shape[1:]), self._like)

    def _made(self, shape: Shape, like: Buffer) -> int:
        result = buffers.result(self._out, shape, like)
        self._group._check_memory(result)
        self._result = result
        return result.ptr

    def finish(self) -> Any:
        """The result; None on a rank that receives none."""
        return None if self._result is None else self._result.finish()


class _LatePart(_LateRows):
    """The same for a scatter, whose src describes the rows too."""

    def room(self, counts: list[int], words: list[int]) -> int:
        shape = (*counts, *words[1:])
        return self._made(shape, without_memory(shape, DTYPES[words[0]], self._like.kind))


# The header in which a scatter's source describes its array: dtype, ndim and shape. The rest of a longer shape, and the
# counts of a scatter_v, follow in another broadcast.
HEADER = 12


def scatter_rows(
    group: GroupBase, x: Any, counts: Callable[[Buffer], list[int]] | None, src: int, out: Any, async_op: bool
) -> Any:
    """The general case of scatter_v; of scatter, for which counts is None. It is separate because closures would slow
    down the shortcuts.

    counts: returns each rank's number of rows of src's x, which it checks.
    """
    src = group._rank(src, "src")
    native = group._shortcuts.rows_call
    operation = SCATTER if counts is None else SCATTER_V
    given = None
    if src == group.rank:
        given = check_axis_0(source(x))
        rows = divided(given.shape[0], group.world_size) if counts is None else counts(given)
        result = buffers.result(out, (rows[group.rank], *given.shape[1:]), given)

        def body() -> Any:
            words = [given.dtype, *given.shape[1:]]
            if native is not None:
                sent = given.shape[:1] if counts is None else rows
                native(operation.name, given.ptr, sent, given.dtype, words[1:], src, words, lambda *own: result.ptr)
                return group._finished(result)
            header, more = np.zeros(HEADER, np.int64), [] if counts is None else rows
            words = [given.dtype, len(given.shape), *given.shape]
            header[: len(words)] = words[:HEADER]
            with group._one_operation:
                if _announce(group, operation, header, given.ptr, result.ptr, src) is None:
                    _broadcast_more(group, [*words[HEADER:], *more], src)
                    _scatter_parts(group, operation, given, result, rows, src)
            return group._finished(result)
    else:
        kind = NUMPY if x is None else source(x).kind
        if out is not None:
            out = buffers.writable(out)

        def body() -> Any:
            if native is not None:
                late = _LatePart(group, out, without_memory((), DType.U8, kind))
                native(operation.name, 0, [0], DType.U8, (), src, [], late.room)
                return late.finish()
            header = np.zeros(HEADER, np.int64)
            with group._one_operation:
                part = _announce(group, operation, header, 0, 0, src)
                dtype, dims, *shape = header.tolist()
                number = 0 if counts is None else group.world_size
                shape += _broadcast_more(group, [0] * (max(0, dims - len(shape)) + number), src)
                rows = shape[len(shape) - number :] if number else divided(shape[0], group.world_size)
                like = without_memory(tuple(shape[:dims]), DTYPES[dtype], kind)
                result, refused = group._late_result(out, (rows[group.rank], *like.shape[1:]), like)
                if part is None:
                    _scatter_parts(group, operation, like, result, rows, src)
                else:
                    ctypes.memmove(result.ptr, part, len(part))
            return group._finished(result, refused)

    return group._run(body, given, async_op)


def _announce(group: GroupBase, operation: Operation, header: IntArray, send: int, recv: int, src: int) -> bytes | None:
    """Broadcast the header. Returns None unless the parts came with it: see Communicator.announce_array."""
    if operation is SCATTER and group.comm.announce_array is not None:
        return group.comm.announce_array(header, send, recv, src)
    group._broadcast_ints(header, src)
    return None


def _broadcast_more(group: GroupBase, values: list[int], src: int) -> list[int]:
    return group._broadcast_ints(np.array(values), src).tolist() if values else []


def _scatter_parts(
    group: GroupBase, operation: Operation, given: Buffer, result: Buffer, rows: Sequence[int], src: int
) -> None:
    if operation is SCATTER and min(rows) == max(rows):
        group._collectives.scatter(given.ptr, result.ptr, result.count, given.dtype, src)
    else:
        group._collectives.scatter_v(given.ptr, result.ptr, _elements(rows, given), given.dtype, src)


def _elements(rows: Sequence[int], given: Buffer) -> list[int]:
    row = prod(given.shape[1:])
    return [count * row for count in rows]
