"""Streams and events: work of the program's own that runs beside it, and beside its communication.

compute = rw.Stream()
compute.submit(backward)                  # runs on the stream's thread
group.stream.wait_stream(compute)         # what the group starts from here on waits for it
group.all_reduce(x, async_op=True)
compute.wait_stream(group.stream)         # and what comes next on the stream, for the sum
compute.submit(step)
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from rankwise._native import HostEvents
from rankwise._native import Stream as NativeStream
from rankwise.contract.closing import CLOSE_TIMEOUT, Turn, close_at_exit
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import RankwiseError
from rankwise.contract.stream_sync import THIS_THREAD, StreamSyncOps
from rankwise.contract.work import Work
from rankwise.group.base import nothing
from rankwise.group.work import Pending

if TYPE_CHECKING:
    from logging import Logger

T = TypeVar("T")

MOST_FAILURES = 100  # kept of one stream until `synchronize` raises them; older ones are logged


class Event:
    """A mark in a stream, for which other streams and threads can wait.

    It is recorded at the present end of a stream's queue, and reached when all that was there has
    run; a function that raised has run too. To wait for it is to wait for what was recorded last
    before the wait; a later record does not change that. Where nothing was recorded yet, nothing is
    waited for. An event on a stream that is closed before it comes to it, or on the stream of a group
    that has failed by then, cannot be reached: what waits for it is dropped and fails for that reason.

    >>> ready = rw.Event()
    >>> with rw.Stream() as compute:
    ...     work = compute.submit(lambda: 6 * 7)
    ...     ready.record(compute)
    ...     ready.synchronize()
    ...     ready.query(), work.done(), work.wait()
    (True, True, 42)
    """

    def __init__(self) -> None:
        self.handle: int = HostEvents.create()
        """The event as the int that `StreamSyncOps` takes."""

    def record(self, stream: Stream | GroupStream | None = None) -> None:
        """Stand for the present end of the stream's queue; None: for what the calling thread has done."""
        if stream is None:
            HostEvents.record(self.handle, THIS_THREAD)
        else:
            stream.record_event(self)

    def wait(self, stream: Stream | GroupStream | None = None) -> None:
        """Let the stream run what comes after this once the event is reached; None: block the caller until then."""
        if stream is None:
            HostEvents.wait(THIS_THREAD, self.handle)
        else:
            stream.wait_event(self)

    def query(self) -> bool:
        """Whether the event is reached, or nothing was recorded; never blocks."""
        return HostEvents.reached(self.handle)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the caller until the event is reached.

        timeout: seconds; None waits as long as it takes. CollectiveTimeout past it. Where it cannot be
        reached: ClosedError, or the error of the group that failed.
        """
        HostEvents.synchronize(self.handle, timeout)

    def __del__(self, destroy: Callable[[int], None] = HostEvents.destroy) -> None:  # the module may be gone by then
        if hasattr(self, "handle"):
            destroy(self.handle)


class StreamWork(Work[T]):
    """A function on a Stream; `wait` gives what it returned and raises what it raised."""

    def __init__(self, stream: Stream, function: Callable[[], T]) -> None:
        self._function: Callable[[], T] | None = function
        self._failures = stream._failures
        self._told = False  # the caller knows of the error
        self._value: T
        self._error: BaseException | None = None
        self._task = stream._native.submit(self._run)

    def _run(self) -> None:
        assert self._function is not None  # it is run once
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `wait` raises it
            self._error = error
            self._failures.add(self)
        self._function = None

    def wait(self, timeout: float | None = None) -> T:
        """Block until the function has run. timeout: seconds; None waits as long as it takes.

        CollectiveTimeout past it, with the function still queued. Where it was dropped: ClosedError, or
        the error of the group that it waited for.
        """
        self._task.wait(timeout)
        if self._error is not None:
            self._told = True
            raise self._error
        return self._value

    def done(self) -> bool:
        return self._task.done()


class _Failures:
    """The works of a stream that raised, until somebody is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.works: deque[StreamWork[Any]] = deque()

    def add(self, work: StreamWork[Any]) -> None:
        self.works.append(work)
        if len(self.works) > MOST_FAILURES:
            self.log_one()

    def raise_first(self) -> None:
        while self.works:
            work = self.works.popleft()
            if not work._told:
                work.wait()

    def log_one(self) -> None:
        work = self.works.popleft()
        if not work._told:
            _log().error("%s: a function raised, and nobody asked for its result", self.name, exc_info=work._error)

    def log_all(self) -> None:
        while self.works:
            self.log_one()


class Stream:
    """An ordered queue of functions, run one after the other by a thread of the stream's own.

    The thread begins with the first function and sleeps while there is none. Any thread may submit.
    What a function raises comes out of its Work, or else of the next `synchronize`; what neither
    was asked for is logged. The functions after it run all the same.

    `close`, a `with` block's end, the destructor and the end of the program give what is queued a
    second, then drop the rest (those Works raise ClosedError) and log it; they never raise and never
    hang. A function that goes on regardless is left alone on its thread.

    A stream that waited for an event that cannot be reached drops all that follows: see Event.

    name: for messages.

    >>> with rw.Stream() as compute:
    ...     works = [compute.submit(pow, 2, exponent) for exponent in range(4)]
    ...     compute.synchronize()
    ...     [work.wait() for work in works]
    [1, 2, 4, 8]
    """

    def __init__(self, name: str | None = None) -> None:
        self._native = NativeStream.create()
        self._pid = os.getpid()
        self._closed = False
        self.name = name or f"stream {self._native.handle}"
        self._failures = _Failures(self.name)
        _open[next(_numbers)] = self

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}, handle {self.handle}{', closed' if self._closed else ''}>"

    @property
    def handle(self) -> int:
        """The stream as the int that `StreamSyncOps` takes."""
        return self._native.handle

    def submit(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Work[T]:
        """Queue `function(*args, **kwargs)` and return its Work at once. ClosedError after `close`."""
        return StreamWork(self, (lambda: function(*args, **kwargs)) if args or kwargs else function)

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event, or a new one, at the present end of the queue, and return it."""
        event = event or Event()
        HostEvents.record(event.handle, self.handle)
        return event

    def wait_event(self, event: Event) -> None:
        """Run what is submitted after this once the event, as last recorded, is reached. Does not block the caller."""
        HostEvents.wait(self.handle, event.handle)

    def wait_stream(self, stream: Stream | GroupStream) -> None:
        """Run what is submitted after this once all that is queued on `stream` now has run."""
        self.wait_event(stream.record_event())

    def query(self) -> bool:
        """Whether all that was submitted has run; never blocks."""
        return self._native.idle()

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the caller until all that was submitted before has run.

        Then raises the first error of a function whose Work nobody has waited for, if there is one.
        timeout: seconds; None waits as long as it takes. CollectiveTimeout past it.
        """
        self._native.sync(timeout)
        self._failures.raise_first()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give what is queued up to `timeout` seconds, then drop the rest. Never raises; may be repeated."""
        if self._closed or os.getpid() != self._pid:  # after a fork the thread is the parent's
            return
        self._closed = True
        ran, ended = self._native.close(timeout)
        if not ran:
            left = "" if ended else "; a function that goes on was left alone"
            _log().warning("closing %s: work was still queued after %g s and was dropped%s", self.name, timeout, left)
        self._failures.log_all()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_failures"):  # absent where __init__ raised
            self.close()


class GroupStream:
    """The stream of a group: what the group was told with async_op=True, in that order.

    `group.stream` is it. Blocking operations run after all of it, messages (send, recv and the like)
    beside it. Where the backend has no stream (its `stream_sync` is None), async_op=True runs at
    once, and so does this: `wait_event` and `wait_stream` block the caller, events are reached at once.

    >>> x = np.ones(3)
    >>> with rw.Stream() as compute:
    ...     work = compute.submit(np.multiply, x, 2, out=x)
    ...     group.stream.wait_stream(compute)
    ...     reducing = group.all_reduce(x, async_op=True)
    ...     compute.wait_stream(group.stream)
    ...     compute.submit(np.add, x, 1).wait().tolist()
    [5.0, 5.0, 5.0]
    """

    def __init__(self, comm: Communicator, pending: Pending) -> None:
        self.ops: StreamSyncOps = comm.stream_sync or BlockingStreamSync(comm)
        """The seven operations on events and streams as ints, also where the backend has none."""
        self._pending = pending

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event, or a new one, behind all that the group has started so far, and return it."""
        event = event or Event()
        self.ops.record_on_comm_stream(event.handle)
        return event

    def wait_event(self, event: Event) -> None:
        """Run what the group is told after this once the event, as last recorded, is reached.

        Longer than the group's `timeout` is a failure of the group: CollectiveTimeout on every rank.
        """
        self.ops.comm_stream_wait_event(event.handle)

    def wait_stream(self, stream: Stream | GroupStream) -> None:
        """Run what the group is told after this once all that is queued on `stream` now has run."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Block the caller until all that the group has started so far has run; CollectiveTimeout past `timeout`.

        Then raises the first error of an operation whose Work nobody has waited for, if there is one, and
        else the failure of a group that has failed.
        """
        failure = None
        try:
            self.ops.sync_comm_stream()
        except RankwiseError as error:
            failure = error
        self._pending.raise_first()
        if failure is not None:
            raise failure


class BlockingStreamSync(StreamSyncOps):
    """For a communicator without a stream of its own, whose `start` runs an operation at once."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def create_event(self) -> int:
        return HostEvents.create()

    def destroy_event(self, event: int) -> None:
        HostEvents.destroy(event)

    def record_on_stream(self, event: int, stream: int) -> None:
        HostEvents.record(event, stream)

    def record_on_comm_stream(self, event: int) -> None:
        self.sync_comm_stream()
        HostEvents.record(event, THIS_THREAD)

    def comm_stream_wait_event(self, event: int) -> None:
        HostEvents.synchronize(event, self._comm.timeout)

    def stream_wait_event(self, stream: int, event: int) -> None:
        HostEvents.wait(stream, event)

    def sync_comm_stream(self) -> None:
        for _ in range(2):  # behind all that was started; and once more, where the group has failed by that
            self._comm.start_call(nothing).wait(self._comm.timeout)


_open: WeakValueDictionary[int, Stream] = WeakValueDictionary()
_numbers = itertools.count()


def _close_all(left: Callable[[], float]) -> None:
    """Close what is still open at interpreter exit, the newest first."""
    for _, stream in sorted(_open.items(), reverse=True):
        stream.close(left())


close_at_exit(Turn.STREAMS, _close_all)


def _log() -> Logger:
    import logging  # slow to import

    return logging.getLogger("rankwise")
