"""gloo's sends and receives under way.

A message is a *frame*: a header and, where it is small, the data, copied. The data of a large one
follows on a tag of its own, once the receiver has looked at the header: gloo ends a process that
receives more than it expects.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from abc import abstractmethod
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.backends.composed.calls import ITEMSIZE
from rankwise.backends.composed.communicator import address
from rankwise.backends.composed.loopback import mismatch
from rankwise.contract.errors import CollectiveTimeout, RankwiseError
from rankwise.contract.types import DType
from rankwise.contract.work import Completed, Work

if TYPE_CHECKING:
    from rankwise.backends.gloo.communicator import GlooCommunicator

BUFFERED = 1 << 15  # bytes of data that a frame holds; such messages leave the sender's memory at once
HEADER = np.dtype([("count", np.int64), ("dtype", np.int64)])

_FOREVER = timedelta(days=1)


class Mail:
    """The messages of one rank of a gloo group to and from the others."""

    def __init__(self, comm: GlooCommunicator) -> None:
        self._comm = comm
        self._buffered = BufferedSends()
        self._pending: dict[int, GlooMessage] = {}  # those that `sync` waits for
        self._latest: dict[tuple[int, int], Receive] = {}  # by sender and tag

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int) -> Work[None]:
        size = count * ITEMSIZE[dtype]
        inside = size if size <= BUFFERED else 0
        frame = np.empty(HEADER.itemsize + inside, np.uint8)
        frame[: HEADER.itemsize].view(HEADER)[0] = (count, dtype)
        ctypes.memmove(address(frame) + HEADER.itemsize, ptr, inside)
        self._buffered.add(self._comm._post("send", address(frame), frame.nbytes, dest, 2 * tag), frame)
        if inside == size:
            return Completed()
        return self._noted(Send(self._comm, self, self._comm._post("send", ptr, size, dest, 2 * tag + 1)))

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int) -> Work[None]:
        frame = np.empty(HEADER.itemsize + BUFFERED, np.uint8)
        work = self._comm._post("recv", address(frame), frame.nbytes, src, 2 * tag)
        message = Receive(self._comm, self, work, frame, (ptr, count, dtype, src, tag), self._latest.get((src, tag)))
        self._latest[src, tag] = message
        self._noted(message)
        if count * ITEMSIZE[dtype] > BUFFERED:
            message.go_on()  # its sender may be waiting for it while this rank does other things
        return message

    def sync(self) -> None:
        for message in list(self._pending.values()):
            message.wait()

    def flush(self, end: float) -> None:
        """Let what is under way finish until `end`, as time.monotonic gives it; CollectiveTimeout where it does not."""
        for message in list(self._pending.values()):
            message.wait(max(0.0, end - time.monotonic()))
        if not self._buffered.flush(max(0.0, end - time.monotonic())):
            raise CollectiveTimeout("messages that nobody received in time are given up")

    @property
    def empty(self) -> bool:
        return not self._pending and self._buffered.empty

    def _noted(self, message: GlooMessage) -> GlooMessage:
        self._pending[id(message)] = message
        return message

    def over(self, message: GlooMessage) -> None:
        self._pending.pop(id(message), None)


class GlooMessage(Work[None]):
    """A message on its way.

    gloo tells that it has come only to a thread that waits, and a wait of it that times out ends
    the group. So a wait with a limit of its own, and `done`, leave the waiting to a thread.
    """

    operation = ""

    def __init__(self, comm: GlooCommunicator, mail: Mail) -> None:
        self._comm = comm
        self._mail = mail
        self._error: RankwiseError | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._waiter: threading.Thread | None = None

    def wait(self, timeout: float | None = None) -> None:
        if timeout is None:
            self.complete()
        elif not self._over.is_set():
            self.go_on()
            if not self._over.wait(timeout):
                text = f"{self.operation} was not complete within {timeout:.3g} s"
                raise CollectiveTimeout(text, limit=timeout, operation=self.operation)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        self.go_on()
        return self._over.is_set()

    def go_on(self) -> None:
        """Wait in a thread of its own from now on."""
        if self._waiter is None and not self._over.is_set():
            self._waiter = threading.Thread(target=self.complete, name=f"rankwise gloo {self.operation}", daemon=True)
            self._waiter.start()

    def complete(self) -> None:
        """Wait until it is over; what goes wrong fails the group and is kept."""
        with self._lock:
            if self._over.is_set():
                return
            try:
                self._wait()
            except (RuntimeError, RankwiseError) as error:
                self._error = self._comm._message_failed(self.operation, error)
            self._over.set()
            self._mail.over(self)

    @abstractmethod
    def _wait(self) -> None: ...


class Send(GlooMessage):
    """The data of a large message. work: torch's."""

    operation = "send"

    def __init__(self, comm: GlooCommunicator, mail: Mail, work: Any) -> None:
        super().__init__(comm, mail)
        self._work = work

    def _wait(self) -> None:
        self._work.wait(timedelta(seconds=self._comm.timeout))


class Receive(GlooMessage):
    """A frame, and what may follow it. before: the receive from the same sender and tag that was posted before."""

    operation = "recv"

    def __init__(
        self,
        comm: GlooCommunicator,
        mail: Mail,
        work: Any,
        frame: np.ndarray[Any, Any],
        expected: tuple[int, int, DType, int, int],
        before: Receive | None,
    ) -> None:
        super().__init__(comm, mail)
        self._work = work
        self._frame = frame
        self._expected = expected
        self._before = before

    def _wait(self) -> None:
        if self._before is not None:  # data comes in the order of the frames
            self._before.complete()
            self._before = None
        ptr, count, dtype, src, tag = self._expected
        self._work.wait(timedelta(seconds=self._comm.timeout))
        sent, code = self._frame[: HEADER.itemsize].view(HEADER)[0]
        wrong = mismatch(tag, int(sent), DType(int(code)), count, dtype)
        if wrong is not None:
            raise wrong
        size = count * ITEMSIZE[dtype]
        if size <= BUFFERED:
            ctypes.memmove(ptr, address(self._frame) + HEADER.itemsize, size)
        else:
            data = self._comm._post("recv", ptr, size, src, 2 * tag + 1)
            data.wait(timedelta(seconds=self._comm.timeout))
        del self._frame


class BufferedSends:
    """Frames on their way; a thread lets go of each when it is gone."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, object]] = queue.SimpleQueue()
        self._count = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, work: Any, keep: object) -> None:
        """work: torch's, which uses the memory of `keep`."""
        with self._changed:
            self._count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rankwise gloo sends", daemon=True)
                self._thread.start()
        self._queue.put((work, keep))

    @property
    def empty(self) -> bool:
        return self._count == 0

    def flush(self, timeout: float) -> bool:
        """Wait until all are gone; False where they are not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout)

    def end(self) -> None:
        """The thread ends when it has let go of all."""
        if self._thread is not None:
            self._queue.put((None, None))

    def _run(self) -> None:
        while True:
            work, keep = self._queue.get()
            if work is None:
                return
            with suppress(RuntimeError):  # the group has failed or is closed; whoever uses it next is told
                work.wait(_FOREVER)
            del work, keep
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
