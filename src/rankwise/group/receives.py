"""Receives of any length, and objects, on backends where a receive of unknown length must probe for its message.

Such a backend's channel matches messages whose length is known; this queue makes receives of unknown length of its
`probe` and `start_arrived`.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from rankwise.arrays.base import Buffer
from rankwise.arrays.numpy import address
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, MismatchError, RankwiseError
from rankwise.contract.message import ANY, Arrival, IncomingMessage, Message, Receives, late, matches, no_probe, overlap
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.contract.work import Work, wait_until
from rankwise.group.work import wait_or_cancel

T = TypeVar("T")

# The pause between two probes is half the time waited so far, within these limits, in seconds.
PAUSE, LONGEST_PAUSE = 20e-6, 1e-3


class ReceiveQueue(Receives):
    """The receives of one group that wait for a message of any length, in the order in which they were posted.

    They make progress while a thread waits for one of them or asks whether it is done. A message that turns out to be
    of the wrong kind, or whose receive was cancelled after it had taken the message, is kept: the next receive that
    matches it gets it. So every receive of the group passes through here while messages are kept.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.kept: list[tuple[int, IncomingMessage]] = []
        """In the order taken. They were sent before every message that the communicator still has for the same tag."""
        self._lock = threading.Lock()
        # Weak: an exception, such as a signal handler's, may have taken the place of a receive before anybody had it.
        self._waiting: list[ref[QueuedReceive]] = []
        self._numbers = itertools.count()  # of messages, in the order taken

    def recv(self, buffer: Buffer, src: int, tag: int) -> Work[None]:
        """The communicator's `recv`, unless a kept message comes first."""
        if self.kept:
            with self._lock:
                if self._first_kept(src, tag) is not None:
                    receive = _receive_into(self, buffer, src, tag)
                    self._begin(receive)
                    return receive
        return self.comm.recv(buffer.ptr, buffer.count, buffer.dtype, src, tag, buffer)

    def recv_message(self, src: int, tag: int) -> QueuedReceive:
        return self._post("recv", src, tag, accept_any)

    def recv_arrived(self, src: int, tag: int) -> tuple[QueuedReceive, tuple[int, int, int]] | None:
        receive = self.recv_message(src, tag)
        self.progress()
        if receive.error is not None:
            raise receive.error
        if (incoming := receive.incoming) is None:
            receive.cancel()
            return None
        return receive, (incoming.source, incoming.tag, len(incoming.memory))

    def recv_object(self, src: int, tag: int) -> QueuedReceive:
        return self._post("recv_object", src, tag, _check_object)

    def send_object(self, parts: list[Any], dest: int, tag: int, synchronous: bool = False) -> Work[None]:
        message = np.frombuffer(b"".join((MAGIC, *parts)), np.uint8)
        return self.comm.send(address(message), message.nbytes, _U8, dest, tag, message)

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        wait_or_cancel(self.send_object(parts, dest, tag))

    def _post(self, operation: str, src: int, tag: int, check: Callable[[IncomingMessage], None]) -> QueuedReceive:
        """check: raises if the complete message is of the wrong kind; the message is then kept."""
        if not self.comm.any_source:
            raise no_probe("recv of any length", self.comm.backend)
        receive = QueuedReceive(self, operation, src, tag, check)
        with self._lock:
            self._waiting.append(ref(receive))
        return receive

    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        return self.poll(lambda: self._find(src, tag), src, tag, time.monotonic() + timeout)

    def _find(self, src: int, tag: int) -> Message | None:
        if self.kept:
            with self._lock:
                unclaimed = self._first_kept(src, tag)
            if unclaimed is not None:
                return unclaimed[1].message
        return self.comm.probe(src, tag)

    def poll(self, attempt: Callable[[], T], src: int, tag: int, end: float) -> T:
        """Call `attempt` until what it returns is true, or until `end`, and return that.

        Raises what `recv` raises if no message from `src` with `tag` can arrive any more.
        """
        start = time.monotonic()
        while not (message := attempt()) and (now := time.monotonic()) < end:
            pause = min(max((now - start) / 2, PAUSE), LONGEST_PAUSE)
            if pause == LONGEST_PAUSE and self._is_out_of_reach(src) and self._find(src, tag) is None:
                # The communicator's own receive raises the error and informs the other ranks. It can match no message.
                wait_or_cancel(self.comm.recv(0, 0, DType.U8, src, tag), end - now)
            self.comm.await_arrival(pause)
        return message

    def _is_out_of_reach(self, src: int) -> bool:
        left = self.comm.left()
        return src in left or (src == ANY and 0 < len(left) == self.comm.world_size - 1)

    def progress(self) -> None:
        """Begin the receives whose messages have arrived."""
        with self._lock:
            before: list[QueuedReceive] = []
            for waiting in self._waiting:
                receive = waiting()
                if receive is None:
                    continue
                # A receive waits behind an earlier one that could match the same message.
                if not any(overlap(earlier, receive.source, receive.tag) for earlier in before):
                    self._begin(receive)
                if receive.error is None and receive.incoming is None:
                    before.append(receive)
            self._waiting = list(map(ref, before))

    def forget(self, receive: QueuedReceive) -> None:
        """Take a failed receive out of the queue, or keep the message that it has taken."""
        with self._lock:
            if ref(receive) in self._waiting:
                self._waiting.remove(ref(receive))
            elif receive.incoming is not None:
                self._keep(receive.incoming, receive.number)

    def _begin(self, receive: QueuedReceive) -> None:
        try:
            unclaimed = self._first_kept(receive.source, receive.tag)
            if unclaimed is not None:
                self.kept.remove(unclaimed)
                receive.number, receive.incoming = unclaimed
            else:
                receive.incoming = self.comm.start_arrived(receive.source, receive.tag)
                receive.number = next(self._numbers)
        except Exception as error:  # noqa: BLE001 - the receive's `wait` raises it
            receive.error = error

    def _keep(self, incoming: IncomingMessage, number: int | None = None) -> None:
        self.kept.append((next(self._numbers) if number is None else number, incoming))
        self.kept.sort(key=itemgetter(0))

    def _first_kept(self, src: int, tag: int) -> tuple[int, IncomingMessage] | None:
        return next((unclaimed for unclaimed in self.kept if matches(unclaimed[1], src, tag)), None)


class QueuedReceive(Arrival):
    """A receive of a ReceiveQueue.

    incoming: its message; None until there is one. number: that message's in the queue.
    """

    def __init__(
        self, queue: ReceiveQueue, operation: str, src: int, tag: int, check: Callable[[IncomingMessage], None]
    ) -> None:
        self.incoming: IncomingMessage | None = None
        self.number = 0
        self.error: Exception | None = None
        self._source, self._tag, self._check = src, tag, check
        self._queue, self._operation = queue, operation
        self._ending = threading.Lock()  # several threads may wait; one of them completes the receive or fails it
        self._complete = False

    @property
    def source(self) -> int:
        """As requested, perhaps ANY, until it has taken a message; then the message's. So is `tag`."""
        return self._source if self.incoming is None else self.incoming.source

    @property
    def tag(self) -> int:
        return self._tag if self.incoming is None else self.incoming.tag

    @property
    def dtype(self) -> DType:
        assert self.incoming is not None
        return self.incoming.dtype

    @property
    def is_object(self) -> bool:
        return self.incoming is not None and is_object(self.incoming)

    def memory(self) -> Any:
        assert self.incoming is not None
        return content(self.incoming) if self.is_object else array_over(self.incoming.memory, np.uint8)

    def return_message(self) -> None:
        self._queue.forget(self)

    def done(self) -> bool:
        self._progress()
        return self.error is not None or (self.incoming is not None and self.incoming.work.done())

    def wait(self, timeout: float | None = None) -> None:
        if self._complete:
            return
        limit = self._queue.comm.timeout if timeout is None else timeout
        end = time.monotonic() + limit
        try:
            begun = self._queue.poll(self._progress, self.source, self.tag, end)
        except RankwiseError as error:
            self._fail(error)
            raise
        if not begun:
            if timeout is not None:
                raise late(self._operation, limit, self.source, self.tag)
            self._fail(late(self._operation, limit, self.source, self.tag))
        if self.incoming is not None and self.error is None:
            if timeout is None:
                self.incoming.work.wait()
            else:
                wait_until(end, self.incoming.work, partial(late, self._operation, limit, self.source, self.tag))
            self._deliver(self.incoming)
        if self.error is not None:
            raise self.error

    def cancel(self) -> bool:
        return self._fail(ClosedError(f"{self._operation} was cancelled"))

    def _progress(self) -> bool:
        """Let the queue make progress. Returns whether this receive has a message, or an error."""
        if self.incoming is None and self.error is None:
            self._queue.progress()
        return self.incoming is not None or self.error is not None

    def _fail(self, error: Exception) -> bool:
        """Returns False if it has ended already."""
        with self._ending:
            if self._complete or self.error is not None:
                return False
            self.error = error
            self._queue.forget(self)
            return True

    def _deliver(self, incoming: IncomingMessage) -> None:
        """The message is complete: check its content."""
        with self._ending:
            if self._complete or self.error is not None:
                return
            try:
                self._check(incoming)
                self._complete = True
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                self.error = error
                self._queue.forget(self)


def accept_any(_incoming: IncomingMessage) -> None:
    """The check of a receive of whatever comes."""


def _receive_into(queue: ReceiveQueue, buffer: Buffer, src: int, tag: int) -> QueuedReceive:
    """A receive of a kept message into the caller's memory."""

    def copy(incoming: IncomingMessage) -> None:
        message = incoming.message
        if (message.count, message.dtype) != (buffer.count, buffer.dtype):
            raise MismatchError(
                f"recv from rank {message.source}: the message is {message.count} x {DTYPE_NAMES[message.dtype]} with "
                f"tag {message.tag}, the receive expects {buffer.count} x {DTYPE_NAMES[buffer.dtype]}"
            )
        room = buffer.kind.staged(buffer)
        ctypes.memmove(room.ptr, address(array_over(incoming.memory, np.uint8)), room.nbytes)
        if room is not buffer:
            room.finish()

    return QueuedReceive(queue, "recv", src, tag, copy)


# ---- objects ----

MAGIC = b"\x93rankwise object".ljust(64)
"""Precedes an object in its message, which is an array of bytes. Its length keeps the object aligned."""

_HEAD, _U8 = len(MAGIC), DType.U8  # looked up by every receive


def is_object(incoming: IncomingMessage) -> bool:
    return incoming.dtype is _U8 and memoryview(incoming.memory)[:_HEAD] == MAGIC


def content(incoming: IncomingMessage) -> Any:
    """The encoded object of a message that is one."""
    return memoryview(incoming.memory)[_HEAD:]


def array_over(memory: Any, dtype: Any) -> Any:
    """A one-dimensional array over a message's bytes."""
    return np.frombuffer(memory, dtype) if len(memory) else np.empty(0, dtype)


def _check_object(incoming: IncomingMessage) -> None:
    if not is_object(incoming):
        raise MismatchError(
            f"recv_object: {_described(incoming.message)}, not an object; receive it with recv or recv_any"
        )


def _described(message: Message) -> str:
    what = f"an array of {message.count} x {DTYPE_NAMES[message.dtype]}"
    return f"the message from rank {message.source} with tag {message.tag} is {what}"
