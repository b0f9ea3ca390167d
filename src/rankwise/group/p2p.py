"""Point-to-point messages: arrays whose size and dtype both ranks know."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from rankwise.arrays import buffers
from rankwise.arrays.base import Buffer
from rankwise.contract.message import ANY, Message
from rankwise.contract.shortcuts import NOT_TAKEN
from rankwise.contract.timeouts import check_wait
from rankwise.contract.work import COMPLETE, Work
from rankwise.group.base import GroupBase, check_one_source, check_recv_tag, check_tag, each_of, nothing
from rankwise.group.work import ArrayWork, several, wait_or_cancel

D = TypeVar("D", bound=np.dtype[Any])


class PointToPoint(GroupBase):
    """send, recv and related operations. Messages match by (sender, tag), in the order sent.

    As src or dst, None is the null rank, like MPI_PROC_NULL: the operation is complete at once, and nothing is sent or
    received. So a rank at the edge of a grid needs no special case. A receive with rw.ANY as src or tag matches a
    message from any rank or with any tag. By default, a tag is 0.

    A message from any rank comes with its source: in the result of `recv_any`, in the Work of `irecv` and
    `irecv_object`, and in what `probe` returns. The other receives name their source.
    """

    def send(self, x: Any, dst: int | None, tag: int = 0) -> None:
        """Send `x` to rank `dst`; x may be changed after the call returns. A rank may send to itself.

        After an error, such as CollectiveTimeout, x may be changed as well. The message is cancelled if the receiver
        cannot have begun to take its data; otherwise the receiver gets the whole message.

        Example:
            >>> if group.rank == 0:
            ...     group.send(np.arange(3), dst=1)
            ... else:
            ...     assert group.recv((3,), src=0, dtype=int).tolist() == [0, 1, 2]
        """
        if not self._shortcuts.send_array(x, dst, tag):
            wait_or_cancel(self._start_send(x, dst, tag))

    @overload
    def recv(
        self, x: np.ndarray[Any, D], src: int | None, tag: int = 0, *, dtype: Any = None
    ) -> np.ndarray[Any, D]: ...
    @overload
    def recv(self, x: Any, src: int | None, tag: int = 0, *, dtype: Any = None) -> Any: ...
    def recv(self, x: Any, src: int | None, tag: int = 0, *, dtype: Any = None) -> Any:
        """Receive from rank `src` into the array `x` and return it.

        The message must have that many elements of that dtype; `recv_any` receives whatever comes, from any rank.

        Args:
            x: the array, or a shape, a tuple of ints, for a new array.
            src: a rank. From the null rank, the array x is returned unchanged, and for a shape a new array of zeros.
            tag: the message's, or rw.ANY.
            dtype: of the new array, by default float64; a torch dtype gives a tensor.

        Example:
            >>> sending = group.isend(np.full(2, group.rank), dst=1 - group.rank)
            >>> group.recv(np.empty(2, int), src=1 - group.rank).tolist() == [1 - group.rank] * 2
            True
            >>> sending.wait()
        """
        if dtype is None and self._shortcuts.recv_array(x, src, tag):
            return x
        return wait_or_cancel(self._start_recv(x, check_one_source(src), tag, dtype))

    def isend(self, x: Any, dst: int | None, tag: int = 0) -> Work[None]:
        """Start to send `x`, with its present content, to rank `dst`. x must not change before the Work is done.

        Example:
            >>> sending = group.isend(np.ones(3), dst=group.rank, tag=5)  # to oneself
            >>> group.recv((3,), src=group.rank, tag=5).tolist()
            [1.0, 1.0, 1.0]
            >>> sending.wait()
        """
        work: Any = self._shortcuts.isend_array(x, dst, tag, self)
        if work is True:
            return self._sent
        if work is None:
            return self._start_send(x, dst, tag).register()
        work.goes_on_when_dropped = True
        sending: Work[None] = work
        return sending

    def _start_send(self, x: Any, dst: int | None, tag: int) -> ArrayWork[None]:
        buffer, to, tag = self._outgoing(x, dst, tag)
        if to is None:
            return ArrayWork(COMPLETE, nothing, self.pending)
        self._pack(buffer)
        inner = self.comm.send(buffer.ptr, buffer.count, buffer.dtype, to, tag, buffer)
        return ArrayWork(inner, nothing, self.pending, (self, buffer))

    @overload
    def irecv(
        self, x: np.ndarray[Any, D], src: int | None = ANY, tag: int = 0, *, dtype: Any = None
    ) -> ArrayWork[np.ndarray[Any, D]]: ...
    @overload
    def irecv(self, x: Any, src: int | None = ANY, tag: int = 0, *, dtype: Any = None) -> ArrayWork[Any]: ...
    def irecv(self, x: Any, src: int | None = ANY, tag: int = 0, *, dtype: Any = None) -> Any:
        """Start to receive, with the arguments of `recv`; src may also be rw.ANY, as by default.

        x holds the message once the Work is done. If the Work was dropped, x holds the message after `close`, provided
        that it had arrived.

        Returns:
            A Work whose result is the array; its `source` and `tag` are the message's.

        Example:
            >>> sending = group.isend(np.full(2, 7.0), dst=group.rank, tag=3)
            >>> work = group.irecv((2,), src=rw.ANY, tag=rw.ANY)
            >>> work.wait().tolist(), work.source == group.rank, work.tag
            ([7.0, 7.0], True, 3)
        """
        work: Any = None if dtype is not None else self._shortcuts.irecv_array(x, src, tag, self)
        if work is None:
            return self._start_recv(x, src, tag, dtype).register()
        work.goes_on_when_dropped = True
        return work

    def _start_recv(self, x: Any, src: int | None, tag: int, dtype: Any) -> ArrayWork[Any]:
        buffer, source, tag = self._incoming(x, src, tag, dtype)
        if source is None:
            return ArrayWork(COMPLETE, partial(_unreceived, buffer, x), self.pending, self)
        self._await_stream_of(buffer)
        inner = self._receive(buffer, source, tag)
        return ArrayWork(inner, buffer.finish, self.pending, self, source, tag)

    def sendrecv(
        self,
        x: Any,
        dst: int | None,
        src: int | None,
        *,
        out: Any = None,
        tag: int = 0,
        recv_tag: int | None = None,
        async_op: bool = False,
    ) -> Any:
        """Send `x` to rank `dst` and receive from rank `src` at the same time, so that ranks in a ring cannot deadlock.

        Args:
            dst: None sends nothing.
            src: None receives nothing, and `out` or a new array of zeros is returned.
            out: an array of the message's length and dtype, which may be others than x's. With out=x the array is
                exchanged in place.
            tag: of the message that is sent.
            recv_tag: of the message that is received, by default `tag`; it may be rw.ANY.

        Returns:
            What was received, in a new array like x or in `out`.

        Example:
            >>> group.sendrecv(np.full(2, group.rank), 1 - group.rank, 1 - group.rank).tolist() == [1 - group.rank] * 2
            True
        """
        if not async_op and recv_tag is None:
            received = self._shortcuts.sendrecv_result(x, dst, src, tag, out)
            if received is not NOT_TAKEN:
                return received
        given, to, tag = self._outgoing(x, dst, tag)
        if out is not None:
            into = buffers.writable(out)
        elif isinstance(x, (int, float, complex, np.generic)):
            into = buffers.target(x)  # its result is a number
        else:
            into = given.kind.empty(given.shape, given.dtype)
        source = self._source(check_one_source(src))
        recv_tag = tag if recv_tag is None else check_recv_tag(recv_tag, "recv_tag")
        self._check_receive(into, source, recv_tag)
        if given.device is None and given.overlaps(into):  # from a device, a copy on the host is sent
            room = buffers.scratch(given.shape, given.dtype)
            ctypes.memmove(room.ptr, given.ptr, given.nbytes)
            given = room
        return self._exchange([(given, to, tag)], [(into, out, source, recv_tag)], lambda got: got[0], async_op)

    def probe(self, src: int | None = ANY, tag: int = 0, *, timeout: float | None = 0.0) -> Message | None:
        """The first message from `src` with `tag` that has not been received yet.

        Another thread may receive the message before this one does; `recv_any` finds and receives a message in one
        step.

        Args:
            timeout: the seconds to wait for a message; None means the group's timeout.

        Returns:
            Message(source, tag, count, dtype), or None if no message arrives in time; from the null rank, None at once.

        Raises:
            PeerLostError: the sender has left the group, so that no message can arrive; `recv` raises it too.

        Example:
            >>> sending = group.isend(np.arange(5), dst=group.rank, tag=9)
            >>> message = group.probe(tag=rw.ANY, timeout=10)
            >>> message.tag, message.count, message.dtype.name
            (9, 5, 'I64')
            >>> group.recv((message.count,), message.source, message.tag, dtype=message.dtype).tolist()
            [0, 1, 2, 3, 4]
        """
        source, tag = self._source(src), check_recv_tag(tag)
        if source is None:
            return None
        return self.receives.probe(source, tag, self.comm.timeout if timeout is None else check_wait(timeout))

    def batch(
        self, sends: Sequence[Sequence[Any]] = (), recvs: Sequence[Sequence[Any]] = (), *, async_op: bool = False
    ) -> Any:
        """Send and receive several messages at once.

        All are checked before the first is started, and all are started before any is awaited, so that no order can
        deadlock. Messages to and from the null rank, None, are left out; the result of such a receive is as in `recv`.

        Args:
            sends: for each message the arguments of `send`, (x, dst) or (x, dst, tag).
            recvs: for each message the arguments of `recv`, (x, src), (x, src, tag) or (x, src, tag, dtype).

        Returns:
            The list of the received arrays.

        Example:
            >>> other = 1 - group.rank
            >>> group.batch([(np.ones(2), other), (np.zeros(3), other)], [((2,), other), ((3,), other)])
            [array([1., 1.]), array([0., 0., 0.])]
        """
        return self._exchange_all(sends, recvs, list, async_op)

    def _exchange_all(
        self,
        sends: Sequence[Sequence[Any]],
        recvs: Sequence[Sequence[Any]],
        result: Callable[[list[Any]], Any],
        async_op: bool,
    ) -> Any:
        """`batch`, which returns result(the received arrays)."""
        outgoing = [self._outgoing(*each) for each in each_of(sends, "sends", "a list of (x, dst)")]
        incoming = []
        for each in each_of(recvs, "recvs", "a list of (x, src)"):
            buffer, source, tag = self._incoming(*each)
            incoming.append((buffer, each[0], check_one_source(source), tag))
        return self._exchange(outgoing, incoming, result, async_op)

    def _exchange(
        self,
        outgoing: list[tuple[Buffer, int | None, int]],
        incoming: list[tuple[Buffer, Any, int | None, int]],
        result: Callable[[list[Any]], Any],
        async_op: bool,
    ) -> Any:
        """Start all receives and sends. incoming: for each, its memory, the caller's x, the source and the tag."""
        for buffer, to, _ in outgoing:
            if to is not None:
                self._pack(buffer)
        works = []
        for into, _, src, tag in incoming:
            if src is not None:
                self._await_stream_of(into)
                works.append(self._receive(into, src, tag))
        works += [self.comm.send(b.ptr, b.count, b.dtype, to, tag, b) for b, to, tag in outgoing if to is not None]

        def finish() -> Any:
            return result([_unreceived(b, x) if src is None else b.finish() for b, x, src, _ in incoming])

        work: ArrayWork[Any] = ArrayWork(several(works), finish, self.pending, (self, outgoing))
        return work.register() if async_op else wait_or_cancel(work)

    def _outgoing(self, x: Any, dst: int | None, tag: int = 0) -> tuple[Buffer, int | None, int]:
        buffer = buffers.source(x)
        self._check_memory(buffer)
        return buffer, self._destination(dst), check_tag(tag)

    def _incoming(self, x: Any, src: int | None, tag: int = 0, dtype: Any = None) -> tuple[Buffer, int | None, int]:
        buffer, source, tag = buffers.receiver(x, dtype), self._source(src), check_recv_tag(tag)
        self._check_receive(buffer, source, tag)
        return buffer, source, tag


def _unreceived(buffer: Buffer, given: Any) -> Any:
    """The result of a receive from the null rank: the caller's array as it is, or zeros in a new array."""
    if given is not None and not isinstance(given, (tuple, list, int, np.integer)):
        return given
    if buffer.device is None:
        ctypes.memset(buffer.ptr, 0, buffer.nbytes)
    else:
        buffer.array[...] = 0
    return buffer.finish()
