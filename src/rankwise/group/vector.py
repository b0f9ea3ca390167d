"""The collectives in which the ranks' shares differ in length: the lengths are along axis 0."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers, ops
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source
from rankwise.arrays.numpy import NUMPY
from rankwise.arrays.ops import Op
from rankwise.contract.operations import ALL_GATHER_V, ALL_TO_ALL_V, GATHER_V, REDUCE_SCATTER_V, Call, Operation
from rankwise.contract.work import Work
from rankwise.group import composed_ops, headers
from rankwise.group.base import GroupBase, check_axis_0, shaped

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
            x: read only on rank `src`. Elsewhere it is as in scatter.
            counts: read only on rank `src`; they add up to the length of axis 0.

        Example:
            >>> x, counts = (np.arange(4), [1, 3]) if group.rank == 0 else (None, None)
            >>> part = group.scatter_v(x, counts)
            >>> part.tolist() == [[0], [1, 2, 3]][group.rank]
            True
        """
        src = self._rank(src, "src")
        given = None
        if src == self.rank:
            given = check_axis_0(source(x))
            rows = self._counts(counts, given)
            result = buffers.result(out, (rows[self.rank], *given.shape[1:]), given)

            def body() -> Any:
                words = headers.description(given)
                with self._whole:
                    self._broadcast_ints(words[: headers.SIZE], src)
                    headers.send_rest(self, words, src)
                    self._broadcast_ints(np.array(rows, np.int64), src)
                    self._collectives.scatter_v(given.ptr, result.ptr, _elements(rows, given), given.dtype, src)
                return self._finished(result)
        else:
            kind = NUMPY if x is None else source(x).kind
            if out is not None:
                buffers.writable(out)

            def body() -> Any:
                with self._whole:
                    header = self._broadcast_ints(np.zeros(headers.SIZE, np.int64), src)
                    like = headers.described(self, header.tolist(), kind, src)
                    lengths = self._broadcast_ints(np.zeros(self.world_size, np.int64), src).tolist()
                    part, refused = self._late_result(out, (lengths[self.rank], *like.shape[1:]), like)
                    self._collectives.scatter_v(0, part.ptr, _elements(lengths, like), like.dtype, src)
                return self._finished(part, refused)

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
        given = check_axis_0(source(x))
        rows = self._counts(counts, given)
        if out is not None:
            buffers.check_rows(out, given)

        def body() -> tuple[Any, list[int]]:
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


def _elements(rows: Sequence[int], given: Buffer) -> list[int]:
    row = prod(given.shape[1:])
    return [count * row for count in rows]
