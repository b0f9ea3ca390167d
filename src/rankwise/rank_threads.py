"""Ranks that are threads of this process: they are started here, get their groups, make calls, and are interrupted.

`rw.spawn` and `rw.Pool` with threads=True and `rw.testing.run_ranks` use them. What a call returns or raises is the
object itself; nothing is pickled.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from rankwise import _native
from rankwise.backends.native import threads
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import as_exception
from rankwise.group import default_group
from rankwise.group.group import Group
from rankwise.group.references import References
from rankwise.system.settings import Settings

T = TypeVar("T")

GRACE = 1.0  # seconds that calls get to end on their own, and again after they have been interrupted
SLICE = 0.5  # longest single wait in seconds: Ctrl-C just before a wait does not end it
SHORT = 0.2  # seconds for threads to end if not all have ended their calls


@dataclass
class CallEnd(Generic[T]):
    """How a rank's call ended: it returned `value`, or raised `error`."""

    rank: int
    value: T | None = None
    error: BaseException | None = None

    def exception(self) -> Exception:
        """The error of a call that failed, to be raised by whoever asked for the call."""
        assert self.error is not None
        return as_exception(self.rank, self.error)


@dataclass(frozen=True)
class Invitation:
    """What a rank needs to join a group. segment: the group's memory, if the engine made it."""

    rank: int
    connect: Callable[[], Communicator]
    backend: str = "threads"
    segment: _native.Segment | None = None
    references: References | None = None
    """What the ranks send by reference."""


def invitations(n: int, timeout: float | None) -> list[Invitation]:
    """How n ranks join a new segment. timeout: None as in `rw.init`."""
    segment = _native.Segment.create(n)
    seconds = Settings.read().timeout if timeout is None else timeout
    references = References()
    return [
        Invitation(rank, partial(threads.connect, segment, rank, seconds), segment=segment, references=references)
        for rank in range(n)
    ]


class RankThreads:
    """n threads that are ranks. A rank makes the calls that it is given one after the other, until `close`.

    The threads are daemons: Python code can be interrupted, but not a call such as `time.sleep` or a loop in C.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._groups: dict[int, Group] = {}  # by rank
        self._lock = threading.RLock()  # the destructor of a pool may run anywhere
        self._failed = ""  # why groups fail, also those that are only about to be made
        self._ranks = [_Rank(number) for number in range(n)]
        for rank in self._ranks:
            rank.start()

    @contextmanager
    def member(self, invitation: Invitation) -> Iterator[Group]:
        """A context in which this thread is a rank of a new group, which is its default group and is closed in the end.

        If the block raises an error, the group fails on the other ranks too, and so do those that were made of it.
        """
        with rank_of_group(invitation.connect, invitation.backend) as group:
            group.related.references = invitation.references
            with self._lock:
                self._groups[invitation.rank] = group
                failed = self._failed
            try:
                if failed:
                    group.related.abort(failed)
                yield group
            except BaseException as error:
                group.related.abort(f"it raised {type(error).__name__}")
                raise
            finally:
                with self._lock:
                    del self._groups[invitation.rank]

    def call(self, rank: int, call: Callable[[], T], ended: Callable[[CallEnd[T]], object]) -> None:
        """Let a rank make a call, after those that it was given before. `ended` is called in its thread."""
        self._ranks[rank].give(call, ended)

    def call_all(self, call: Callable[[int], T], limit: float | None = None) -> list[CallEnd[T]]:
        """Let every rank make `call(rank)`; return how these calls ended, in the order in which they did.

        limit: seconds after which calls that last are interrupted, and, if they ignore that, are missing in the result.
        None: they are interrupted only if another has failed, and are waited for. In any case Ctrl-C in this thread,
        or another exception of a signal handler, makes their groups fail, interrupts them, and is raised when they have
        ended, or a few seconds later.
        """
        endings: SimpleQueue[CallEnd[T]] = SimpleQueue()
        ended: list[CallEnd[T]] = []
        collect = partial(_collect, endings, ended, self.n)
        try:
            for rank in range(self.n):
                self.call(rank, partial(call, rank), endings.put)
            # Without a limit, the first error gives the other calls GRACE seconds to end on their own.
            if not (collect(limit, to_error=limit is None) or (limit is None and collect(GRACE))):
                self._end(collect)
                if limit is None:
                    collect(None)
        except BaseException:
            self.fail("it was interrupted")
            self._end(collect)
            raise
        return ended

    def _end(self, collect: Callable[[float], bool]) -> None:
        self.interrupt(range(self.n))
        collect(GRACE)

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the calls that these ranks were given, as soon as they run Python code."""
        for rank in ranks:
            self._ranks[rank].interrupt()

    def fail(self, reason: str) -> None:
        """The ranks' groups fail, also those that are only about to be made, until `renew`."""
        with self._lock:
            self._failed = reason
            groups = list(self._groups.values())
        for group in groups:
            group.related.abort(reason)

    def renew(self) -> None:
        """The ranks may make groups again after `fail`."""
        with self._lock:
            self._failed = ""

    def close(self) -> None:
        """The threads end after the calls that they were given. May be repeated."""
        for rank in self._ranks:
            rank.end()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the threads have ended."""
        end = None if timeout is None else time.monotonic() + timeout
        for rank in self._ranks:
            if rank is not threading.current_thread():
                rank.join(None if end is None else max(0.0, end - time.monotonic()))


class _Rank(threading.Thread):
    def __init__(self, number: int) -> None:
        super().__init__(name=f"rank {number}", daemon=True)
        self.number = number
        self._calls: SimpleQueue[tuple[int, Callable[[], Any], Callable[[CallEnd[Any]], object]] | None] = SimpleQueue()
        self._given = 0  # calls so far; their numbers count from 1
        self._cancelled = 0  # the number of the last one that does not begin any more
        self._lock = threading.RLock()  # the destructor of a pool may run anywhere
        self._calling = False
        self._interrupted = False

    def give(self, call: Callable[[], Any], ended: Callable[[CallEnd[Any]], object]) -> None:
        with self._lock:
            self._given += 1
            self._calls.put((self._given, call, ended))

    def end(self) -> None:
        self._calls.put(None)

    def run(self) -> None:
        pid = os.getpid()
        with default_group.rank_of_this_thread(None):
            while (item := self._calls.get()) is not None:
                number, call, ended = item
                ending = self._make(number, call)
                del item, call  # the thread keeps nothing alive while it waits
                if os.getpid() != pid:  # a child that the call has forked, and that ends as the call does
                    _end_process(ending.error)
                ended(ending)
                del ended, ending

    def interrupt(self) -> None:
        with self._lock:
            self._cancelled = self._given
            if self._calling and not self._interrupted:
                self._interrupted = True
                assert self.ident is not None
                _raise_in(self.ident, KeyboardInterrupt)

    def _make(self, number: int, call: Callable[[], Any]) -> CallEnd[Any]:
        try:
            try:
                with self._lock:
                    if number <= self._cancelled:
                        raise KeyboardInterrupt
                    self._calling = True
                return CallEnd(self.number, call())
            finally:
                self._no_more_interrupts()
        except BaseException as error:  # noqa: BLE001 - whoever asked for the call raises it
            self._no_more_interrupts()  # again, because the first time may have been interrupted; only once a call
            return CallEnd(self.number, error=error)

    def _no_more_interrupts(self) -> None:
        with self._lock:
            self._calling = False
            if self._interrupted:
                self._interrupted = False
                _take_back_interrupt()


def _end_process(error: BaseException | None) -> None:
    """End this process as Python does when its program ends with this error, or well."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(code)


class _Instead(BaseException):
    """Takes the place of an interrupt that has not been raised yet."""


def _take_back_interrupt() -> None:
    """Discard an interrupt that is pending in this thread.

    Clearing it with NULL is not enough: until some exception is raised, Python up to 3.12 makes every thread keep
    looking for one, so that a thread with a trace function makes no progress.
    """
    try:
        while True:  # again if the first one was raised in a destructor, which ignores it
            _raise_in(threading.get_ident(), _Instead)
    except _Instead:
        return


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in a thread when it next runs Python code; it replaces one that is still pending there."""
    import ctypes  # which few programs need

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _collect(
    endings: SimpleQueue[CallEnd[T]], ended: list[CallEnd[T]], n: int, seconds: float | None, to_error: bool = False
) -> bool:
    """Add endings to `ended` until there are n, or one is an error, or the time is up; returns whether there are n."""
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    while len(ended) < n:
        left = max(0.0, end - time.monotonic())
        try:
            ended.append(endings.get(timeout=min(left, SLICE)))
        except Empty:
            if left <= SLICE:
                break
        else:
            if to_error and ended[-1].error is not None:
                break
    return len(ended) == n


@contextmanager
def rank_of_group(connect: Callable[[], Communicator], backend: str) -> Iterator[Group]:
    """A context in which this thread is a rank of a new group, which is its default group and is closed in the end."""
    trusted = Settings.read().allow_pickle
    with Group(connect(), backend=backend, allow_pickle=trusted) as group, default_group.rank_of_this_thread(group):
        try:
            yield group
        finally:
            latest = default_group.current()
            if latest is not None and latest is not group:
                latest.close()


def run_on_threads(
    fn: Callable[[Group], T], invitations: Sequence[Invitation], limit: float | None = None
) -> list[CallEnd[T]]:
    """`fn(group)` on new ranks, one for each invitation; how it ended, as `RankThreads.call_all` returns it."""
    ranks = RankThreads(len(invitations))

    def call(rank: int) -> T:
        with ranks.member(invitations[rank]) as group:
            return fn(group)

    endings: list[CallEnd[T]] = []
    try:
        endings = ranks.call_all(call, limit)
    finally:
        ranks.close()
        ranks.join(None if len(endings) == len(invitations) else SHORT)
    return endings


def warn_of_gil(n: int) -> None:
    """Say once per process that Python code of n threads does not run in parallel, if that is so.

    For a function that a public one calls: the warning names the line that called that one.
    """
    if n > 1 and getattr(sys, "_is_gil_enabled", lambda: True)():
        _warn_of_gil()


@lru_cache(1)  # once
def _warn_of_gil() -> None:
    warnings.warn(
        "threads=True: this Python has a global interpreter lock, so only one rank runs Python code at a time; use a "
        "free-threaded Python (python3.13t or later), or processes (threads=False)",
        UserWarning,
        stacklevel=5,
    )
