"""Receives of any length, and objects, on backends that can only probe for a message and then receive it."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from rankwise.arrays.base import Buffer
from rankwise.arrays.numpy import NUMPY
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, CollectiveTimeout, MismatchError, RankwiseError, UnsupportedError
from rankwise.contract.message import ANY, Arrival, Message, Receives
from rankwise.contract.types import DTYPE_NAMES, DType
from rankwise.contract.work import Work
from rankwise.group.work import wait_or_cancel

T = TypeVar("T")

PAUSE, LONGEST_PAUSE = 20e-6, 1e-3  # seconds between two probes that find nothing: half of those waited already


@dataclass(eq=False)
class Taken:
    """A message that this rank has taken from its communicator. number: in the order taken."""

    number: int
    message: Message
    buffer: Buffer
    work: Work[None]


class ReceiveQueue(Receives):
    """The receives of one group that wait for a message of any length, in the order in which they were posted.

    They make progress while a thread waits for one of them or asks whether it is done. A message that turns out to be
    of the wrong kind, or whose receive was cancelled after it had taken the message, is kept: the next receive that
    matches it gets it. So every receive of the group passes through here while messages are kept.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.kept: list[Taken] = []
        """In the order taken. They were sent before every message that the communicator still has for the same tag."""
        self._lock = threading.Lock()
        # Weak: an exception, such as a signal handler's, may have taken the place of a receive before anybody had it.
        self._waiting: list[ref[QueuedReceive]] = []
        self._numbers = itertools.count()

    def recv(self, buffer: Buffer, src: int, tag: int) -> Work[None]:
        """The communicator's `recv`, unless a kept message comes first."""
        if self.kept:
            with self._lock:
                if self._first_kept(src, tag) is not None:
                    receive = _receive_into(self, buffer, src, tag)
                    self._begin(receive)
                    return receive
        return self.comm.recv(buffer.ptr, buffer.count, buffer.dtype, src, tag, buffer)

    def recv_any(self, dtype: DType | None, src: int, tag: int) -> QueuedReceive:
        def accept(message: Message) -> Buffer:
            if dtype is not None and message.dtype is not dtype:
                raise MismatchError(f"recv_any: {_described(message)}, expected dtype {DTYPE_NAMES[dtype]}")
            return NUMPY.empty((message.count,), message.dtype)

        def check(message: Message, buffer: Buffer) -> None:
            if _is_object(message, buffer):
                sender = f"the message from rank {message.source} with tag {message.tag}"
                raise MismatchError(f"recv_any: {sender} is an object; receive it with recv_object")

        return self._post("recv_any", src, tag, accept, check)

    def recv_object(self, src: int, tag: int) -> QueuedReceive:
        return self._post("recv_object", src, tag, _memory_for_object, _check_object)

    def send_object(self, parts: list[Any], dest: int, tag: int) -> Work[None]:
        message = np.frombuffer(b"".join([MAGIC, *parts]), np.uint8)
        return self.comm.send(message.ctypes.data, message.size, DType.U8, dest, tag, message)

    def send_object_now(self, parts: list[Any], dest: int, tag: int) -> None:
        wait_or_cancel(self.send_object(parts, dest, tag))

    def _post(
        self,
        operation: str,
        src: int,
        tag: int,
        accept: Callable[[Message], Buffer],
        check: Callable[[Message, Buffer], None],
    ) -> QueuedReceive:
        """accept: returns memory for the message that was found. If it raises, the message is not received.

        check: raises if the content of the message is of the wrong kind; the message is then kept.
        """
        if not self.comm.any_source:
            why = "it cannot probe for messages"
            raise UnsupportedError(operation, self.comm.backend, why)
        receive = QueuedReceive(self, operation, src, tag, accept, check)
        with self._lock:
            self._waiting.append(ref(receive))
        return receive

    def probe(self, src: int, tag: int, timeout: float) -> Message | None:
        return self.poll(lambda: self._find(src, tag), src, tag, time.monotonic() + timeout)

    def _find(self, src: int, tag: int) -> Message | None:
        if self.kept:
            with self._lock:
                taken = self._first_kept(src, tag)
            if taken is not None:
                return taken.message
        return self.comm.probe(src, tag)

    def poll(self, look: Callable[[], T], src: int, tag: int, end: float) -> T:
        """Call `look` until what it returns is true, or until `end`, and return that.

        Raises what `recv` raises if no message from `src` with `tag` can arrive any more.
        """
        start = time.monotonic()
        while not (found := look()) and (now := time.monotonic()) < end:
            pause = min(max((now - start) / 2, PAUSE), LONGEST_PAUSE)
            if pause == LONGEST_PAUSE and self._is_out_of_reach(src) and self._find(src, tag) is None:
                # The communicator's own receive raises the error and informs the other ranks. It can match no message.
                wait_or_cancel(self.comm.recv(0, 0, DType.U8, src, tag), end - now)
            self.comm.await_arrival(pause)
        return found

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
                if not any(_overlap(earlier, receive) for earlier in before):
                    self._begin(receive)
                if receive.error is None and receive.taken is None:
                    before.append(receive)
            self._waiting = [ref(receive) for receive in before]

    def forget(self, receive: QueuedReceive) -> None:
        """Take a failed receive out of the queue, or keep the message that it has taken."""
        with self._lock:
            if ref(receive) in self._waiting:
                self._waiting.remove(ref(receive))
            elif receive.taken is not None:
                self.kept.append(receive.taken)
                self.kept.sort(key=lambda taken: taken.number)

    def _begin(self, receive: QueuedReceive) -> None:
        try:
            taken = self._first_kept(receive.source, receive.tag)
            found = self.comm.probe(receive.source, receive.tag) if taken is None else taken.message
            if found is None:
                return
            receive.buffer = buffer = receive.accept(found)
            if taken is not None:
                self.kept.remove(taken)
            else:
                work = self.comm.recv_probed(buffer.ptr, found, buffer)
                if work is None:
                    return
                taken = Taken(next(self._numbers), found, buffer, work)
            receive.source, receive.tag, receive.taken = found.source, found.tag, taken
        except Exception as error:  # noqa: BLE001 - the receive's `wait` raises it
            receive.error = error

    def _first_kept(self, src: int, tag: int) -> Taken | None:
        return next((taken for taken in self.kept if _matches(taken.message, src, tag)), None)


class QueuedReceive(Arrival):
    """A receive of a ReceiveQueue.

    source, tag: as requested, perhaps ANY, until it has taken a message; then the message's. taken, buffer: that
    message, and this receive's memory for it; None until then.
    """

    source: int = ANY
    tag: int = ANY

    def __init__(
        self,
        queue: ReceiveQueue,
        operation: str,
        src: int,
        tag: int,
        accept: Callable[[Message], Buffer],
        check: Callable[[Message, Buffer], None],
    ) -> None:
        self.source, self.tag = src, tag
        self.accept, self.check = accept, check
        self.taken: Taken | None = None
        self.buffer: Buffer | None = None
        self.error: Exception | None = None
        self._queue, self._operation = queue, operation
        self._ending = threading.Lock()  # several threads may wait; one of them completes the receive or fails it
        self._complete = False

    @property
    def dtype(self) -> DType:
        assert self.buffer is not None
        return self.buffer.dtype

    def memory(self) -> Any:
        assert self.buffer is not None
        memory = self.buffer.array.reshape(-1).view(np.uint8)
        return memory[len(MAGIC) :] if self._operation == "recv_object" else memory

    def done(self) -> bool:
        self._progress()
        return self.error is not None or (self.taken is not None and self.taken.work.done())

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
            wanted = f"{_shown(self.source)} with {_label(self.tag)}"
            text = f"{self._operation}: no message from {wanted} arrived within {limit:.3g} s"
            late = CollectiveTimeout(text, limit=limit, operation=self._operation)
            if timeout is not None:
                raise late
            self._fail(late)
        if self.taken is not None and self.error is None:
            self.taken.work.wait(None if timeout is None else max(0.0, end - time.monotonic()))
            self._deliver(self.taken)
        if self.error is not None:
            raise self.error

    def cancel(self) -> bool:
        return self._fail(ClosedError(f"{self._operation} was cancelled"))

    def _progress(self) -> bool:
        """Let the queue make progress. Returns whether this receive has a message, or an error."""
        if self.taken is None and self.error is None:
            self._queue.progress()
        return self.taken is not None or self.error is not None

    def _fail(self, error: Exception) -> bool:
        """Returns False if it has ended already."""
        with self._ending:
            if self._complete or self.error is not None:
                return False
            self.error = error
            self._queue.forget(self)
            return True

    def _deliver(self, taken: Taken) -> None:
        """The message is complete: copy it if another receive took it, and check its content."""
        with self._ending:
            if self._complete or self.error is not None:
                return
            assert self.buffer is not None
            if self.buffer is not taken.buffer:
                ctypes.memmove(self.buffer.ptr, taken.buffer.ptr, taken.buffer.nbytes)
            try:
                self.check(taken.message, self.buffer)
                self._complete = True
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                self.error = error
                self._queue.forget(self)


def _receive_into(queue: ReceiveQueue, buffer: Buffer, src: int, tag: int) -> QueuedReceive:
    """A receive of a kept message into the caller's memory."""
    room = buffer.kind.staged(buffer)

    def accept(message: Message) -> Buffer:
        if (message.count, message.dtype) != (buffer.count, buffer.dtype):
            raise MismatchError(
                f"recv from rank {message.source}: the message is {message.count} x {DTYPE_NAMES[message.dtype]} with "
                f"tag {message.tag}, the receive expects {buffer.count} x {DTYPE_NAMES[buffer.dtype]}"
            )
        return room

    def copied(message: Message, room: Buffer) -> None:
        if room is not buffer:
            room.finish()

    return QueuedReceive(queue, "recv", src, tag, accept, copied)


def _matches(message: Message, src: int, tag: int) -> bool:
    return src in (message.source, ANY) and tag in (message.tag, ANY)


def _overlap(earlier: QueuedReceive, later: QueuedReceive) -> bool:
    """Whether one message could match both."""
    return (ANY in (earlier.source, later.source) or earlier.source == later.source) and (
        ANY in (earlier.tag, later.tag) or earlier.tag == later.tag
    )


def _shown(src: int) -> str:
    return "any rank" if src == ANY else f"rank {src}"


def _label(tag: int) -> str:
    return "any tag" if tag == ANY else f"tag {tag}"


# ---- objects ----

MAGIC = b"\x93rankwise object".ljust(64)
"""Precedes an object in its message, which is an array of bytes. Its length keeps the object aligned."""


def _is_object(message: Message, buffer: Buffer) -> bool:
    if message.dtype is not DType.U8 or message.count < len(MAGIC):
        return False
    return bool(np.asarray(buffer.array)[: len(MAGIC)].tobytes() == MAGIC)


def _memory_for_object(message: Message) -> Buffer:
    if message.dtype is not DType.U8 or message.count < len(MAGIC):
        raise MismatchError(f"recv_object: {_described(message)}, not an object; receive it with recv or recv_any")
    return NUMPY.empty((message.count,), DType.U8)


def _check_object(message: Message, buffer: Buffer) -> None:
    if not _is_object(message, buffer):
        raise MismatchError(f"recv_object: {_described(message)}, not an object; receive it with recv_any")


def _described(message: Message) -> str:
    what = f"an array of {message.count} x {DTYPE_NAMES[message.dtype]}"
    return f"the message from rank {message.source} with tag {message.tag} is {what}"
