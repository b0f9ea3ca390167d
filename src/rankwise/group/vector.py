"""The collectives in which the ranks' shares differ in length: the lengths are along axis 0."""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
from rankwise.contract.operations import ALL_GATHER_V, ALL_TO_ALL_V, GATHER_V, REDUCE_SCATTER_V, Call, Operation
from rankwise.contract.types import DType
from rankwise.contract.work import Work
from rankwise.group import composed_ops
from rankwise.group.base import (
    HEADER,
    GroupBase,
    array_for_part,
    check_axis_0,
    header_of,
    shaped,
    without_memory,
)

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
        if not async_op and (gathered := self._shortcuts.all_gather_rows(x, out)) is not NotImplemented:
            return gathered
        given = check_axis_0(source(x))
        if out is not None:
            buffers.check_rows(out, given)
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
        if not async_op and (gathered := self._shortcuts.gather_rows(x, dst, out)) is not NotImplemented:
            return gathered
        dst = self._rank(dst, "dst")
        given = check_axis_0(source(x))
        if out is not None and dst == self.rank:
            buffers.check_rows(out, given)
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
        if async_op and (work := self._shortcuts.start_scatter_rows(self, x, counts, src, out, array_for_part)):
            return work
        if (
            not async_op
            and (own_rows := self._shortcuts.scatter_rows(x, counts, src, out, array_for_part)) is not NotImplemented
        ):
            return own_rows
        return self._scatter_rows(x, counts, src, out, async_op)

    def _scatter_rows(self, x: Any, counts: Counts | None, src: int, out: Any, async_op: bool) -> Any:
        """The general case of scatter_v. It is separate because closures would slow down the shortcut."""
        src = self._rank(src, "src")
        native = self._shortcuts.rows_call
        given = None
        if src == self.rank:
            given = check_axis_0(source(x))
            rows = self._counts(counts, given)
            result = buffers.result(out, (rows[self.rank], *given.shape[1:]), given)

            def body() -> Any:
                if native is not None:
                    row = given.shape[1:]
                    words = [given.dtype, *row]
                    native("scatter_v", given.ptr, rows, given.dtype, row, src, words, lambda *of_each: result.ptr)
                else:
                    words = header_of(given)
                    with self._whole:
                        self._broadcast_ints(words[:HEADER], src)
                        self._send_rest(words, src)
                        self._broadcast_ints(np.array(rows, np.int64), src)
                        self._collectives.scatter_v(given.ptr, result.ptr, _elements(rows, given), given.dtype, src)
                return self._finished(result)
        else:
            kind = NUMPY if x is None else source(x).kind
            if out is not None:
                buffers.writable(out)

            def body() -> Any:
                if native is not None:
                    part = _LatePart(self, out, without_memory((), DType.U8, kind))
                    native("scatter_v", 0, [], DType.U8, (), src, [], part.room)
                    return part.finish()
                with self._whole:
                    header = self._broadcast_ints(np.zeros(HEADER, np.int64), src)
                    like = self._described(header.tolist(), kind, src)
                    lengths = self._broadcast_ints(np.zeros(self.world_size, np.int64), src).tolist()
                    late, refused = self._late_result(out, (lengths[self.rank], *like.shape[1:]), like)
                    self._collectives.scatter_v(0, late.ptr, _elements(lengths, like), like.dtype, src)
                return self._finished(late, refused)

        return self._run(body, given, async_op)

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
        if not async_op and (own_rows := self._shortcuts.reduce_scatter_rows(x, counts, op, out)) is not NotImplemented:
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
        if not async_op and (exchanged := self._shortcuts.all_to_all_rows(x, counts, out)) is not NotImplemented:
            return exchanged
        return self._all_to_all_rows(x, counts, out, async_op)

    def _all_to_all_rows(self, x: Any, counts: Counts, out: Any, async_op: bool) -> Any:
        """The general case of all_to_all_v. It is separate because closures would slow down the shortcut."""
        given = check_axis_0(source(x))
        rows = self._counts(counts, given)
        if out is not None:
            buffers.check_rows(out, given)

        def body() -> tuple[Any, list[int]]:
            if (native := self._shortcuts.rows_call) is not None:
                late = _LateRows(self, out, given)
                native("all_to_all_v", given.ptr, rows, given.dtype, given.shape[1:], 0, [], late.room)
                return late.finish(), late.counts
            with self._whole:
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
        with self._whole:
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
        shape = (counts[self._group.rank], *words[1:])
        return self._made(shape, without_memory(shape, DTYPES[words[0]], self._like.kind))


def _elements(rows: Sequence[int], given: Buffer) -> list[int]:
    row = prod(given.shape[1:])
    return [count * row for count in rows]
