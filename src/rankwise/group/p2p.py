"""Point-to-point messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers
from rankwise.arrays.base import Buffer
from rankwise.arrays.buffers import source
from rankwise.contract.communicator import ANY, Message
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.work import Work
from rankwise.group.base import GroupBase, integer, nothing
from rankwise.group.work import ArrayWork, Pending, Several

T = TypeVar("T")
D = TypeVar("D", bound=np.dtype[Any])

MAX_TAG = 2**31 - 1


class ReceiveWork(ArrayWork[T]):
    """irecv's Work. Once it is complete, `source` and `tag` describe the message; before that they are None."""

    def __init__(
        self, inner: Work[None], finish: Callable[[], T], pending: Pending, keep: object, source: int, tag: int
    ) -> None:
        self._source, self._tag = source, tag
        super().__init__(inner, finish, pending, keep)

    @property
    def source(self) -> int | None:
        return self._of_message("source", self._source)

    @property
    def tag(self) -> int | None:
        return self._of_message("tag", self._tag)

    def _of_message(self, name: str, wanted: int) -> int | None:
        if self._finish is not None or self.error is not None:
            return None
        found: int = getattr(self._inner, name) if wanted == ANY else wanted
        return found


class PointToPoint(GroupBase):
    """send, recv and related operations. Messages match by (sender, tag), in the order sent."""

    def send(self, x: Any, dst: int, tag: int = 0) -> None:
        """Send `x` to rank `dst`; x may be changed after the call returns. A rank may send to itself.

        >>> if group.rank == 0:
        ...     group.send(np.arange(3), dst=1)
        ... else:
        ...     assert group.recv((3,), src=0, dtype=int).tolist() == [0, 1, 2]
        """
        if not self._send_array(x, dst, tag):
            self.isend(x, dst, tag).wait()

    @overload
    def recv(
        self, x: np.ndarray[Any, D], src: int | None, tag: int | None = 0, *, dtype: Any = None
    ) -> np.ndarray[Any, D]: ...
    @overload
    def recv(self, x: Any, src: int | None, tag: int | None = 0, *, dtype: Any = None) -> Any: ...
    def recv(self, x: Any, src: int | None, tag: int | None = 0, *, dtype: Any = None) -> Any:
        """Receive from rank `src` into the array `x` and return it.

        x may also be a shape, a tuple of ints, for a new array of `dtype` (by default float64; a torch
        dtype gives a tensor). The message must have that many elements of that dtype. With src or tag
        None, the first message from any rank or with any tag is received; the Work of `irecv` has its
        source and tag, and `probe` reports them in advance.

        >>> sending = group.isend(np.full(2, group.rank), dst=1 - group.rank)
        >>> group.recv(np.empty(2, int), src=1 - group.rank).tolist() == [1 - group.rank] * 2
        True
        >>> sending.wait()
        """
        if dtype is None and self._recv_array(x, src, tag):
            return x
        return self.irecv(x, src, tag, dtype=dtype).wait()

    def isend(self, x: Any, dst: int, tag: int = 0) -> Work[None]:
        """Start to send `x`, with its present content, to rank `dst`. x must not change before the Work is done.

        >>> sending = group.isend(np.ones(3), dst=group.rank, tag=5)  # to oneself
        >>> group.recv((3,), src=group.rank, tag=5).tolist()
        [1.0, 1.0, 1.0]
        >>> sending.wait()
        """
        buffer = source(x)
        dst, tag = self._rank(dst, "dst"), _tag(tag)
        self._check_memory(buffer)
        self._pack(buffer)
        inner = self.comm.send(buffer.ptr, buffer.count, buffer.dtype, dst, tag)
        return ArrayWork(inner, nothing, self._pending, (self, buffer))

    @overload
    def irecv(
        self, x: np.ndarray[Any, D], src: int | None, tag: int | None = 0, *, dtype: Any = None
    ) -> ReceiveWork[np.ndarray[Any, D]]: ...
    @overload
    def irecv(self, x: Any, src: int | None, tag: int | None = 0, *, dtype: Any = None) -> ReceiveWork[Any]: ...
    def irecv(self, x: Any, src: int | None, tag: int | None = 0, *, dtype: Any = None) -> ReceiveWork[Any]:
        """Start to receive, as `recv` does. The Work's result is the array; its `source` and `tag` are the message's.

        x holds the message once the Work is done. If the Work was dropped, x holds the message after the
        next blocking `barrier` or after `close`, provided that the message had arrived.

        >>> sending = group.isend(np.full(2, 7.0), dst=group.rank, tag=3)
        >>> work = group.irecv((2,), src=None, tag=None)
        >>> work.wait().tolist(), work.source == group.rank, work.tag
        ([7.0, 7.0], True, 3)
        """
        buffer = buffers.receiver(x, dtype)
        wanted, tag = self._source(src), ANY if tag is None else _tag(tag)
        self._check_any(wanted, tag)
        self._check_memory(buffer)
        self._order(buffer)
        inner = self.comm.recv(buffer.ptr, buffer.count, buffer.dtype, wanted, tag)
        return ReceiveWork(inner, buffer.finish, self._pending, self, wanted, tag)

    def probe(self, src: int | None = None, tag: int | None = None, *, timeout: float = 0.0) -> Message | None:
        """The first message from `src` with `tag` (None: any) that has arrived and has not been received yet.

        Returns Message(source, tag, count, dtype), or None if no message arrives within `timeout` seconds.

        >>> sending = group.isend(np.arange(5), dst=group.rank, tag=9)
        >>> message = group.probe(src=group.rank, timeout=10)
        >>> message.tag, message.count, message.dtype.name
        (9, 5, 'I64')
        >>> group.recv((message.count,), message.source, message.tag, dtype=message.dtype).tolist()
        [0, 1, 2, 3, 4]
        """
        wanted, label = self._source(src), ANY if tag is None else _tag(tag)
        end = time.monotonic() + timeout
        pause = 20e-6
        while (found := self.comm.probe(wanted, label)) is None and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        return found

    def batch(
        self, sends: Sequence[Sequence[Any]] = (), recvs: Sequence[Sequence[Any]] = (), *, async_op: bool = False
    ) -> Any:
        """Send and receive several messages at once; returns the list of received arrays.

        sends: for each message the arguments of `send`, (x, dst) or (x, dst, tag). recvs: for each the
        arguments of `recv`, (x, src), (x, src, tag) or (x, src, tag, dtype). All are checked before the
        first is started, and all are started before any is awaited, so that no order can deadlock.

        >>> other = 1 - group.rank
        >>> group.batch([(np.ones(2), other), (np.zeros(3), other)], [((2,), other), ((3,), other)])
        [array([1., 1.]), array([0., 0., 0.])]
        """
        outgoing = [self._outgoing(*each) for each in sends]
        incoming = [self._incoming(*each) for each in recvs]
        for buffer, _, _ in outgoing:
            self._pack(buffer)
        for buffer, _, _ in incoming:
            self._order(buffer)
        works = [self.comm.recv(b.ptr, b.count, b.dtype, src, tag) for b, src, tag in incoming]
        works += [self.comm.send(b.ptr, b.count, b.dtype, dst, tag) for b, dst, tag in outgoing]
        work: Work[list[Any]] = ArrayWork(
            Several(works), lambda: [into.finish() for into, _, _ in incoming], self._pending, (self, outgoing)
        )
        return work if async_op else work.wait()

    def _outgoing(self, x: Any, dst: int, tag: int = 0) -> tuple[Buffer, int, int]:
        buffer = source(x)
        self._check_memory(buffer)
        return buffer, self._rank(dst, "dst"), _tag(tag)

    def _incoming(self, x: Any, src: int | None, tag: int | None = 0, dtype: Any = None) -> tuple[Buffer, int, int]:
        buffer, wanted, label = buffers.receiver(x, dtype), self._source(src), ANY if tag is None else _tag(tag)
        self._check_any(wanted, label)
        self._check_memory(buffer)
        return buffer, wanted, label

    def _source(self, src: int | None) -> int:
        return ANY if src is None else self._rank(src, "src")

    def _check_any(self, src: int, tag: int) -> None:
        if ANY in (src, tag) and not self.comm.any_source:
            raise UnsupportedError("recv from any rank or with any tag", type(self.comm).__name__)


def _tag(value: int) -> int:
    tag = integer(value, "tag")
    if not 0 <= tag <= MAX_TAG:
        raise ValueError(f"tag={tag}: expected 0 to {MAX_TAG}")
    return tag
