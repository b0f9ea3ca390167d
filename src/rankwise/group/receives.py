"""Receives of messages whose size is not known in advance: each one probes, then receives the message that it found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rankwise.arrays.base import Buffer
from rankwise.contract.communicator import ANY, Communicator, Message
from rankwise.contract.errors import ClosedError, CollectiveTimeout, RankwiseError, UnsupportedError
from rankwise.contract.work import Work

PAUSE, LONGEST_PAUSE = 20e-6, 1e-3  # seconds between two probes that find nothing


class ReceiveQueue:
    """The receives of one group that wait for a message of unknown size, in the order in which they were posted.

    They make progress while a thread waits for one of them or asks whether it is done. A message that turns out to be
    of the wrong kind, or whose receive was withdrawn while its data arrived, is put back, and the next receive of this
    queue that matches it gets it.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._lock = threading.Lock()
        self._waiting: list[QueuedReceive] = []
        self._returned: list[tuple[Message, Buffer]] = []
        self._arriving: list[tuple[Message, Buffer, Work[None]]] = []  # will be put back once their data is complete

    def post(
        self,
        operation: str,
        src: int,
        tag: int,
        accept: Callable[[Message], Buffer],
        check: Callable[[Message, Buffer], None],
    ) -> QueuedReceive:
        """accept: returns memory for the message that was found. If it raises, the message is not received.

        check: raises if the content of the message is of the wrong kind; the message is then put back.
        """
        if not self.comm.any_source:
            why = "it cannot probe for messages"
            raise UnsupportedError(operation, getattr(self.comm, "backend", type(self.comm).__name__), why)
        receive = QueuedReceive(self, operation, src, tag, accept, check)
        with self._lock:
            self._waiting.append(receive)
        return receive

    def probe(self, src: int, tag: int) -> Message | None:
        """The message that a receive of this queue would get now."""
        if self._returned or self._arriving:
            with self._lock:
                found = self._put_back(src, tag)
                if found is not None:
                    return found[0]
                if self._is_arriving(src, tag):
                    return None
        return self.comm.probe(src, tag)

    def progress(self) -> None:
        """Begin the receives whose messages have arrived."""
        with self._lock:
            before: list[QueuedReceive] = []
            for receive in list(self._waiting):
                # A receive waits behind an earlier one that could match the same message.
                if not any(_overlap(earlier, receive) for earlier in before):
                    try:
                        self._begin(receive)
                    except Exception as error:  # noqa: BLE001 - the receive's `wait` raises it
                        receive.error = error
                if receive.error is None and receive.message is None:
                    before.append(receive)
            self._waiting = before

    def withdraw(self, receive: QueuedReceive, error: Exception) -> None:
        """Fail the receive with this error, unless it is complete. Its message is put back once that is complete."""
        with self._lock:
            if receive in self._waiting:
                self._waiting.remove(receive)
                receive.error = error
            elif receive.inner is not None and receive.error is None and not receive.inner.done():
                assert receive.message is not None
                assert receive.buffer is not None
                self._arriving.append((receive.message, receive.buffer, receive.inner))
                receive.error = error

    def put_back(self, message: Message, buffer: Buffer) -> None:
        with self._lock:
            self._returned.append((message, buffer))

    def _begin(self, receive: QueuedReceive) -> None:
        returned = self._put_back(receive.src, receive.tag)
        if returned is not None:
            message, buffer = returned
            receive.check(message, buffer)
            self._returned.remove(returned)
            receive.message, receive.buffer = message, buffer
            return
        if self._is_arriving(receive.src, receive.tag):
            return
        found = self.comm.probe(receive.src, receive.tag)
        if found is not None:
            buffer = receive.accept(found)
            receive.inner = self.comm.recv_probed(buffer.ptr, found, buffer)
            if receive.inner is not None:
                receive.message, receive.buffer = found, buffer

    def _put_back(self, src: int, tag: int) -> tuple[Message, Buffer] | None:
        for late in [each for each in self._arriving if each[2].done()]:
            message, buffer, inner = late
            self._arriving.remove(late)
            with suppress(RankwiseError):  # if the message is lost, receives that wait for it say so
                inner.wait()
                self._returned.append((message, buffer))
        return next((each for each in self._returned if _matches(each[0], src, tag)), None)

    def _is_arriving(self, src: int, tag: int) -> bool:
        return any(_matches(message, src, tag) for message, _, _ in self._arriving)


class QueuedReceive(Work[None]):
    """A receive of a ReceiveQueue. message, buffer: the message that it matched, and its memory; None until then."""

    def __init__(
        self,
        queue: ReceiveQueue,
        operation: str,
        src: int,
        tag: int,
        accept: Callable[[Message], Buffer],
        check: Callable[[Message, Buffer], None],
    ) -> None:
        self.src, self.tag = src, tag
        self.accept, self.check = accept, check
        self.message: Message | None = None
        self.buffer: Buffer | None = None
        self.inner: Work[None] | None = None
        self.error: Exception | None = None
        self._queue, self._operation = queue, operation
        self._checking = threading.Lock()  # several threads may wait; one of them checks the content
        self._checked = False

    def done(self) -> bool:
        self._progress()
        return self.error is not None or (self.message is not None and (self.inner is None or self.inner.done()))

    def wait(self, timeout: float | None = None) -> None:
        limit = self._queue.comm.timeout if timeout is None else timeout
        end = time.monotonic() + limit
        pause = PAUSE
        while not self._progress():
            if time.monotonic() > end:
                wanted = f"{_shown(self.src)} with {_label(self.tag)}"
                text = f"{self._operation}: no message from {wanted} arrived within {limit:.3g} s"
                error = CollectiveTimeout(text, limit=limit, operation=self._operation)
                if timeout is not None:
                    raise error
                self._queue.withdraw(self, error)
            else:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if self.inner is not None and self.error is None:
            self.inner.wait(None if timeout is None else max(0.0, end - time.monotonic()))
            self._check()
        if self.error is not None:
            raise self.error

    def withdraw(self) -> bool:
        self._queue.withdraw(self, ClosedError(f"{self._operation} was interrupted"))
        return True

    def _progress(self) -> bool:
        """Let the queue make progress. Returns whether this receive has a message, or an error."""
        if self.message is None and self.error is None:
            self._queue.progress()
        return self.message is not None or self.error is not None

    def _check(self) -> None:
        """Check the content once it is complete."""
        with self._checking:
            if self._checked or self.message is None or self.buffer is None:
                return
            self._checked = True
            try:
                self.check(self.message, self.buffer)
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                self._queue.put_back(self.message, self.buffer)
                self.error = error


def _matches(message: Message, src: int, tag: int) -> bool:
    return src in (message.source, ANY) and tag in (message.tag, ANY)


def _overlap(earlier: QueuedReceive, later: QueuedReceive) -> bool:
    """Whether one message could match both."""
    return (ANY in (earlier.src, later.src) or earlier.src == later.src) and (
        ANY in (earlier.tag, later.tag) or earlier.tag == later.tag
    )


def _shown(src: int) -> str:
    return "any rank" if src == ANY else f"rank {src}"


def _label(tag: int) -> str:
    return "any tag" if tag == ANY else f"tag {tag}"
