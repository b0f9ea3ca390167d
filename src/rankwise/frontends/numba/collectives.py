"""The collectives and messages of a group, in compiled code: they store their results in arrays that they are given."""

from __future__ import annotations

import numpy as np

from rankwise.frontends.numba.library import (
    ADDRESS,
    COUNT,
    DOUBLE,
    HANDLE,
    INT,
    Array,
    check,
    compiled,
    dtype,
    external,
    integer,
    integers,
    op_number,
    rank,
    source,
    started,
    target,
    world_size,
)

_barrier = external("barrier", HANDLE)
_broadcast = external("broadcast", HANDLE, ADDRESS, COUNT, INT, INT)
_all_reduce = external("all_reduce", HANDLE, ADDRESS, COUNT, INT, INT)
_reduce = external("reduce", HANDLE, ADDRESS, COUNT, INT, INT, INT)
_all_gather = external("all_gather", HANDLE, ADDRESS, ADDRESS, COUNT, INT)
_gather = external("gather", HANDLE, ADDRESS, ADDRESS, COUNT, INT, INT)
_scatter = external("scatter", HANDLE, ADDRESS, ADDRESS, COUNT, INT, INT)
_reduce_scatter = external("reduce_scatter", HANDLE, ADDRESS, ADDRESS, COUNT, INT, INT)
_all_to_all = external("all_to_all", HANDLE, ADDRESS, ADDRESS, COUNT, INT)
_all_gather_v = external("all_gather_v", HANDLE, ADDRESS, ADDRESS, ADDRESS, INT)
_gather_v = external("gather_v", HANDLE, ADDRESS, ADDRESS, ADDRESS, INT, INT)
_scatter_v = external("scatter_v", HANDLE, ADDRESS, ADDRESS, ADDRESS, INT, INT)
_reduce_scatter_v = external("reduce_scatter_v", HANDLE, ADDRESS, ADDRESS, ADDRESS, INT, INT)
_all_to_all_v = external("all_to_all_v", HANDLE, ADDRESS, ADDRESS, ADDRESS, ADDRESS, INT)


@compiled
def _same(send: Array, recv: Array, send_size: int, recv_size: int) -> None:
    """Check that two arrays have the same dtype, and that one has as many elements as the other."""
    if dtype(send) != dtype(recv):
        raise ValueError("send and recv: arrays of different dtypes given, expected the same")
    if send_size != recv_size:
        raise ValueError("send and recv: one must have as many elements as the other for each rank")


@compiled
def _checked(counts: Array, handle: int, needed: int, size: int) -> None:
    """Check that there is a count for each rank; `size` is that of an array for `needed` elements."""
    if counts.size != world_size(handle):
        raise ValueError("counts: expected one for each rank")
    if size < needed:
        raise ValueError("counts: an array is too short for them")


@compiled
def _blocks(counts: Array, handle: int, block: Array, whole: Array, used: bool) -> Array:
    """The counts as C takes them. block: this rank's, at least; whole: all ranks' blocks, if it is used."""
    _same(block, whole, 0, 0)
    own: Array = integers(counts, "counts")
    _checked(own, handle, own.sum() if used else np.uint64(0), whole.size)
    _checked(own, handle, own[rank(handle)], block.size)
    return own


@compiled
def barrier(handle: int) -> None:
    """Return when all ranks have come."""
    check(_barrier(handle))


@compiled
def broadcast(handle: int, x: Array, src: int = 0) -> None:
    """Copy the array of rank `src` into every rank's, in place."""
    check(_broadcast(handle, target(x, "x"), x.size, dtype(x), integer(src, "src")))


@compiled
def all_reduce(handle: int, x: Array, op: object = "sum") -> None:
    """Reduce the ranks' arrays, in place; every rank has the result."""
    check(_all_reduce(handle, target(x, "x"), x.size, dtype(x), op_number(op, x)))


@compiled
def reduce(handle: int, x: Array, dst: int = 0, op: object = "sum") -> None:
    """Reduce the ranks' arrays, in place on rank `dst`."""
    check(_reduce(handle, target(x, "x"), x.size, dtype(x), op_number(op, x), integer(dst, "dst")))


@compiled
def all_gather(handle: int, send: Array, recv: Array) -> None:
    """Store every rank's `send` in `recv`, one after the other."""
    _same(send, recv, send.size * world_size(handle), recv.size)
    check(_all_gather(handle, source(send, "send"), target(recv, "recv"), send.size, dtype(send)))


@compiled
def gather(handle: int, send: Array, recv: Array, dst: int = 0) -> None:
    """The same on rank `dst` only; elsewhere `recv` is not used, and may be of any length."""
    if rank(handle) == dst:
        _same(send, recv, send.size * world_size(handle), recv.size)
    check(_gather(handle, source(send, "send"), target(recv, "recv"), send.size, dtype(send), integer(dst, "dst")))


@compiled
def scatter(handle: int, send: Array, recv: Array, src: int = 0) -> None:
    """Store this rank's part of the `send` of rank `src`; elsewhere `send` is not used, and may be of any length."""
    if rank(handle) == src:
        _same(send, recv, send.size, recv.size * world_size(handle))
    check(_scatter(handle, source(send, "send"), target(recv, "recv"), recv.size, dtype(recv), integer(src, "src")))


@compiled
def reduce_scatter(handle: int, send: Array, recv: Array, op: object = "sum") -> None:
    """Reduce the ranks' `send`, and store this rank's part of the result in `recv`."""
    _same(send, recv, send.size, recv.size * world_size(handle))
    check(
        _reduce_scatter(handle, source(send, "send"), target(recv, "recv"), recv.size, dtype(send), op_number(op, send))
    )


@compiled
def all_to_all(handle: int, send: Array, recv: Array) -> None:
    """Send part i of `send` to rank i, and store its part for this rank as part i of `recv`."""
    _same(send, recv, send.size, recv.size)
    if send.size % world_size(handle) != 0:
        raise ValueError("send: expected as many elements for each rank")
    count = send.size // world_size(handle)
    check(_all_to_all(handle, source(send, "send"), target(recv, "recv"), count, dtype(send)))


@compiled
def all_gather_v(handle: int, send: Array, recv: Array, counts: Array) -> None:
    """all_gather in which rank i sends counts[i] elements; all ranks pass the same counts."""
    own = _blocks(counts, handle, send, recv, True)
    check(_all_gather_v(handle, source(send, "send"), target(recv, "recv"), own.ctypes.data, dtype(send)))


@compiled
def gather_v(handle: int, send: Array, recv: Array, counts: Array, dst: int = 0) -> None:
    """The same on rank `dst` only; elsewhere `recv` is not used."""
    own = _blocks(counts, handle, send, recv, rank(handle) == dst)
    check(
        _gather_v(handle, source(send, "send"), target(recv, "recv"), own.ctypes.data, dtype(send), integer(dst, "dst"))
    )


@compiled
def scatter_v(handle: int, send: Array, recv: Array, counts: Array, src: int = 0) -> None:
    """scatter in which rank i receives counts[i] elements; all ranks pass the same counts."""
    own = _blocks(counts, handle, recv, send, rank(handle) == src)
    check(
        _scatter_v(
            handle, source(send, "send"), target(recv, "recv"), own.ctypes.data, dtype(recv), integer(src, "src")
        )
    )


@compiled
def reduce_scatter_v(handle: int, send: Array, recv: Array, counts: Array, op: object = "sum") -> None:
    """reduce_scatter in which rank i receives counts[i] elements; all ranks pass the same counts."""
    own = _blocks(counts, handle, recv, send, True)
    check(
        _reduce_scatter_v(
            handle, source(send, "send"), target(recv, "recv"), own.ctypes.data, dtype(send), op_number(op, send)
        )
    )


@compiled
def all_to_all_v(handle: int, send: Array, recv: Array, send_counts: Array, recv_counts: Array) -> None:
    """all_to_all with send_counts[i] elements to rank i, and recv_counts[i] from it."""
    _same(send, recv, 0, 0)
    to, of = integers(send_counts, "send_counts"), integers(recv_counts, "recv_counts")
    _checked(to, handle, to.sum(), send.size)
    _checked(of, handle, of.sum(), recv.size)
    check(
        _all_to_all_v(handle, source(send, "send"), target(recv, "recv"), to.ctypes.data, of.ctypes.data, dtype(send))
    )


# ---- messages between two ranks ----

_send = external("send", HANDLE, ADDRESS, COUNT, INT, INT, INT)
_recv = external("recv", HANDLE, ADDRESS, COUNT, INT, INT, INT, ADDRESS)
_isend = external("isend", HANDLE, ADDRESS, COUNT, INT, INT, INT, ADDRESS)
_irecv = external("irecv", HANDLE, ADDRESS, COUNT, INT, INT, INT, ADDRESS)
_wait = external("wait", ADDRESS, DOUBLE, ADDRESS)


@compiled
def send(handle: int, x: Array, dst: int, tag: int = 0) -> None:
    """Send an array; returns when it may be changed."""
    check(_send(handle, source(x, "x"), x.size, dtype(x), integer(dst, "dst"), integer(tag, "tag")))


@compiled
def recv(handle: int, x: Array, src: int, tag: int = 0) -> None:
    """Receive a message of the array's length and dtype; src and tag may be -1, for any."""
    check(_recv(handle, target(x, "x"), x.size, dtype(x), integer(src, "src"), integer(tag, "tag"), np.uint64(0)))


@compiled
def isend(handle: int, x: Array, dst: int, tag: int = 0) -> Array:
    """Start to send an array, which must live and not change until `wait` of what this returns."""
    request = np.zeros(1, np.int64)
    check(
        _isend(handle, source(x, "x"), x.size, dtype(x), integer(dst, "dst"), integer(tag, "tag"), request.ctypes.data)
    )
    return request


@compiled
def irecv(handle: int, x: Array, src: int, tag: int = 0) -> Array:
    """Start to receive into an array, which must live and not be used until `wait` of what this returns."""
    request = np.zeros(1, np.int64)
    check(
        _irecv(handle, target(x, "x"), x.size, dtype(x), integer(src, "src"), integer(tag, "tag"), request.ctypes.data)
    )
    return request


@compiled
def wait(request: Array) -> None:
    """Return when a message that isend or irecv has started is complete, which it is after the first call."""
    check(_wait(started(request), -1.0, np.uint64(0)))
