"""Messages between two ranks, in compiled code."""

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
    source,
    started,
    target,
)

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
