"""Reductions composed of an engine's operations: functions of two arrays, locations of extremes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rankwise.arrays import buffers, ops
from rankwise.arrays.base import Buffer, Shape
from rankwise.arrays.buffers import scratch, source
from rankwise.arrays.numpy import address
from rankwise.arrays.ops import LOCATING, Located, Op
from rankwise.contract.errors import RankwiseError
from rankwise.contract.operations import ALL_REDUCE, GATHER, REDUCE, Call
from rankwise.contract.types import DTYPE_NAMES, DType, ReduceOp
from rankwise.group.base import GroupBase

T = TypeVar("T")


def reduce(group: GroupBase, x: Any, buffer: Buffer, op: Op | Located, dst: int | None) -> Callable[[], Any]:
    """Check the arguments of a reduce to rank `dst` (None: an all_reduce) with a composed op.

    buffer: x's buffer. Returns a function that does the work after the buffer is packed, as do the other
    functions here.
    """
    if isinstance(op, str):
        return _locating(group, x, buffer, LOCATING[op.lower()], dst)
    reduce = reduction(group, buffer, op, dst)

    def body() -> Any:
        result = reduce()
        if dst not in (None, group.rank):
            return None
        copy(buffer, result)
        return buffer.finish()

    return body


def reduce_scatter(group: GroupBase, given: Buffer, op: Op, rows: Sequence[int], out: Any) -> Callable[[], Any]:
    """The same for a reduce_scatter in which rank i receives the next rows[i] rows, this rank in `out`."""
    result = group._on_host(buffers.result(out, (rows[group.rank], *given.shape[1:]), given))
    on_host = group._on_host(given)
    reduce = reduction(group, on_host, op, None)
    row_bytes = given.nbytes // max(1, given.shape[0])

    def body() -> Any:
        if on_host is not given:
            on_host.pack()
        whole = reduce()
        ctypes.memmove(result.ptr, whole.ptr + sum(rows[: group.rank]) * row_bytes, result.nbytes)
        return result.finish()

    return body


def reduction(group: GroupBase, given: Buffer, op: Op, dst: int | None) -> Callable[[], Buffer]:
    """Check `op`; returns a function that reduces `given` into new memory on rank `dst` (None: on all ranks).

    On other ranks the content of the memory is undefined.
    """
    function = _function(op, given.dtype)

    def fold() -> Buffer:
        result = scratch(given.shape, given.dtype)
        root = 0 if dst is None else dst

        def compute() -> None:
            value = rows[0]
            for row in rows[1:]:
                value = function(value, row)
            copy(result, _checked(value, given, function))

        with group._one_operation:
            rows = gathered(group, given, root)
            failure = on_root(group, root, compute) if dst is None else None
            if dst is None and failure is None:
                group._collectives.broadcast(result.ptr, result.count, result.dtype, root)
        if failure is not None:
            raise failure
        if dst == group.rank:
            compute()
        return result

    return fold


def gathered(group: GroupBase, given: Buffer, root: int, shape: Shape | None = None, part_of: str = "") -> list[Any]:
    """Every rank's array, by rank, on `root`; an empty list elsewhere. shape, part_of: as in Call."""
    call = Call(GATHER, given.ptr, 0, given.count, given.dtype, None, root, shape=shape, part_of=part_of)
    if group.rank != root:
        group._collectives.run(call)
        return []
    # Flat rows, since the array may already have the maximal number of dimensions.
    memory = given.kind.empty((group.world_size, given.count), given.dtype)
    group._collectives.run(call._replace(recv=memory.ptr))
    return [row.reshape(given.shape) for row in memory.finish()]


def on_root(group: GroupBase, root: int, compute: Callable[[], None]) -> Exception | None:
    """Run `compute` on rank `root`. If it raises, returns its error on root and a RankwiseError on the other ranks."""
    failure: Exception | None = None
    text = b""
    if group.rank == root:
        try:
            compute()
        except Exception as error:  # noqa: BLE001 - returned below, after the other ranks have been notified
            failure = error
            text = f"rank {root}: op raised {type(error).__name__}: {error}".encode(errors="replace")
    length = np.array(len(text), np.int64)
    group._collectives.broadcast(address(length), 1, DType.I64, root)
    if not length:
        return None
    # The text on root, and room for it elsewhere.
    words = np.frombuffer(bytearray(text or int(length)), np.uint8)
    group._collectives.broadcast(address(words), words.size, DType.U8, root)
    return failure or RankwiseError(words.tobytes().decode(errors="replace"))


def function_scan(group: GroupBase, given: Buffer, op: Op, *, exclusive: bool) -> Callable[[], Buffer | None]:
    """Check the function `op`; returns a function for this rank's scan result, None on rank 0 of an exscan."""
    function = _function(op, given.dtype)

    def scan() -> Buffer | None:
        whole = scratch((group.world_size if group.rank == 0 else 0, *given.shape), given.dtype)

        def compute() -> None:
            value: Any = None
            for rank, row in enumerate(rows):
                value = row if rank == 0 else function(value, row)
                at = rank + exclusive
                if at < len(rows):
                    buffer = _checked(value, given, function)  # keeps its memory alive until it is copied
                    ctypes.memmove(whole.ptr + at * given.nbytes, buffer.ptr, given.nbytes)

        result = scratch(given.shape, given.dtype)
        with group._one_operation:
            rows = gathered(group, given, 0, given.shape, "exscan" if exclusive else "scan")
            failure = on_root(group, 0, compute)
            if failure is None:
                group._collectives.scatter(whole.ptr if group.rank == 0 else 0, result.ptr, given.count, given.dtype, 0)
        if failure is not None:
            raise failure
        return None if exclusive and group.rank == 0 else result

    return scan


def copy(to: Buffer, origin: Buffer) -> None:
    """Copy between buffers of the same dtype and shape."""
    ctypes.memmove(to.ptr, origin.ptr, to.nbytes)


def _function(op: Op, dtype: DType) -> Callable[[Any, Any], Any]:
    if callable(op) and not isinstance(op, ReduceOp):
        return op
    ops.resolve(op, dtype)  # raises an error that lists the valid ops
    raise AssertionError(f"op={op!r} is not composed")


def _checked(value: Any, given: Buffer, function: Callable[..., Any]) -> Buffer:
    """A function's return value as a buffer. Raises TypeError if it is not an array like its arguments."""
    got = source(value, "op's result")
    if got.dtype is not given.dtype or got.shape != given.shape:
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"op={name}: expected it to return {DTYPE_NAMES[given.dtype]}{given.shape} as it takes, "
            f"got {DTYPE_NAMES[got.dtype]}{got.shape}"
        )
    got.pack()
    return got


def _locating(group: GroupBase, x: Any, buffer: Buffer, op: ReduceOp, dst: int | None) -> Callable[[], Any]:
    """The extreme, and the lowest rank that has it; of several NaNs, the lowest rank's."""
    ops.resolve(op, buffer.dtype)
    values = buffer.kind.empty(buffer.shape, buffer.dtype)
    ranks = buffer.kind.empty(buffer.shape, DType.I64)

    def body() -> Any:
        copy(values, buffer)
        with group._one_operation:
            group._collectives.all_reduce(values.ptr, values.count, values.dtype, op)
            own, best = _comparable(buffer.array), _comparable(values.array)
            ranks.array[...] = group.world_size
            ranks.array[(own == best) | ((own != own) & (best != best))] = group.rank
            how = ALL_REDUCE if dst is None else REDUCE
            group._collectives.run(Call(how, ranks.ptr, ranks.ptr, ranks.count, DType.I64, ReduceOp.MIN, dst))
        if dst not in (None, group.rank):
            return None
        copy(buffer, values)
        number = isinstance(x, (bool, int, float, np.generic))
        return buffer.finish(), int(ranks.array[()]) if number else ranks.finish()

    return body


def _comparable(array: Any) -> Any:
    """Convert torch's 8-bit floats, which it cannot compare, to float32, which represents them exactly."""
    narrow = not isinstance(array, np.ndarray) and array.is_floating_point() and array.element_size() == 1
    return array.float() if narrow else array
