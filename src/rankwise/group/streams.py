"""Streams and events: functions of the program that run concurrently with it and with its communication.

compute = rw.overlap.Stream()
compute.submit(backward)                  # runs on the stream's thread
group.stream.wait_stream(compute)         # later operations of the group wait for it
group.all_reduce(x, async_op=True)
compute.wait_stream(group.stream)         # later functions on the stream wait for the sum
compute.submit(step)
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from rankwise._native import HostEvents, HostStream
from rankwise.contract.closing import CLOSE_TIMEOUT, Closeable, ClosingOrder, close_at_exit
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import RankwiseError
from rankwise.contract.logger import logger
from rankwise.contract.shortcuts import FailedWork
from rankwise.contract.stream_sync import THIS_THREAD, StreamSyncOps
from rankwise.contract.timeouts import check_wait
from rankwise.contract.work import Work
from rankwise.group.base import nothing, of_kind
from rankwise.group.work import Pending, raise_first

T = TypeVar("T")


class Event:
    """A mark in a stream, for which other streams and threads can wait.

    It is recorded at the present end of a stream's queue, and is complete when everything queued there has run; a
    function that raised has run too. A wait refers to the last record before the wait, and a later record does not
    change it. A wait for an event that was never recorded returns at once. An event can never complete if its stream is
    closed before reaching it, or belongs to a group that has failed by then; work that waits for it is then dropped and
    fails for that reason.

    Example:
        >>> ready = rw.overlap.Event()
        >>> with rw.overlap.Stream() as compute:
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
        """Record the event at the present end of the stream's queue; None: after the calling thread's work so far."""
        if stream is None:
            HostEvents.record(self.handle, THIS_THREAD)
        else:
            _stream(stream).record_event(self)

    def wait(self, stream: Stream | GroupStream | None = None) -> None:
        """Make the stream wait for the event before it runs later work; None: block the calling thread."""
        if stream is None:
            HostEvents.wait(THIS_THREAD, self.handle)
        else:
            _stream(stream).wait_event(self)

    def query(self) -> bool:
        """Whether the event is complete or was never recorded; never blocks."""
        return HostEvents.reached(self.handle)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the calling thread until the event is complete.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            CollectiveTimeout: the time is over.
            ClosedError: the event can never complete; or the error of the group that failed is raised.
        """
        HostEvents.synchronize(self.handle, None if timeout is None else check_wait(timeout))

    def __del__(self, destroy: Callable[[int], None] = HostEvents.destroy) -> None:  # the module may be gone by then
        if hasattr(self, "handle"):
            destroy(self.handle)


class Stream(Closeable):
    """An ordered queue of functions, run one after the other by a thread of the stream's own.

    The thread starts with the first function and sleeps while the queue is empty. Any thread may submit. The error of a
    function is raised by its Work, or else by the next `synchronize`; an error that neither has raised is logged when
    the stream is closed, the first hundred of them. Later functions run regardless.

    `close`, the end of a `with` block, the destructor and the end of the program give queued functions one second, then
    drop the rest (their Works raise ClosedError) and log that; they never raise and never hang. A function that is
    still running then is left running on its thread.

    A stream that waits for an event which can never complete drops all later work: see Event.

    Args:
        name: shown in messages.

    Example:
        >>> with rw.overlap.Stream() as compute:
        ...     works = [compute.submit(pow, 2, exponent) for exponent in range(4)]
        ...     compute.synchronize()
        ...     [work.wait() for work in works]
        [1, 2, 4, 8]
    """

    def __init__(self, name: str | None = None) -> None:
        self._native = HostStream.create()
        self._pid = os.getpid()
        self._closed = False
        self.name = name or f"stream {self._native.handle}"
        self._failed: deque[FailedWork] = deque()
        _open[next(_numbers)] = self

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}, handle {self.handle}{', closed' if self._closed else ''}>"

    @property
    def handle(self) -> int:
        """The stream as the int that `StreamSyncOps` takes."""
        return self._native.handle

    def submit(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Work[T]:
        """Queue `function(*args, **kwargs)` and return its Work at once.

        The Work's `wait` without a timeout waits without limit. It raises ClosedError if the function was dropped, and
        the error of a failed group if the function had to wait for its event.

        Raises:
            ClosedError: the stream is closed.
        """
        of_kind(function, "function", Callable, "a function")
        return self._native.submit((lambda: function(*args, **kwargs)) if args or kwargs else function)

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event, or a new one, at the present end of the queue, and return it."""
        event = Event() if event is None else _event(event)
        HostEvents.record(event.handle, self.handle)
        return event

    def wait_event(self, event: Event) -> None:
        """Make functions submitted later wait for the event, as last recorded. Does not block the caller."""
        HostEvents.wait(self.handle, _event(event).handle)

    def wait_stream(self, stream: Stream | GroupStream) -> None:
        """Make functions submitted later wait for all work that is queued on `stream` now."""
        self.wait_event(_stream(stream).record_event())

    def query(self) -> bool:
        """Whether all submitted functions have run; never blocks."""
        return self._native.idle()

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the caller until all functions submitted so far have run.

        Then raises the first error of a function whose Work has not been waited for, if there is one.

        Args:
            timeout: seconds; None waits without limit.

        Raises:
            CollectiveTimeout: the time is over.
        """
        self._native.sync(None if timeout is None else check_wait(timeout))
        self._failed += self._native.failed()
        raise_first(self._failed)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Give queued functions up to `timeout` seconds, then drop the rest. May be repeated.

        Raises:
            TypeError, ValueError: `timeout` is not a number of seconds; nothing is closed then. It raises nothing else.
        """
        if self._closed or os.getpid() != self._pid:  # after a fork the thread exists only in the parent
            return
        timeout = check_wait(timeout, optional=False)
        self._closed = True
        ran, ended, failed = self._native.close(timeout)
        if not ran:
            left = "" if ended else "; a function is still running and was left on its thread"
            logger().warning("closing %s: work was still queued after %g s and was dropped%s", self.name, timeout, left)
        for work in [*self._failed, *failed]:
            if not work.waited:
                error = work.exception()
                logger().error("%s: a function failed, and no wait() raised its error", self.name, exc_info=error)

    def __del__(self) -> None:
        if hasattr(self, "_failed"):  # absent if __init__ raised
            self.close()


class GroupStream:
    """The stream of a group, `group.stream`: its operations with async_op=True, in the order of the calls.

    Blocking operations run after all of them; messages (send, recv and the like) run independently. On a backend
    without streams (its `stream_sync` is None) `wait_event` and `wait_stream` block the caller, and recording an event
    here blocks until the operations before it are complete.

    Example:
        >>> x = np.ones(3)
        >>> with rw.overlap.Stream() as compute:
        ...     work = compute.submit(np.multiply, x, 2, out=x)
        ...     group.stream.wait_stream(compute)
        ...     reducing = group.all_reduce(x, async_op=True)
        ...     compute.wait_stream(group.stream)
        ...     compute.submit(np.add, x, 1).wait().tolist()
        [5.0, 5.0, 5.0]
    """

    def __init__(self, comm: Communicator, pending: Pending) -> None:
        self.ops: StreamSyncOps = comm.stream_sync or BlockingStreamSync(comm)
        """The StreamSyncOps of the communicator, or a substitute if the backend has none."""
        self._pending = pending

    def record_event(self, event: Event | None = None) -> Event:
        """Record the event, or a new one, after all operations that the group has started so far; returns it."""
        event = Event() if event is None else _event(event)
        self.ops.record_on_comm_stream(event.handle)
        return event

    def wait_event(self, event: Event) -> None:
        """Make operations that the group starts later wait for the event, as last recorded.

        If the wait takes longer than the group's `timeout`, the group fails: every rank raises
        CollectiveTimeout.
        """
        self.ops.comm_stream_wait_event(_event(event).handle)

    def wait_stream(self, stream: Stream | GroupStream) -> None:
        """Make operations that the group starts later wait for all work that is queued on `stream` now."""
        self.wait_event(_stream(stream).record_event())

    def synchronize(self) -> None:
        """Block the caller until all operations started so far have run.

        Then raises the first error of an operation whose Work has not been waited for, if there is one, or else the
        group's failure if the group has failed.

        Raises:
            CollectiveTimeout: the operations take longer than the group's `timeout`.
        """
        failure = None
        try:
            self.ops.sync_comm_stream()
        except RankwiseError as error:
            failure = error
        self._pending.raise_first()
        if failure is not None:
            raise failure


def _event(event: Event) -> Event:
    return of_kind(event, "event", Event, "an Event")


def _stream(stream: Stream | GroupStream) -> Stream | GroupStream:
    return of_kind(stream, "stream", (Stream, GroupStream), "a Stream or the stream of a group")


class BlockingStreamSync(StreamSyncOps):
    """For a communicator that has no StreamSyncOps: a wait for an event blocks the caller."""

    create_event, destroy_event = staticmethod(HostEvents.create), staticmethod(HostEvents.destroy)
    record_on_stream, stream_wait_event = staticmethod(HostEvents.record), staticmethod(HostEvents.wait)

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def record_on_comm_stream(self, event: int) -> None:
        self.sync_comm_stream()
        HostEvents.record(event, THIS_THREAD)

    def comm_stream_wait_event(self, event: int) -> None:
        HostEvents.synchronize(event, self._comm.timeout)

    def sync_comm_stream(self) -> None:
        for _ in range(2):  # after everything that was started; once more, in case the group failed meanwhile
            self._comm.start_call(nothing).wait(self._comm.timeout)


_open: WeakValueDictionary[int, Stream] = WeakValueDictionary()
_numbers = itertools.count()


def _close_all(left: Callable[[], float]) -> None:
    """Close the streams that are still open at interpreter exit, the newest first."""
    for _, stream in sorted(_open.items(), reverse=True):
        stream.close(left())


close_at_exit(ClosingOrder.STREAMS, _close_all)
