"""Point-to-point messages over MPI: polled requests, whose timeout does not end the job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rankwise.backends.composed import p2p as composed
from rankwise.backends.composed.matching import mismatch
from rankwise.backends.mpi.transport import TAGS_PER_TAG, Transport
from rankwise.contract.errors import RankwiseError
from rankwise.contract.message import ANY, IncomingMessage, Message, late
from rankwise.contract.types import DTYPE_NAMES, ITEMSIZE, DType
from rankwise.contract.work import Work

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

POLLS = 200  # polls of a request with nothing in between, before the first yield
SPIN = 50e-6  # seconds of probes with nothing in between, before the first yield
BURST = 32  # polls between two yields or sleeps: in one poll, some MPIs take in only one of many messages
PROBES = 10  # for a message in one call, for the same reason
YIELDS = 2e-3  # seconds of polls with yields in between, before the first sleep
SLEEP, LONGEST_SLEEP = 50e-6, 1e-3
OTHER_DTYPE = 0.1  # seconds between two probes for a message of the right tag and another dtype

DTYPES = tuple(DType)  # by number: faster than DType(number)


_ABANDONED = list[Work[None]]()
"""Messages that were on their way when their communicator was closed: MPI may still use their memory."""


class Channel(composed.Channel):
    """The pending messages of one rank. MPI's tag of a message contains its dtype, which a receive checks."""

    timeout = 0.0

    def __init__(
        self,
        transport: Transport,
        engine_errors: tuple[type[Exception], ...],
        failed: Callable[[Exception, str], RankwiseError],
    ) -> None:
        """engine_errors: what MPI raises. failed: as in every channel, with a message's text as the operation."""
        super().__init__(failed)
        self._transport = transport
        self._mpi, self._comm = transport.mpi, transport.comm
        self.status: Callable[[], MPI.Status] = transport.mpi.Status
        self.lock = transport.lock or threading.RLock()
        """Held in each call of MPI: none goes on when the communicator is freed."""
        self._closed = False
        self.engine_errors = engine_errors

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        memory = self._transport.bytes(ptr, count * ITEMSIZE[dtype])
        label = tag * TAGS_PER_TAG + dtype
        pending = self._call(lambda: self._comm.Isend(memory, dest, label), "send", dest, tag)
        request = Request(self, "send", pending, None, dest, tag, keep)
        request.done()  # most short messages are complete already
        return request

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]:
        memory = self._transport.bytes(ptr, count * ITEMSIZE[dtype])
        source = self._source(src)
        label = self._mpi.ANY_TAG if tag == ANY else tag * TAGS_PER_TAG + dtype
        expected = (count, dtype)
        pending = self._call(lambda: self._comm.Irecv(memory, source, label), "recv", src, tag, expected)
        return Request(self, "recv", pending, expected, src, tag, keep)

    def probe(self, src: int, tag: int) -> Message | None:
        with self.lock:
            status = self._find(src, tag)
        return None if status is None else self.message(status)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        taken = self._call(lambda: self._take(src, tag), "recv", src, tag)
        if taken is None:
            return None
        message, memory, pending = taken
        request = Request(self, "recv", pending, None, message.source, message.tag, memory)
        request.done()
        return IncomingMessage(message.source, message.tag, message.dtype, memory, request)

    def close(self) -> None:
        """The communicator will be freed: no call of another thread goes on to use it."""
        with self.lock:
            self._closed = True
        _ABANDONED.extend(self.pending.values())

    def _call(
        self, step: Callable[[], T], operation: str, peer: int, tag: int, expected: tuple[int, DType] | None = None
    ) -> T:
        try:
            with self.lock:
                if self._closed:
                    raise self._mpi.Exception(self._mpi.ERR_COMM)
                return step()
        except self.engine_errors as error:
            raise self.failed(error, _where(operation, peer, tag, expected)) from error

    def _source(self, src: int) -> int:
        return self._mpi.ANY_SOURCE if src == ANY else src

    def _find(self, src: int, tag: int) -> MPI.Status | None:
        """The status of a message that a receive could get.

        It is the first one, unless messages with other tags come before it and those with this tag have several
        dtypes: as MPI's tag contains the dtype, finding one with this tag then takes a probe for each dtype.
        """
        status, source = self.status(), self._source(src)
        if self._closed or not any(self._comm.Iprobe(source, self._mpi.ANY_TAG, status) for _ in range(PROBES)):
            return None
        if tag in (ANY, status.tag // TAGS_PER_TAG):
            return status
        labels = range(tag * TAGS_PER_TAG, tag * TAGS_PER_TAG + len(DTYPES))
        return status if any(self._comm.Iprobe(source, label, status) for label in labels) else None

    def _take(self, src: int, tag: int) -> tuple[Message, bytearray, MPI.Request] | None:
        """Start to receive the message that `probe` would describe, in new memory."""
        status = self._find(src, tag)
        if status is None:
            return None
        memory = bytearray(self._size(status))  # before the message is matched, which could not be given back
        matched = self._comm.Improbe(status.source, status.tag, status)
        if matched is None:
            return None
        return self.message(status), memory, matched.Irecv(self._transport.described(memory, len(memory)))

    def _size(self, status: MPI.Status) -> int:
        size: int = status.Get_elements(self._transport.byte)
        return size

    def message(self, status: MPI.Status) -> Message:
        """The message that MPI has found or received."""
        tag, code = divmod(status.tag, TAGS_PER_TAG)
        return Message(status.source, tag, self._size(status) // ITEMSIZE[DTYPES[code]], DTYPES[code])


def _where(operation: str, peer: int, tag: int, expected: tuple[int, DType] | None) -> str:
    expects = f", count={expected[0]}, dtype={DTYPE_NAMES[expected[1]]}" if expected else ""
    return f"{operation}(rank={peer}, tag={tag}{expects})"


class Request(Work[None]):
    """A request of MPI. Once a receive is complete, its source and tag are the message's.

    request: MPI's. expected: the count and dtype of a receive that was posted before its message was known. peer, tag:
    as passed to send or recv. keep: what owns the memory.
    """

    def __init__(
        self,
        channel: Channel,
        operation: str,
        request: MPI.Request,
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
        keep: object,
    ) -> None:
        self._channel = channel
        self._operation = operation
        self._request, self._status = request, channel.status()
        self._keep: object = keep
        self._expected = expected
        self.source, self.tag = peer, tag
        self._lock = threading.Lock()
        self._over = False
        self._error: RankwiseError | None = None
        channel.begun(self)

    @property
    def _where(self) -> str:
        return _where(self._operation, self.source, self.tag, self._expected)

    def wait(self, timeout: float | None = None) -> None:
        if not self._over and not self._poll(POLLS):
            self._wait(timeout)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._over or self._poll(1)

    def _poll(self, times: int) -> bool:
        """Whether MPI has completed the request, which this tests up to `times` times."""
        with self._lock:
            if self._over:
                return True
            try:
                if not self._test(times):
                    return False
            except self._channel.engine_errors as error:
                self._error = self._channel.failed(error, self._where)
            if self._expected is not None and self._error is None:
                self._check(*self._expected)
            self._over = True
            self._keep = None
            self._channel.over(self)
        return True

    def _test(self, times: int) -> bool:
        with self._channel.lock:
            return any(self._request.Test(self._status) for _ in range(times))

    def _check(self, count: int, dtype: DType) -> None:
        """Check that the message is of this count and dtype."""
        message = self._channel.message(self._status)
        self.source, self.tag = message.source, message.tag
        wrong = mismatch(message.tag, message.count, message.dtype, count, dtype)
        if wrong is not None:
            self._error = self._channel.failed(wrong, self._where)

    def _wait(self, timeout: float | None) -> None:
        """Poll until it is complete.

        CollectiveTimeout after `timeout`, which leaves it pending, or after the channel's own, which fails the group.
        """
        start = probed = time.monotonic()
        limit = self._channel.timeout if timeout is None else timeout
        sleep = SLEEP
        while not self._poll(BURST):
            now = time.monotonic()
            if now - start > limit:
                error = late(self._operation, limit, self.source, self.tag)
                raise error if timeout is not None else self._channel.failed(error, self._where)
            if now - start < YIELDS:
                os.sched_yield()
                continue
            if now - probed > OTHER_DTYPE:
                probed = now
                self._probe_for_another_dtype()
            time.sleep(sleep)
            sleep = min(2 * sleep, LONGEST_SLEEP)

    def _probe_for_another_dtype(self) -> None:
        """If the next message matches this receive except in dtype, it can never be received: that is an error."""
        if self._expected is None or ANY in (self.source, self.tag):
            return
        message = self._channel.probe(self.source, self.tag)
        if message is not None and message.dtype is not self._expected[1]:
            wrong = mismatch(self.tag, message.count, message.dtype, *self._expected)
            assert wrong is not None
            raise self._channel.failed(wrong, self._where)
