"""Point-to-point messages over MPI: polled requests, whose timeout does not end the job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.backends.composed.matching import mismatch
from rankwise.backends.mpi.transport import DTYPES, TAGS_PER_TAG, Transport
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.message import ANY, Message, Taken
from rankwise.contract.types import DTYPE_NAMES, ITEMSIZE, DType
from rankwise.contract.work import COMPLETE, Work

POLLS = 200  # polls of a request with nothing in between, before the first yield
SPIN = 50e-6  # seconds of probes with nothing in between, before the first yield
BURST = 32  # polls between two yields or sleeps: in one poll, some MPIs take in only one of many messages
YIELDS = 2e-3  # seconds of polls with yields in between, before the first sleep
SLEEP, LONGEST_SLEEP = 50e-6, 1e-3
OTHER_DTYPE = 0.1  # seconds between two probes for a message of the right tag and another dtype

_U8 = DType.U8  # faster to look up than a member of the enum


class Channel:
    """The pending messages of one rank."""

    def __init__(
        self,
        transport: Transport,
        engine_errors: tuple[type[Exception], ...],
        failed: Callable[[Exception, str], RankwiseError],
    ) -> None:
        """engine_errors: what MPI raises.

        failed: fails the group because of an error in a message, which is passed as text, and returns what to raise.
        """
        self.transport = transport
        self._guard = None if transport.concurrent else transport.guard
        self.engine_errors = engine_errors
        self.failed = failed
        self.timeout = 0.0
        """Seconds that a message may take if its `wait` has no limit of its own; after that the group fails."""
        self._requests: dict[int, Request] = {}  # `sync` waits for these
        self._lost: list[object] = []  # memory that MPI may still use, although starting the message was interrupted

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int, keep: object) -> Work[None]:
        memory = self.transport.bytes(ptr, count * ITEMSIZE[dtype])
        label = tag * TAGS_PER_TAG + dtype
        return self._begin("send", None, dest, tag, keep, 1, self.transport.isend, memory, dest, label)

    def send_bytes(self, data: bytes, dest: int, tag: int) -> Work[None]:
        transport, size = self.transport, len(data)
        memory = data if size <= transport.most else transport.wide(data, size)
        return self._begin("send", None, dest, tag, data, 1, transport.isend, memory, dest, tag * TAGS_PER_TAG + _U8)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int, keep: object, polls: int = 0) -> Work[None]:
        """polls: how often to test for the message before this returns; COMPLETE if it has come."""
        transport = self.transport
        memory = transport.bytes(ptr, count * ITEMSIZE[dtype])
        source = transport.any_source if src == ANY else src
        label = transport.any_tag if tag == ANY else tag * TAGS_PER_TAG + dtype
        return self._begin("recv", (count, dtype), src, tag, keep, polls, transport.irecv, memory, source, label)

    def probe(self, src: int, tag: int) -> Message | None:
        return self.transport.probe(src, tag)

    def take(self, src: int, tag: int) -> Taken | None:
        transport = self.transport
        status = transport.new_status()
        if not transport.find(src, tag, status):
            return None
        source, label = status.Get_source(), status.Get_tag()
        matched = transport.improbe(source, label, status)
        if matched is None:  # another thread has received it meanwhile
            return None
        number, code = label // TAGS_PER_TAG, label % TAGS_PER_TAG
        size = status.Get_elements(transport.byte)
        memory = np.empty(size, np.uint8)
        into = memory if size <= transport.most else transport.wide(memory, size)
        work = self._begin("recv", None, source, number, memory, 1, matched.Irecv, into)
        return Taken(source, number, DTYPES[code], memory, work)

    def sync(self) -> None:
        if self._requests:
            for request in list(self._requests.values()):
                request.wait()

    def flush(self, end: float) -> None:
        """Wait for pending messages until `end` (of time.monotonic); CollectiveTimeout if some are still pending."""
        for request in list(self._requests.values()):
            request.wait(max(0.0, end - time.monotonic()))

    def over(self, request: Request) -> None:
        self._requests.pop(id(request), None)

    def _begin(
        self,
        operation: str,
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
        keep: object,
        polls: int,
        begin: Callable[..., Any],
        *args: Any,
    ) -> Work[None]:
        """begin(*args) returns MPI's request, which is then tested up to `polls` times. The rest is as in Request."""
        guard, status = self._guard, None if expected is None else self.transport.new_status()
        test = None
        try:
            test = begin(*args).Test if guard is None else guard(guard(begin)(*args).Test)
            while polls and not test(status):
                polls -= 1
            if polls and (expected is None or self.transport.described(status)[2:] == expected):
                return COMPLETE
        except self.engine_errors as error:
            raise self.failed(error, _where(operation, peer, tag, expected)) from error
        except BaseException:  # a signal handler's
            if test is None:
                self._lost.append(keep)
            else:  # the message is still on its way
                self._pending(Request(self, operation, test, status, expected, peer, tag, keep))
            raise
        request = self._pending(Request(self, operation, test, status, expected, peer, tag, keep))
        if polls:  # it is complete, but another message was expected
            request.end()
        return request

    def _pending(self, request: Request) -> Request:
        self._requests[id(request)] = request
        return request


def _where(operation: str, peer: int, tag: int, expected: tuple[int, DType] | None) -> str:
    expects = f", count={expected[0]}, dtype={DTYPE_NAMES[expected[1]]}" if expected else ""
    return f"{operation}(rank={peer}, tag={tag}{expects})"


class Request(Work[None]):
    """A request of MPI. Once a receive is complete, its source and tag are the message's.

    test, status: MPI's Test of the request, and what it fills in. expected: the count and dtype of a receive that was
    posted before its message was known. peer, tag: as passed to send or recv. keep: what owns the memory.
    """

    def __init__(
        self,
        channel: Channel,
        operation: str,
        test: Callable[[Any], bool],
        status: Any,
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
        keep: object,
    ) -> None:
        self._channel = channel
        self._keep = keep
        self._operation = operation
        self._test, self._status = test, status
        self._expected = expected
        self.source, self.tag = peer, tag
        self._lock = threading.Lock()
        self._over = False
        self._error: RankwiseError | None = None

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
        test, status = self._test, self._status
        with self._lock:
            if self._over:
                return True
            try:
                while not test(status):
                    times -= 1
                    if not times:
                        return False
            except self._channel.engine_errors as error:
                self._error = self._channel.failed(error, self._where)
            self.end()
        return True

    def end(self) -> None:
        """MPI has completed the request: check the message, and release the memory."""
        if self._expected is not None and self._error is None:
            self.source, self.tag, count, dtype = self._channel.transport.described(self._status)
            wrong = mismatch(self.tag, count, dtype, *self._expected)
            if wrong is not None:
                self._error = self._channel.failed(wrong, self._where)
        self._over = True
        self._keep = None
        self._channel.over(self)

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
        found = self._channel.transport.probe(self.source, self.tag)
        if found is not None and found.dtype is not self._expected[1]:
            wrong = mismatch(self.tag, found.count, found.dtype, *self._expected)
            assert wrong is not None
            raise self._channel.failed(wrong, self._where)
