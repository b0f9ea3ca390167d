"""Point-to-point messages over MPI: polled requests, whose timeout does not end the job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from rankwise._mpi import MpiRequest
from rankwise.backends.composed import communicator as composed
from rankwise.backends.composed.matching import mismatch
from rankwise.backends.mpi.transport import TAGS_PER_TAG, Transport
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.message import ANY, Message, Taken
from rankwise.contract.types import DTYPE_NAMES, ITEMSIZE, DType
from rankwise.contract.work import COMPLETE, Work

POLLS = 200  # polls of a request with nothing in between, before the first yield
SPIN = 50e-6  # seconds of probes with nothing in between, before the first yield
BURST = 32  # polls between two yields or sleeps: in one poll, some MPIs take in only one of many messages
PROBES = 10  # for a message in one call, for the same reason
YIELDS = 2e-3  # seconds of polls with yields in between, before the first sleep
SLEEP, LONGEST_SLEEP = 50e-6, 1e-3
OTHER_DTYPE = 0.1  # seconds between two probes for a message of the right tag and another dtype

DTYPES = tuple(DType)  # by number: faster than DType(number)


class Channel(composed.Channel):
    """The pending messages of one rank. MPI's tag of a message contains its dtype, which a receive checks."""

    def __init__(
        self,
        transport: Transport,
        engine_errors: tuple[type[Exception], ...],
        failed: Callable[[Exception, str], RankwiseError],
    ) -> None:
        """engine_errors: what MPI raises.

        failed: fails the group because of an error in a message, which is passed as text, and returns what to raise.
        """
        super().__init__()
        messages, guard = transport.messages, transport.guard
        self._messages, self.guard = messages, guard
        self._send, self._recv = guard(messages.send), guard(messages.recv)
        self._find, self._take = guard(messages.find), guard(messages.take)
        self._closed = transport.mpi.ERR_COMM
        self.engine_errors = engine_errors
        self.failed = failed
        self.timeout = 0.0
        """Seconds that a message may take if its `wait` has no limit of its own; after that the group fails."""

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        try:
            pending = self._send(ptr, count * ITEMSIZE[dtype], dest, tag * TAGS_PER_TAG + dtype, keep)
        except self.engine_errors as error:
            raise self.failed(error, _where("send", dest, tag, None)) from error
        return COMPLETE if pending is None else Request(self, "send", pending, None, dest, tag)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object) -> Work[None]:
        label = ANY if tag == ANY else tag * TAGS_PER_TAG + dtype
        try:
            pending = self._recv(ptr, count * ITEMSIZE[dtype], src, label, keep)
        except self.engine_errors as error:
            raise self.failed(error, _where("recv", src, tag, (count, dtype))) from error
        return Request(self, "recv", pending, (count, dtype), src, tag)

    def probe(self, src: int, tag: int) -> Message | None:
        found = self._find(src, tag, PROBES)
        if found is None:
            return None
        source, number, code, size = found
        return Message(source, number, size // ITEMSIZE[DTYPES[code]], DTYPES[code])

    def take(self, src: int, tag: int) -> Taken | None:
        try:
            found = self._take(src, tag, PROBES)
        except self.engine_errors as error:
            raise self.failed(error, _where("recv", src, tag, None)) from error
        return None if found is None else self._taken(*found)

    def close(self) -> None:
        """The communicator will be freed: no call of another thread goes on to use it."""
        self._messages.close(self._closed)

    def _taken(self, source: int, tag: int, code: int, memory: bytearray, pending: MpiRequest | None) -> Taken:
        work = COMPLETE if pending is None else Request(self, "recv", pending, None, source, tag)
        return Taken(source, tag, DTYPES[code], memory, work)


def _where(operation: str, peer: int, tag: int, expected: tuple[int, DType] | None) -> str:
    expects = f", count={expected[0]}, dtype={DTYPE_NAMES[expected[1]]}" if expected else ""
    return f"{operation}(rank={peer}, tag={tag}{expects})"


class Request(Work[None]):
    """A request of MPI. Once a receive is complete, its source and tag are the message's.

    request: the native one. expected: the count and dtype of a receive that was posted before its message was known.
    peer, tag: as passed to send or recv.
    """

    def __init__(
        self,
        channel: Channel,
        operation: str,
        request: MpiRequest,
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
    ) -> None:
        self._channel = channel
        self._operation = operation
        self._request, self._test = request, channel.guard(request.test)
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
            self._channel.over(self)
        return True

    def _check(self, count: int, dtype: DType) -> None:
        """Check that the message is of this count and dtype."""
        self.source, label, size = self._request.described()
        self.tag, code = divmod(label, TAGS_PER_TAG)
        wrong = mismatch(self.tag, size // ITEMSIZE[DTYPES[code]], DTYPES[code], count, dtype)
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
                text = f"{self._operation} was not complete within {limit:.3g} s"
                error = CollectiveTimeout(text, limit=limit, operation=self._operation)
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
        found = self._channel.probe(self.source, self.tag)
        if found is not None and found.dtype is not self._expected[1]:
            wrong = mismatch(self.tag, found.count, found.dtype, *self._expected)
            assert wrong is not None
            raise self._channel.failed(wrong, self._where)
