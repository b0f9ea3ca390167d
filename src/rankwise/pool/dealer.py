"""Deals calls to ranks: tasks to whichever rank is free, and calls that all ranks make at once."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from rankwise.contract.errors import ClosedError, MismatchError, PeerLostError, RankwiseError
from rankwise.contract.timeouts import check_wait

T = TypeVar("T")

CHECKED = 0.001  # seconds a rank from which on the ends of a call are compared, which takes 40 us a rank
MEETINGS = 5  # how often in a row the ranks try to meet if some are lost meanwhile


@dataclass(frozen=True)
class Outcome:
    """What came of a rank's call: a result, an error, or the loss of the rank.

    result: returns what the function returned, or raises TypeError if that has not survived the way here. error: of a
    call that failed. lost: whether the error is the loss of the rank. group_failed: whether there is a result although
    an operation of a group has failed.
    """

    rank: int
    result: Callable[[], Any]
    error: Exception | None = None
    lost: bool = False
    group_failed: bool = False


class Ranks(ABC):
    """The ranks of a pool, as the dealer sees them; they call its methods `deal` to `broke`.

    By default `here`, `receive` and `interrupt` do nothing: a launcher writes the ranks' output and passes Ctrl-C on to
    them, or they are threads of this process, and some thread of the pool receives all answers.
    """

    n: int
    dealer: Dealer

    @abstractmethod
    def start(self, dealer: Dealer) -> None:
        """Make the ranks ready for calls; raises the error if that fails."""

    def here(self) -> None:  # noqa: B027 - does nothing by default
        """Output of the ranks goes to where this thread writes now."""

    def wake(self) -> None:
        """Deal tasks, and end the ranks when there is nothing left to do."""
        if self.dealer.deal():
            self.end()

    @abstractmethod
    def end(self) -> None:
        """Let the ranks, which are idle, end. May be repeated."""

    @abstractmethod
    def packed(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Any:
        """A call as the ranks take it. given: the user's function, which fn may be or call."""

    @abstractmethod
    def send_task(self, rank: int, task: Task) -> None:
        """Let a free rank make the call of a task; called by `deal`. A loss of the rank is reported later."""

    def receive(self, future: TaskFuture, timeout: float | None) -> None:  # noqa: B027 - does nothing by default
        """If this task runs, its answer may be received in this thread, which waits for it."""

    @abstractmethod
    def call(self, call: Any) -> Sequence[Outcome]:
        """Let all ranks, which are free, make a call. Returns what came of it, in the order of arrival."""

    @abstractmethod
    def meet(self, call: Any) -> Sequence[Outcome]:
        """Let all ranks make a group anew, for this call."""

    def interrupt(self, ranks: Collection[int]) -> None:  # noqa: B027 - does nothing by default
        """Interrupt the calls of these ranks."""

    def check(self) -> str:
        """After a call on all ranks: how their collectives differ or failed without an error, or ""."""
        return ""

    @abstractmethod
    def close(self, *, now: bool) -> None:
        """Wait until the ranks have ended. now: also if they are in a call."""


class TaskFuture(Future[Any]):
    """The future of a task. Ctrl-C in `result` interrupts the task too.

    The thread that waits in `result` receives the answer itself, which saves a switch between threads.
    """

    def __init__(self, dealer: Dealer) -> None:
        super().__init__()
        self._dealer = dealer

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            timeout = check_wait(max(timeout, 0))  # as in concurrent.futures, whose map waits for less than 0 when late
        end = None if timeout is None else time.monotonic() + timeout
        try:
            if not self.done():
                self._dealer.ranks.receive(self, timeout)
            return super().result(end and max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            self._dealer.interrupt(self)
            raise


@dataclass(eq=False)
class Task:
    """A call that one rank makes. lost: whether a rank was lost that made it before."""

    call: Any
    future: TaskFuture
    lost: bool = False


class Turn:
    """The place in the queue of a call that all ranks make. At its head, no task is dealt until the call is over."""


class Dealer:
    """The state of a pool. Its methods may be called in any thread."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[Task | Turn] = deque()
        self._alive: set[int] = set()
        self._running: dict[int, Task] = {}
        self._stale = False  # the ranks must meet anew before such a call
        self._ended: BaseException | None = None  # why no more calls are taken
        self._broken = False  # the ranks have ended

    # ---- for the pool ----

    def submit(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Future[Any]:
        """A task, for the next free rank. given: the user's function, which fn may be or call."""
        task = Task(self._packed(fn, args, kwargs, given), TaskFuture(self))
        self.ranks.here()
        with self._changed:
            self._check()
            self._waiting.append(task)
        self.ranks.wake()
        return task.future

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """A call on all ranks, when the tasks that were submitted before are done."""
        call = self._packed(fn, args, kwargs, fn)
        self.ranks.here()
        turn = Turn()
        try:
            with self._changed:
                self._check()
                self._waiting.append(turn)
            self._wait_for_all(turn)
            outcomes = self._call(turn, call)
        finally:
            with self._changed:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self._changed.notify_all()
                others = bool(self._waiting or self._ended)
            if others:
                self.ranks.wake()
        return [outcome.result() for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]

    def interrupt(self, future: Future[Any]) -> None:
        """Interrupt the rank that runs this task, if one does."""
        with self._changed:  # so that no rank begins another task meanwhile
            self.ranks.interrupt([rank for rank, task in self._running.items() if task.future is future])

    def shutdown(self, *, wait: bool, cancel: bool, now: bool = False) -> None:
        """No further calls; end the ranks when the tasks are done, with `wait` before this returns."""
        with self._changed:
            self._ended = self._ended or ClosedError("the pool has been shut down")
            dropped = [task for task in self._waiting if isinstance(task, Task)] if cancel or now else []
            for task in dropped:
                self._waiting.remove(task)
            self._changed.notify_all()
        for task in dropped:
            task.future.cancel()  # not if it was running on a rank that was lost
            _drop(task, ClosedError("the pool has been shut down"))
        if wait and not now:
            with self._changed:
                self._changed.wait_for(lambda: not (self._waiting or self._running))
        if wait or now:
            self.ranks.close(now=now)
        else:
            self.ranks.wake()

    # ---- for the ranks ----

    def deal(self) -> bool:
        """Give waiting tasks to free ranks. Returns whether the pool has been shut down and has nothing left to do."""
        with self._changed:
            while self._waiting and (free := self._alive.difference(self._running)):
                task = self._waiting[0]
                if isinstance(task, Turn):
                    break
                self._waiting.popleft()
                if task.lost or task.future.set_running_or_notify_cancel():
                    rank = min(free)
                    self._running[rank] = task
                    self.ranks.send_task(rank, task)
            self._changed.notify_all()
            return self._ended is not None and not (self._waiting or self._running)

    def joined(self, rank: int) -> None:
        """A rank is ready for calls."""
        with self._changed:
            self._alive.add(rank)
            self._changed.notify_all()

    def claim(self, future: TaskFuture, claim: Callable[[int], T | None]) -> tuple[T, int, Task] | None:
        """If a rank runs this task: what `claim(rank)` returns, unless that is None, the rank and the task."""
        with self._changed:
            for rank, task in self._running.items():
                if task.future is future:
                    claimed = claim(rank)
                    return None if claimed is None else (claimed, rank, task)
        return None

    def answered(self, outcome: Outcome, claimed: Task | None = None) -> None:
        """A rank has done its task. claimed: the task, which may have been given to another rank since."""
        with self._changed:
            if claimed is not None and self._running.get(outcome.rank) is not claimed:
                return
            task = self._running.pop(outcome.rank)
            more = claimed is not None and bool(self._waiting or self._ended)
            self._changed.notify_all()
        if more:
            self.ranks.wake()
        _settle(task.future, outcome)

    def leave(self, rank: int) -> None:
        """A rank is still in a call on all ranks, which nobody waits for any more; it is free when it answers."""
        with self._changed:
            if rank in self._alive:
                self._running[rank] = Task(None, TaskFuture(self), lost=True)  # which is not done again

    def lost(self, rank: int, error: PeerLostError) -> None:
        """A rank's process has ended. Its task is done again, once."""
        with self._changed:
            self._alive.discard(rank)
            self._stale = True
            task = self._running.pop(rank, None)
            if task is not None and not task.lost:
                task.lost = True
                self._waiting.appendleft(task)
                task = None
            self._changed.notify_all()
        if task is not None:
            task.future.set_exception(error)

    def broke(self, error: BaseException) -> None:
        """The ranks have ended, or cannot go on."""
        with self._changed:
            self._ended, self._broken = self._ended or error, True
            left = [*self._running.values(), *(task for task in self._waiting if isinstance(task, Task))]
            self._running.clear()
            self._waiting = deque(turn for turn in self._waiting if isinstance(turn, Turn))
            self._changed.notify_all()
        for task in left:
            _drop(task, error)

    # ---- within ----

    def _check(self) -> None:
        if isinstance(self._ended, ClosedError):
            raise ClosedError(f"{self._ended}; make a new one")
        if self._ended is not None:
            raise self._ended

    def _packed(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Callable[..., Any]
    ) -> Any:
        if not callable(given):
            raise TypeError(f"fn={given!r}: expected a function")
        return self.ranks.packed(fn, args, kwargs, given)

    def _wait_for_all(self, turn: Turn) -> None:
        """Wait until all ranks are free for this call."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._broken
                    or (self._waiting[0] is turn and not self._running and len(self._alive) == self.ranks.n)
                )
            )
            if self._broken:
                self._check()

    def _call(self, turn: Turn, call: Any) -> Sequence[Outcome]:
        if self._stale:
            self._meet(turn, call)
        well = False
        try:
            begin = time.monotonic()
            outcomes = self.ranks.call(call)
            short = time.monotonic() - begin < CHECKED * self.ranks.n  # then a later collective finds a difference
            failed = [outcome for outcome in outcomes if outcome.error is not None]
            why = "" if failed or short else self.ranks.check()
            well = not (failed or why or any(outcome.group_failed for outcome in outcomes))
        finally:
            if not well:
                self._stale = True
        if failed:
            error = _to_blame(failed)
            try:
                raise error
            finally:
                del outcomes, failed, error  # which the error's traceback would keep, and they the error
        if why:
            raise MismatchError(why)
        return outcomes

    def _meet(self, turn: Turn, call: Any) -> None:
        """The ranks make a new group, as often as some of them are lost meanwhile."""
        for _ in range(MEETINGS):
            self._wait_for_all(turn)
            self._stale, met = False, False
            try:
                failed = [outcome for outcome in self.ranks.meet(call) if outcome.error is not None]
                met = not failed
            finally:  # Ctrl-C may have ended it
                self._stale = self._stale or not met
            if met:
                return
        raise _to_blame(failed)


def _to_blame(failed: Sequence[Outcome]) -> Exception:
    """The first error that does not merely follow from that of another rank, or from its loss."""
    errors = [outcome.error for outcome in failed if outcome.error is not None]
    own = [error for error in errors if not isinstance(error, PeerLostError) and type(error) is not RankwiseError]
    lost = [outcome.error for outcome in failed if outcome.lost and outcome.error is not None]
    return [*own, *lost, *errors][0]


def _settle(future: TaskFuture, outcome: Outcome) -> None:
    if outcome.error is not None:
        future.set_exception(outcome.error)
        return
    try:
        result = outcome.result()
    except TypeError as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _drop(task: Task, error: BaseException) -> None:
    """End a task that will not run; concurrent.futures.wait must learn of a cancelled one too."""
    if task.future.cancelled():
        task.future.set_running_or_notify_cancel()
    else:
        task.future.set_exception(error)
