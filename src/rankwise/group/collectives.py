"""The collectives in which all ranks have equal shares; axis 0 is split as by numpy.array_split."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers, ops
from rankwise.arrays.buffers import in_place, source, target
from rankwise.arrays.ops import Located, Op
from rankwise.contract.operations import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    Call,
    divided,
)
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.work import Work
from rankwise.group import composed_ops
from rankwise.group.base import GroupBase, array_for_part, check_axis_0, split_counts
from rankwise.group.vector import scatter_rows

T = TypeVar("T")
A = TypeVar("A")
D = TypeVar("D", bound=np.dtype[Any])


class Collectives(GroupBase):
    """barrier, all_reduce, broadcast, reduce, gather, all_gather, scatter, reduce_scatter and all_to_all."""

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work[None]: ...
    def barrier(self, *, async_op: bool = False) -> Any:
        """Return when every rank has called it.

        It does not wait for pending messages: a rank may have sends and receives in progress. (The communicator's
        barrier completes them.)

        Example:
            >>> group.barrier()
        """
        if async_op:
            return self._shortcuts.start_barrier(self) or self._call(Call(BARRIER), None, None, async_op)
        self._barrier()
        if self.pending.works:
            self.pending.release_done()
        return None

    @overload
    def all_reduce(
        self, x: T, op: Located, *, out: T | None = None, async_op: Literal[False] = False
    ) -> tuple[T, Any]: ...
    @overload
    def all_reduce(
        self, x: T, op: Located, *, out: T | None = None, async_op: Literal[True]
    ) -> Work[tuple[T, Any]]: ...
    @overload
    def all_reduce(self, x: T, op: Op = "sum", *, async_op: Literal[False] = False) -> T: ...
    @overload
    def all_reduce(self, x: T, op: Op = "sum", *, async_op: Literal[True]) -> Work[T]: ...
    @overload
    def all_reduce(self, x: Any, op: Op = "sum", *, out: A, async_op: Literal[False] = False) -> A: ...
    @overload
    def all_reduce(self, x: Any, op: Op = "sum", *, out: A, async_op: Literal[True]) -> Work[A]: ...
    @overload
    def all_reduce(self, x: Any, op: Op | Located = "sum", *, out: Any = None, async_op: bool) -> Any: ...
    def all_reduce(self, x: Any, op: Op | Located = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Reduce `x` over the ranks, in place, or into `out`; every rank receives the result.

        A function as op is called in the order of the ranks, function(function(x0, x1), x2), and may overwrite its
        first argument. One rank collects the arrays, calls the function, and broadcasts the result: the bits are equal
        on all ranks, but this is slow. If the function raises, that rank raises its error and the others raise
        RankwiseError.

        Args:
            op: "sum", "mean" ("avg"), "max", "min", "product" ("prod"), "band", "bor", "bxor", "minloc" or "maxloc"; a
                ReduceOp; an op of torch or mpi4py; or an associative function of two arrays that returns an array of
                the same shape and dtype. For a name that is computed at run time, type checkers accept
                `rw.ReduceOp[name]`, where name is "SUM", "PROD", "MIN", ...
            out: an array of x's shape and dtype for the result; x keeps its content.

        Returns:
            x or `out`, or for a number without `out` a new number. For "minloc" and "maxloc" a pair: the extreme
            values, in x or `out`, and an int64 array of x's shape with the lowest rank that has each; for a number, two
            numbers.

        Example:
            >>> group.all_reduce(np.array([1.0, group.rank])).tolist()
            [2.0, 1.0]
            >>> x, total = np.ones(2), np.empty(2)
            >>> group.all_reduce(x, out=total) is total, total.tolist(), x.tolist()
            (True, [2.0, 2.0], [1.0, 1.0])
            >>> group.all_reduce(group.rank, "max")
            1
            >>> group.all_reduce(np.array([5, 3 + group.rank]), "maxloc")
            (array([5, 4]), array([0, 1]))
            >>> group.all_reduce(np.array([3.0, 4.0]), np.hypot).round(2).tolist()
            [4.24, 5.66]
        """
        if out is None:
            if async_op and (work := self._shortcuts.start_all_reduce_array(self, x, op)):
                return work
            if not async_op and self._shortcuts.all_reduce_array(x, op):
                return x
            if not async_op and (number := self._shortcuts.all_reduce_number(x, op)) is not NOT_TAKEN:
                return number
        elif not async_op and x is not None and self._shortcuts.all_reduce_array(out, op, x):
            return out
        buffer = in_place(x, out)
        if ops.is_composed(op):
            buffer = self._on_host(buffer)
            return self._run(composed_ops.reduce(self, x if out is None else out, buffer, op, None), buffer, async_op)
        call = Call(ALL_REDUCE, buffer.ptr, buffer.ptr, buffer.count, buffer.dtype, ops.resolve(op, buffer.dtype))
        return self._call(call, buffer, buffer, async_op)

    @overload
    def broadcast(self, x: T, src: int = 0, *, async_op: Literal[False] = False) -> T: ...
    @overload
    def broadcast(self, x: T, src: int = 0, *, async_op: Literal[True]) -> Work[T]: ...
    @overload
    def broadcast(self, x: Any, src: int = 0, *, out: A, async_op: Literal[False] = False) -> A: ...
    @overload
    def broadcast(self, x: Any, src: int = 0, *, out: A, async_op: Literal[True]) -> Work[A]: ...
    @overload
    def broadcast(self, x: Any, src: int = 0, *, out: Any = None, async_op: bool) -> Any: ...
    def broadcast(self, x: Any, src: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """Copy rank `src`'s `x` into every rank's x or `out`, and return that (for a number without `out`, a new one).

        Args:
            out: an array of the shape and dtype of src's x. x is then used on src only; elsewhere it may be None.

        Example:
            >>> group.broadcast(np.full(3, group.rank), src=1).tolist()
            [1, 1, 1]
            >>> group.broadcast(np.arange(2) if group.rank == 1 else None, src=1, out=np.empty(2, int)).tolist()
            [0, 1]
        """
        if out is None:
            if async_op and (work := self._shortcuts.start_broadcast_array(self, x, src)):
                return work
            if not async_op and self._shortcuts.broadcast_array(x, src):
                return x
            if not async_op and (number := self._shortcuts.broadcast_number(x, src)) is not NOT_TAKEN:
                return number
        elif not async_op and (x is not None or src != self.rank) and self._shortcuts.broadcast_array(out, src, x):
            return out
        src = self._rank(src, "src")
        if out is None:
            buffer = source(x) if src == self.rank else target(x)
        else:
            buffer = in_place(x, out) if src == self.rank else buffers.writable(out)
        call = Call(BROADCAST, buffer.ptr, buffer.ptr, buffer.count, buffer.dtype, root=src)
        return self._call(call, buffer if src == self.rank else None, buffer, async_op)

    @overload
    def reduce(
        self, x: T, dst: int, op: Located, *, out: T | None = None, async_op: Literal[False] = False
    ) -> tuple[T, Any] | None: ...
    @overload
    def reduce(
        self, x: T, dst: int, op: Located, *, out: T | None = None, async_op: Literal[True]
    ) -> Work[tuple[T, Any] | None]: ...
    @overload
    def reduce(self, x: T, dst: int = 0, op: Op = "sum", *, async_op: Literal[False] = False) -> T | None: ...
    @overload
    def reduce(self, x: T, dst: int = 0, op: Op = "sum", *, async_op: Literal[True]) -> Work[T | None]: ...
    @overload
    def reduce(self, x: Any, dst: int = 0, op: Op = "sum", *, out: A, async_op: Literal[False] = False) -> A | None: ...
    @overload
    def reduce(self, x: Any, dst: int = 0, op: Op = "sum", *, out: A, async_op: Literal[True]) -> Work[A | None]: ...
    @overload
    def reduce(self, x: Any, dst: int = 0, op: Op | Located = "sum", *, out: Any = None, async_op: bool) -> Any: ...
    def reduce(self, x: Any, dst: int = 0, op: Op | Located = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Reduce `x` over the ranks; only rank `dst` gets the result, in its x or in `out`.

        Args:
            op: as for all_reduce.
            out: as for all_reduce; unused except on dst.

        Returns:
            As all_reduce on rank `dst`; None elsewhere, where x is unchanged.

        Example:
            >>> total = group.reduce(np.ones(2), dst=1)
            >>> total.tolist() if group.rank == 1 else [2.0, 2.0]
            [2.0, 2.0]
        """
        if out is None:
            if async_op and (work := self._shortcuts.start_reduce_array(self, x, dst, op)):
                return work
            if not async_op and self._shortcuts.reduce_array(x, dst, op):
                return x if dst == self.rank else None
            if not async_op and (number := self._shortcuts.reduce_number(x, dst, op)) is not NOT_TAKEN:
                return number
        dst = self._rank(dst, "dst")
        is_dst = dst == self.rank
        if not (out is None or async_op or x is None):
            to, given = (out, x) if is_dst else (x, None)
            if self._shortcuts.reduce_array(to, dst, op, given):
                return out if is_dst else None
        buffer = in_place(x, out) if is_dst else source(x)
        if ops.is_composed(op):
            buffer = self._on_host(buffer)
            return self._run(composed_ops.reduce(self, x if out is None else out, buffer, op, dst), buffer, async_op)
        reduce_op = ops.resolve(op, buffer.dtype)
        call = Call(REDUCE, buffer.ptr, buffer.ptr, buffer.count, buffer.dtype, reduce_op, dst)
        return self._call(call, buffer, buffer if dst == self.rank else None, async_op)

    @overload
    def gather(
        self, x: np.ndarray[Any, D], dst: int = 0, *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D] | None: ...
    @overload
    def gather(
        self, x: np.ndarray[Any, D], dst: int = 0, *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D] | None]: ...
    @overload
    def gather(self, x: Any, dst: int = 0, *, out: Any = None, async_op: bool = False) -> Any: ...
    def gather(self, x: Any, dst: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """Collect every rank's `x` on rank `dst`.

        Returns:
            An array of shape (world_size, *x.shape); None elsewhere, where `out` is unused.

        Example:
            >>> found = group.gather(np.full(2, group.rank), dst=0)
            >>> found.tolist() if group.rank == 0 else [[0, 0], [1, 1]]
            [[0, 0], [1, 1]]
        """
        if async_op and (work := self._shortcuts.start_gather_result(self, x, dst, out)):
            return work
        if not async_op and (gathered := self._shortcuts.gather_result(x, dst, out)) is not NOT_TAKEN:
            return gathered
        dst = self._rank(dst, "dst")
        given = source(x)
        shape = buffers.gathered_shape(self.world_size, given)
        result = buffers.result(out, shape, given) if dst == self.rank else None
        call = Call(GATHER, given.ptr, 0 if result is None else result.ptr, given.count, given.dtype, root=dst)
        return self._call(call, given, result, async_op)

    @overload
    def all_gather(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def all_gather(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def all_gather(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any: ...
    def all_gather(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """Collect every rank's `x` on every rank: shape (world_size, *x.shape).

        Example:
            >>> group.all_gather(np.full(2, group.rank)).tolist()
            [[0, 0], [1, 1]]
        """
        if async_op and (work := self._shortcuts.start_all_gather_result(self, x, out)):
            return work
        if not async_op and (gathered := self._shortcuts.all_gather_result(x, out)) is not NOT_TAKEN:
            return gathered
        given = source(x)
        result = buffers.result(out, buffers.gathered_shape(self.world_size, given), given)
        call = Call(ALL_GATHER, given.ptr, result.ptr, given.count, given.dtype)
        return self._call(call, given, result, async_op)

    @overload
    def scatter(
        self, x: np.ndarray[Any, D], src: int = 0, *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def scatter(
        self, x: np.ndarray[Any, D], src: int = 0, *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def scatter(self, x: Any = None, src: int = 0, *, out: Any = None, async_op: bool = False) -> Any: ...
    def scatter(self, x: Any = None, src: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """Split rank `src`'s `x` along axis 0, as by numpy.array_split.

        Args:
            x: used on rank `src` alone. Elsewhere it may be None, and the part is then a NumPy array; an array passed
                there only determines the kind of array of the part.

        Returns:
            This rank's part.

        Example:
            >>> part = group.scatter(np.arange(5) if group.rank == 0 else None)
            >>> part.tolist() == [[0, 1, 2], [3, 4]][group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_scatter_rows(self, x, None, src, out, array_for_part, True)):
            return work
        if not async_op:
            own_part = self._shortcuts.scatter_rows(x, None, src, out, array_for_part, True)
            if own_part is not NOT_TAKEN:
                return own_part
        return scatter_rows(self, x, None, src, out, async_op)

    @overload
    def reduce_scatter(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def reduce_scatter(
        self, x: np.ndarray[Any, D], op: Op = "sum", *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def reduce_scatter(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any: ...
    def reduce_scatter(self, x: Any, op: Op = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Reduce `x` over the ranks and split axis 0 as by numpy.array_split.

        Args:
            op: as for all_reduce, but not "minloc" and "maxloc".

        Returns:
            This rank's part.

        Example:
            >>> part = group.reduce_scatter(np.arange(4))
            >>> part.tolist() == [[0, 2], [4, 6]][group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_reduce_scatter_result(self, x, op, out)):
            return work
        if not async_op and (own_part := self._shortcuts.reduce_scatter_result(x, op, out)) is not NOT_TAKEN:
            return own_part
        given = check_axis_0(source(x))
        if ops.is_composed(op):
            rows = divided(given.shape[0], self.world_size)
            return self._run(composed_ops.reduce_scatter(self, given, op, rows, out), given, async_op)
        reduce_op = ops.resolve(op, given.dtype)
        result = buffers.result(out, self._part(given.shape), given)
        if given.shape[0] % self.world_size == 0:
            call = Call(REDUCE_SCATTER, given.ptr, result.ptr, result.count, given.dtype, reduce_op)
        else:
            counts = split_counts(given.shape, self.world_size)
            call = Call(REDUCE_SCATTER_V, given.ptr, result.ptr, 0, given.dtype, reduce_op, counts=counts)
        return self._call(call, given, result, async_op)

    @overload
    def all_to_all(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[False] = False
    ) -> np.ndarray[Any, D]: ...
    @overload
    def all_to_all(
        self, x: np.ndarray[Any, D], *, out: Any = None, async_op: Literal[True]
    ) -> Work[np.ndarray[Any, D]]: ...
    @overload
    def all_to_all(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any: ...
    def all_to_all(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """Split axis 0 of `x` as by numpy.array_split and send part j to rank j.

        x has the same shape on every rank, so all received parts are as long as this rank's own.

        Returns:
            The parts received, concatenated by rank along axis 0.

        Raises:
            MismatchError: the ranks' shapes differ.

        Example:
            >>> group.all_to_all(np.array([10, 11]) + 10 * group.rank).tolist() == [10 + group.rank, 20 + group.rank]
            True
        """
        if async_op and (work := self._shortcuts.start_all_to_all_result(self, x, out)):
            return work
        if not async_op and (exchanged := self._shortcuts.all_to_all_result(x, out)) is not NOT_TAKEN:
            return exchanged
        given = check_axis_0(source(x))
        world = self.world_size
        own = self._part(given.shape)
        result = buffers.result(out, (own[0] * world, *own[1:]), given)
        if given.shape[0] % world == 0:
            call = Call(ALL_TO_ALL, given.ptr, result.ptr, given.count // world, given.dtype)
        else:
            counts = split_counts(given.shape, world)
            each = [counts[self.rank]] * world
            call = Call(ALL_TO_ALL_V, given.ptr, result.ptr, 0, given.dtype, send_counts=counts, recv_counts=each)
        return self._call(call, given, result, async_op)
