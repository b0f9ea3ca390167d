"""Collectives on buffers: what each does in general, and at the end their methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankwise.contract.operations import EXSCAN, SCAN, Call, divided
from rankwise.contract.types import DType
from rankwise.frontends.mpi4py.buffers import Bytes
from rankwise.frontends.mpi4py.context import Context
from rankwise.frontends.mpi4py.errors import error
from rankwise.frontends.mpi4py.handles import new
from rankwise.frontends.mpi4py.messages import Messages
from rankwise.frontends.mpi4py.ops import SUM, Op, Operation, checked
from rankwise.frontends.mpi4py.requests import Pending, Persistent, Prequest, Request
from rankwise.frontends.mpi4py.specs import (
    NO_BLOCKS,
    NOT_PLAIN,
    Blocks,
    address,
    check_equal,
    divided_array,
    every,
    in_place,
    ndarray,
    per_rank,
    plain,
    scratch,
    simple,
    vector,
)

Body = Callable[[], None]
"""What a collective does once its arguments are known."""

Parse = Callable[[Any, bool, int], Blocks]
"""How a buffer with a block for each rank is specified: `simple`, `vector` or `per_rank`."""


def _move(given: Blocks, into: Blocks, method: Callable[..., Any], *arguments: Any) -> None:
    """Pack what is given, call method(address, address of the room, *arguments), and unpack what has come.

    given, into: NO_BLOCKS on a rank that sends or receives nothing. method: may return how many bytes have come.
    """
    data, room = given.packed(), into.room()
    if np.may_share_memory(data, room):
        data = data.copy()
    into.unpack(room[: method(address(data), address(room), *arguments)])


def _bcast(c: Context, buf: Any, root: int = 0) -> Body:
    root = c.root(root)
    blocks = simple(buf, root != c.rank)
    dtype = blocks.dtype

    def body() -> None:
        data = blocks.packed() if root == c.rank else blocks.room()
        c.collectives.broadcast(address(data), data.size // dtype.itemsize, dtype, root)
        if root != c.rank:
            blocks.unpack(data)

    return body


def _gather(c: Context, sendbuf: Any, recvbuf: Any, root: int = 0, *, parse: Parse) -> Body:
    root = c.root(root)
    is_root = root == c.rank
    into = parse(recvbuf, True, c.size) if is_root else NO_BLOCKS
    own = into.block(root) if is_root and in_place(sendbuf) else simple(sendbuf, False)
    if is_root:
        _check_room(into.sizes[root], own.nbytes)
    dtype = own.dtype
    if parse is simple:
        return partial(_move, own, into, c.collectives.gather, own.nbytes // dtype.itemsize, dtype, root)
    return partial(_move, own, into, _gather_blocks, c, own.nbytes, into.sizes or [0] * c.size, dtype, root)


def _gather_blocks(data: int, room: int, c: Context, nbytes: int, sizes: list[int], dtype: DType, root: int) -> None:
    """nbytes: of this rank. sizes: the bytes of each rank, which only the root knows; the others give zeros."""
    if not c.shortcuts.gather_blocks(data, nbytes, root, room, sizes):
        known = c.group.broadcast(np.array(sizes, np.int64), root).tolist()
        known[c.rank] = nbytes
        c.collectives.gather_v(data, room, _elements(known, dtype), dtype, root)


def _scatter(c: Context, sendbuf: Any, recvbuf: Any, root: int = 0, *, parse: Parse) -> Body:
    root = c.root(root)
    is_root = root == c.rank
    given = parse(sendbuf, False, c.size) if is_root else NO_BLOCKS
    stays = is_root and in_place(recvbuf)
    own = given.block(root) if stays else simple(recvbuf, True)
    if is_root and parse is simple:
        _check_room(given.sizes[root], own.nbytes)
    into, dtype = scratch(own) if stays else own, own.dtype
    if parse is simple:
        return partial(_move, given, into, c.collectives.scatter, own.nbytes // dtype.itemsize, dtype, root)
    return partial(_move, given, into, _scatter_blocks, c, own.nbytes, given.sizes or [0] * c.size, dtype, root)


def _scatter_blocks(data: int, room: int, c: Context, nbytes: int, sizes: list[int], dtype: DType, root: int) -> int:
    """nbytes: of the room. sizes: as in _gather_blocks. Returns the bytes of this rank."""
    own = c.shortcuts.scatter_blocks(data, sizes, root, room, nbytes)
    if own is None:
        known = c.group.broadcast(np.array(sizes, np.int64), root).tolist()
        # If it has too little room, no such scatter is possible, which the other ranks must learn.
        known[c.rank] = own = min(known[c.rank], nbytes)
        c.collectives.scatter_v(data, room, _elements(known, dtype), dtype, root)
    return own


def _allgather(c: Context, sendbuf: Any, recvbuf: Any, *, parse: Parse) -> Body:
    into = parse(recvbuf, True, c.size)
    own = into.block(c.rank) if in_place(sendbuf) else simple(sendbuf, False)
    _check_room(into.sizes[c.rank], own.nbytes)
    dtype, sizes = own.dtype, [*into.sizes]
    sizes[c.rank] = own.nbytes
    counts = _elements(sizes, dtype)
    if parse is simple:
        return partial(_move, own, into, c.collectives.all_gather, counts[c.rank], dtype)
    return partial(_move, own, into, c.collectives.all_gather_v, counts, dtype)


def _alltoall(c: Context, sendbuf: Any, recvbuf: Any, *, parse: Parse) -> Body:
    into = parse(recvbuf, True, c.size)
    given = into if in_place(sendbuf) else parse(sendbuf, False, c.size)
    _check_room(into.sizes[c.rank], given.sizes[c.rank])
    dtype = DType.U8 if parse is per_rank else given.dtype
    sends, receives = _elements(given.sizes, dtype), _elements(into.sizes, dtype)
    if parse is simple:
        return partial(_move, given, into, c.collectives.all_to_all, sends[0], dtype)
    return partial(_move, given, into, c.collectives.all_to_all_v, sends, receives, dtype)


# ---- reductions: by the engine, or, if it does not have the operation, by folding the ranks' data here ----


def _folded(c: Context, row: Operation, own: Blocks, ranks: int, root: int | None = None) -> Bytes:
    """The reduction over the first `ranks` ranks; of none, no bytes. root: the rank that needs it; None: all do."""
    data = own.packed()
    room = np.empty(data.size * c.size if root in (None, c.rank) else 0, np.uint8)
    if root is None:
        c.collectives.all_gather(address(data), address(room), data.size, DType.U8)
    else:
        c.collectives.gather(address(data), address(room), data.size, DType.U8, root)
    parts = [room[i * data.size : (i + 1) * data.size] for i in range(ranks)]
    return row.folded(parts, own.layout) if parts else room[:0]


def _reduce(c: Context, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Body:
    return _reducing(c, sendbuf, recvbuf, op, root=c.root(root))


def _reducing(c: Context, sendbuf: Any, recvbuf: Any, op: Op = SUM, *, root: int | None) -> Body:
    """root: None if every rank gets the result."""
    receives = root in (None, c.rank)
    into = simple(recvbuf, True) if receives else NO_BLOCKS
    own = _operand(sendbuf, into) if receives else simple(sendbuf, False)
    row, dtype = checked(op, own.layout), own.dtype
    reduce_op = row.engine_op(own.layout.dtype)
    if reduce_op is None:
        return lambda: into.unpack(_folded(c, row, own, c.size if receives else 0, root))

    method: Any = c.collectives.all_reduce if root is None else c.collectives.reduce
    rest = () if root is None else (root,)

    def body() -> None:
        data = own.packed()
        if receives:
            room = into.room()
            room[:] = data
            data = room
        method(address(data), data.size // dtype.itemsize, dtype, reduce_op, *rest)
        if receives:
            into.unpack(data)

    return body


def _reduce_scatter_block(c: Context, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Body:
    if in_place(sendbuf):
        given = simple(recvbuf, True, c.size)
        return _dividing(c, given, given.block(0), lambda: given.sizes, op)
    into, given = simple(recvbuf, True), simple(sendbuf, False, c.size)
    check_equal(given.block(0), into)
    return _dividing(c, given, into, lambda: given.sizes, op)


def _reduce_scatter(
    c: Context, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
) -> Body:
    if in_place(sendbuf):
        given = simple(recvbuf, True)
        counts = divided(given.counts[0], c.size) if recvcounts is None else [int(count) for count in recvcounts]
        into = Blocks(given.memory, [given.layout], [counts[c.rank]], [0])
        return _dividing(c, given, into, lambda: [count * given.layout.size for count in counts], op)
    into, given = simple(recvbuf, True), simple(sendbuf, False)
    if recvcounts is None:  # each rank knows its own
        own = np.array(into.nbytes, np.int64)
        return _dividing(c, given, into, lambda: c.group.all_gather(own).tolist(), op)
    sizes = [int(count) * given.layout.size for count in recvcounts]
    _check_sum(sizes, given)
    if sizes[c.rank] < into.nbytes:
        into = Blocks(into.memory, [into.layout], [sizes[c.rank] // into.layout.size], into.starts)
    return _dividing(c, given, into, lambda: sizes, op)


def _check_sum(sizes: list[int], given: Blocks) -> None:
    if sum(sizes) != given.nbytes:
        raise ValueError(
            f"message: the counts add up to {sum(sizes)} bytes, the buffer that is sent has {given.nbytes}"
        )


def _dividing(c: Context, given: Blocks, into: Blocks, asked: Callable[[], list[int]], op: Op) -> Body:
    """asked: returns the bytes of each rank's part of the result; it may be a collective."""
    row, dtype = checked(op, given.layout), given.dtype
    reduce_op = row.engine_op(given.layout.dtype)

    def body() -> None:
        sizes = asked()
        _check_sum(sizes, given)
        if reduce_op is None:
            start = sum(sizes[: c.rank])
            into.unpack(_folded(c, row, given, c.size)[start : start + sizes[c.rank]])
        else:
            _move(given, into, c.collectives.reduce_scatter_v, _elements(sizes, dtype), dtype, reduce_op)

    return body


def _scan(c: Context, sendbuf: Any, recvbuf: Any, op: Op = SUM, *, inclusive: bool) -> Body:
    """The reduction over the ranks before this one, and this one if inclusive; over none, the buffer stays as it is."""
    ranks = c.rank + inclusive
    into = simple(recvbuf, True)
    own = _operand(sendbuf, into)
    row, dtype = checked(op, own.layout), own.dtype
    reduce_op = row.engine_op(own.layout.dtype)
    if reduce_op is None or not c.comm.scans:
        return lambda: into.unpack(_folded(c, row, own, ranks))
    call = Call(SCAN if inclusive else EXSCAN, 0, 0, own.nbytes // dtype.itemsize, dtype, reduce_op)
    return partial(
        _move,
        own,
        into if ranks else scratch(into),
        lambda data, room: c.collectives.run(call._replace(send=data, recv=room)),
    )


def _operand(sendbuf: Any, into: Blocks) -> Blocks:
    """What this rank contributes. Raises ValueError if it does not fit what it receives."""
    if in_place(sendbuf):
        return into
    operand = simple(sendbuf, False)
    check_equal(operand, into)
    return operand


def _check_room(block: int, other: int) -> None:
    """Raise ERR_TRUNCATE if this rank's block in the one buffer is smaller than its data in the other."""
    if other > block:
        raise error("ERR_TRUNCATE", f"this rank's block has {block} bytes, but its other buffer has {other}")


def _elements(sizes: Sequence[int], dtype: DType) -> list[int]:
    item = dtype.itemsize
    return [size // item for size in sizes]


# ---- the collectives ----


def _scanned(sendbuf: Any, recvbuf: Any, op: Op) -> tuple[Any, ...]:
    into = _summable(recvbuf)
    return into.copy() if in_place(sendbuf) and into is not None else plain(sendbuf), _engine_name(op), into


def _summable(spec: Any) -> Any:
    """`plain`, unless MPI defines for this datatype other operations than the engine does for the array's dtype."""
    x = plain(spec)
    if x is None or x.dtype.kind == "b" or (type(spec) is not ndarray and "SUM" not in spec[-1]._h.ops):
        return None
    return x


def _engine_name(op: Op) -> str | None:
    """The name of the reduction, if the engine has it."""
    return ((isinstance(op, Op) and op._h) or Op(op)._live()).name


def _collective(shortcut: str, prepare: Callable[..., Body]) -> Callable[[Callable[..., Any]], Any]:
    """Make a collective's methods: `Bcast`, which blocks; with its attributes `started`, which returns a Request, for
    `Ibcast`, and `persistent`, which returns a Prequest, for `Bcast_init`.

    What it decorates is called with the method's arguments, and returns the shortcut's for plain arrays, or None for
    anything else. What `prepare` returns is called, or started, where the shortcut does nothing.
    """

    def methods(arguments: Callable[..., tuple[Any, ...] | None]) -> Any:
        # args[0] is the communicator. With a parameter for it, Python would split the tuple and join it again in each
        # call, which takes longer than the rest.
        def blocking(*args: Any, **options: Any) -> None:
            c = args[0]._h or args[0]._live()
            given = arguments(*args, **options) if options else arguments(*args)
            if given is None or not c.calls[shortcut](*given):
                c.comm.call(prepare(c, *args[1:], **options))

        def started(*args: Any, **options: Any) -> Request:
            c = args[0]._h or args[0]._live()
            given = arguments(*args, **options) if options else arguments(*args)
            request = new(Request)
            request._h = (given is not None and c.starts[shortcut](*given)) or _begin(
                c, prepare(c, *args[1:], **options)
            )
            return request

        def persistent(self: Messages, *args: Any, info: Any = None, **options: Any) -> Prequest:
            c = self._live()
            return Prequest._of(Persistent(partial(_begin, c, prepare(c, *args, **options))))

        name = arguments.__name__
        method: Any = blocking
        method.started, method.persistent = started, persistent
        for label, each in {name: blocking, f"I{name.lower()}": started, f"{name}_init": persistent}.items():
            each.__name__, each.__qualname__ = label, f"Comm.{label}"
        return method

    return methods


def _begin(c: Context, body: Body) -> Pending:
    return Pending(c.group.pending.own(c.comm.start_call(body, at_once=False)))


class BufferCollectives(Messages):
    """The collectives on buffers: each method here, the one that starts it, and the one for a persistent request."""

    @_collective("barrier", lambda c: c.barrier)
    def Barrier(self) -> Any:
        return ()

    Ibarrier, Barrier_init = Barrier.started, Barrier.persistent

    @_collective("broadcast_array", _bcast)
    def Bcast(self, buf: Any, root: int = 0) -> Any:
        return plain(buf), root

    Ibcast, Bcast_init = Bcast.started, Bcast.persistent

    @_collective("gather_parts_array", partial(_gather, parse=simple))
    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        return plain(sendbuf), root, every(recvbuf) if root == self._live().rank else None

    Igather, Gather_init = Gather.started, Gather.persistent

    @_collective("gather_v_array", partial(_gather, parse=vector))
    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        return plain(sendbuf), root, *(divided_array(recvbuf) if root == self._live().rank else NOT_PLAIN)

    Igatherv, Gatherv_init = Gatherv.started, Gatherv.persistent

    @_collective("scatter_parts_array", partial(_scatter, parse=simple))
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        return every(sendbuf) if root == self._live().rank else None, root, plain(recvbuf)

    Iscatter, Scatter_init = Scatter.started, Scatter.persistent

    @_collective("scatter_v_array", partial(_scatter, parse=vector))
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Any:
        return *(divided_array(sendbuf) if root == self._live().rank else NOT_PLAIN), root, plain(recvbuf)

    Iscatterv, Scatterv_init = Scatterv.started, Scatterv.persistent

    @_collective("all_gather_parts_array", partial(_allgather, parse=simple))
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> Any:
        return plain(sendbuf), every(recvbuf)

    Iallgather, Allgather_init = Allgather.started, Allgather.persistent

    @_collective("all_gather_v_array", partial(_allgather, parse=vector))
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> Any:
        return plain(sendbuf), *divided_array(recvbuf)

    Iallgatherv, Allgatherv_init = Allgatherv.started, Allgatherv.persistent

    @_collective("all_to_all_array", partial(_alltoall, parse=simple))
    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> Any:
        return every(sendbuf), every(recvbuf)

    Ialltoall, Alltoall_init = Alltoall.started, Alltoall.persistent

    @_collective("all_to_all_v_array", partial(_alltoall, parse=vector))
    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> Any:
        return *divided_array(sendbuf), *divided_array(recvbuf)

    Ialltoallv, Alltoallv_init = Alltoallv.started, Alltoallv.persistent

    @_collective("", partial(_alltoall, parse=per_rank))
    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> Any:
        return None

    Ialltoallw, Alltoallw_init = Alltoallw.started, Alltoallw.persistent

    @_collective("reduce_array", _reduce)
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Any:
        x, given = _summable(sendbuf), None
        if root == self._live().rank:
            x, given = _summable(recvbuf), x
            if given is None and not in_place(sendbuf):
                return None
        return x, root, _engine_name(op), given

    Ireduce, Reduce_init = Reduce.started, Reduce.persistent

    @_collective("all_reduce_array", partial(_reducing, root=None))
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Any:
        given = plain(sendbuf)
        if given is None and not in_place(sendbuf):
            return None
        return _summable(recvbuf), _engine_name(op), given

    Iallreduce, Allreduce_init = Allreduce.started, Allreduce.persistent

    @_collective("reduce_scatter_v_array", _reduce_scatter_block)
    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Any:
        into = _summable(recvbuf)
        return None if into is None else (_summable(sendbuf), _engine_name(op), into, [into.size] * self._live().size)

    Ireduce_scatter_block, Reduce_scatter_block_init = Reduce_scatter_block.started, Reduce_scatter_block.persistent

    @_collective("reduce_scatter_v_array", _reduce_scatter)
    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> Any:
        return _summable(sendbuf), _engine_name(op), _summable(recvbuf), recvcounts

    Ireduce_scatter, Reduce_scatter_init = Reduce_scatter.started, Reduce_scatter.persistent

    @_collective("scan_array", partial(_scan, inclusive=True))
    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Any:
        return _scanned(sendbuf, recvbuf, op)

    Iscan, Scan_init = Scan.started, Scan.persistent

    @_collective("exscan_array", partial(_scan, inclusive=False))
    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Any:
        return _scanned(sendbuf, recvbuf, op)

    Iexscan, Exscan_init = Exscan.started, Exscan.persistent
