"""Deals calls to ranks: tasks to whichever rank is free, and calls that all ranks make at once."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as Late
from itertools import count
from typing import Any, NamedTuple

from rankwise.contract.errors import ClosedError, MismatchError, PeerLostError, RankwiseError
from rankwise.contract.timeouts import check_wait

PENDING = "PENDING"  # the state of a future that may be cancelled
CHECKED = 0.001  # seconds a rank from which on the ends of a call are compared, which takes 40 us a rank
MEETINGS = 5  # how often in a row the ranks try to meet if some are lost meanwhile
AHEAD = 64  # tasks that a rank is given at most, the one that it does too
HELP = 32  # tasks that a thread submits before it looks for answers
LONG = 0.02  # seconds of a task, after which those wait again that were given to its rank too


class Outcome(NamedTuple):
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

    By default most of it does nothing: a launcher writes the ranks' output and passes Ctrl-C on to them, or they are
    threads of this process, and some thread of the pool receives all answers.
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
    def packed(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The call `fn(*args, **kwargs)` as the ranks take it."""

    @abstractmethod
    def packer(self, fn: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
        """What makes of `columns` the call `each_of(fn, *columns)` as the ranks take it. fn is packed only once."""

    def small(self, call: Any) -> bool:
        """Whether a rank may be sent this call while it makes another one, and `take_back` returns it."""
        return False

    @abstractmethod
    def send_task(self, rank: int, task: Task) -> None:
        """Send a rank a task, without waiting for anything; `sent` follows. A loss of the rank is reported later."""

    def sent(self, rank: int) -> None:  # noqa: B027 - does nothing by default
        """This rank is sent no more for now."""

    def take_back(self, rank: int) -> Collection[int]:
        """The numbers of the tasks that this rank was sent and has not begun, nor will it."""
        return ()

    def receive(self, task: Task, timeout: float | None) -> None:  # noqa: B027 - does nothing by default
        """Answers may be received in this thread, which waits for this task."""

    def help(self) -> None:  # noqa: B027 - does nothing by default
        """Answers that have come may be received in this thread."""

    def notify(self) -> None:  # noqa: B027 - does nothing by default
        """A task has ended, although its answer was not received by the thread that may receive for it."""

    @abstractmethod
    def call(self, call: Any) -> Sequence[Outcome]:
        """Let all ranks, which are idle, make a call. Returns what came of it, in the order of arrival."""

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


class Part(ABC):
    """What a rank was given to do. may_be_redone: whether another rank is to do it if this one is lost."""

    may_be_redone: bool = False

    @abstractmethod
    def settle(self, outcome: Outcome) -> None:
        """The rank has answered."""

    @abstractmethod
    def fail(self, rank: int, error: BaseException) -> None:
        """The rank will not answer any more."""


class Task(Part):
    """A call that one rank makes, whichever has time. It has no more than `map` needs: one thread waits for it.

    The thread that waits in `result` receives the answer itself, which saves a switch between threads. Ctrl-C in
    `result` interrupts the call too.
    """

    def __init__(self, dealer: Dealer, call: Any) -> None:
        self._dealer = dealer
        self.call = call
        self.number = next(dealer.numbers)
        self.rank: int | None = None
        """The rank that it was given to."""
        self.may_be_redone = True
        self._begun = self._dropped = self._ended = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiter: threading.Event | None = None

    def done(self) -> bool:
        return self._ended

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            timeout = check_wait(max(timeout, 0))  # as in concurrent.futures, whose map waits for less than 0 when late
        end = None if timeout is None else time.monotonic() + timeout
        try:
            if not self.done():
                self._dealer.ranks.receive(self, timeout)
            return self._wait(end and max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            self._dealer.interrupt(self)
            raise

    def _wait(self, timeout: float | None) -> Any:
        """Return the result, or raise the error, when there is one."""
        if not self._ended:
            self._waiter = threading.Event()
            if not self._ended and not self._waiter.wait(timeout):
                raise Late("the result of the task did not come in time")
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # which the error's traceback would keep, and it the error

    def cancel(self) -> bool:
        taken_back = self._dealer.take_back(self)
        cancelled = self._drop()
        if taken_back:
            self._dealer.ranks.wake()
        self._dealer.ranks.notify()
        return cancelled

    def _drop(self) -> bool:
        """Cancel it, unless a rank does it, or has done it. Returns whether it is cancelled."""
        self._dropped = not (self._begun or self._ended)
        return self._dropped

    def begin(self, rank: int) -> bool:
        """A rank is to do it. Returns whether it is not cancelled."""
        self.rank = rank
        return not self.may_be_redone or self._begin()

    def _begin(self) -> bool:
        self._begun = not self._dropped
        return self._begun

    def taken_back(self) -> None:
        """It waits again, as if no rank had been given it."""
        self.rank = None
        if self.may_be_redone:  # otherwise it has begun once
            self._wait_again()

    def _wait_again(self) -> None:
        self._begun = False

    def settle(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._end(None, outcome.error)
            return
        try:
            result = outcome.result()
        except TypeError as error:
            self._end(None, error)
        else:
            self._end(result)

    def fail(self, rank: int, error: BaseException) -> None:
        self._end(None, CancelledError() if self._dropped else error)

    def _end(self, value: Any, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._ended = True
        if self._waiter is not None:  # set before that thread has seen that it had not ended
            self._waiter.set()


class FutureTask(Task, Future[Any]):
    """A task with its future, for `submit`."""

    def __init__(self, dealer: Dealer, call: Any) -> None:
        Future.__init__(self)
        super().__init__(dealer, call)

    done, _wait, _drop, _begin = Future.done, Future.result, Future.cancel, Future.set_running_or_notify_cancel

    def _invoke_callbacks(self) -> None:
        self._dealer.calling_back.append(threading.get_ident())
        try:
            super()._invoke_callbacks()  # type: ignore[misc]  # Future has it
        finally:
            self._dealer.calling_back.remove(threading.get_ident())

    def _wait_again(self) -> None:
        self._state = PENDING

    def fail(self, rank: int, error: BaseException) -> None:
        """concurrent.futures.wait must learn of a cancelled one too."""
        if self.cancelled():
            self.set_running_or_notify_cancel()
        else:
            self.set_exception(error)

    def _end(self, value: Any, error: BaseException | None = None) -> None:
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


class Turn:
    """The place in the queue of a call that all ranks make. At its head, no task is dealt until the call is over."""


class Dealer:
    """The state of a pool. Its methods may be called in any thread."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.numbers = count(1)
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._waiting: deque[Task | Turn] = deque()
        self._dealt: dict[int, dict[int, Part]] = {}
        """What each rank that is ready was given and has not answered, by number; it does the first one."""
        self._idle: set[int] = set()  # those that were given nothing
        self._since: dict[int, float] = {}  # when each began what it does
        self._looked = 0.0  # when all were last asked whether they take long
        self._stale = False  # the ranks must meet anew before such a call
        self._losses: dict[int, PeerLostError] = {}  # of each rank that was lost, the latest
        self._ended: BaseException | None = None  # why no more calls are taken
        self._broken = False  # the ranks have ended
        self.calling_back: list[int] = []  # the threads in callbacks of tasks, without which the pool may not go on

    # ---- for the pool ----

    def submit(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Future[Any]:
        """A task, for the next rank that has time."""
        _check_function(fn)
        task = FutureTask(self, self.ranks.packed(fn, args, kwargs))
        self.ranks.here()
        self._add(task)
        return task

    def map(self, fn: Callable[..., Any], chunks: Iterable[Sequence[Any]]) -> list[Task]:
        """A task for each chunk of columns, whose result is `each_of(fn, *columns)`."""
        _check_function(fn)
        pack, tasks = self.ranks.packer(fn), list[Task]()
        self.ranks.here()
        for columns in chunks:
            task = Task(self, pack(columns))
            self._add(task)
            tasks.append(task)
        return tasks

    def _add(self, task: Task) -> None:
        with self._lock:
            self._check()
            self._waiting.append(task)
            idle = self._idle
        if idle:
            self.ranks.wake()
        elif task.number % HELP == 0:
            self.ranks.help()

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """A call on all ranks, when the tasks that were submitted before are done."""
        _check_function(fn)
        if threading.get_ident() in self.calling_back:
            raise RuntimeError("a future's callback cannot call run, for which it might wait for ever: use a thread")
        call = self.ranks.packed(fn, args, kwargs)
        self.ranks.here()
        turn = Turn()
        try:
            with self.changed:
                self._check()
                self._waiting.append(turn)
            self._wait_for_all(turn)
            outcomes = self._call(turn, call)
        finally:
            with self.changed:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                others = bool(self._waiting or self._ended)
            if others:
                self.ranks.wake()
        return [outcome.result() for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)]

    def interrupt(self, task: Task) -> None:
        """Interrupt the rank that does this task, if one does."""
        with self.changed:  # so that no rank is given another one meanwhile
            if task.rank not in self._dealt:
                return
            rank = task.rank
            self._take_back_behind(lambda other: other == rank)
            if list(self._dealt[rank])[-1:] == [task.number]:  # else its answer has come, and perhaps later ones
                self.ranks.interrupt([rank])
        self.ranks.wake()

    def take_back(self, task: Task) -> bool:
        """If a task was sent to a rank that has not begun it, let it wait again. Returns whether some task does."""
        with self.changed:
            return (
                task.rank is not None and task.number in self._dealt.get(task.rank, ()) and self._take_back(task.rank)
            )

    def shutdown(self, *, wait: bool, cancel: bool, now: bool = False) -> None:
        """No further calls; end the ranks when the tasks are done, with `wait` before this returns."""
        dropped: list[Task] = []
        with self.changed:
            self._ended = self._ended or ClosedError("the pool has been shut down")
            if cancel or now:
                self._take_back_behind(lambda rank: True)
                dropped = self._drop_waiting()
            self.changed.notify_all()
        for task in dropped:
            task.cancel()  # not if it was running on a rank that was lost
            task.fail(0, ClosedError("the pool has been shut down"))
        if wait and not now:
            with self.changed:
                self.changed.wait_for(self._all_done)
        if wait or now:
            self.ranks.close(now=now)
        else:
            self.ranks.wake()

    # ---- for the ranks ----

    def deal(self) -> bool:
        """Give waiting tasks to idle ranks. Returns whether the pool has been shut down and has nothing left to do."""
        with self._lock:
            while self._idle and self._give(min(self._idle), 1):
                pass
            self.changed.notify_all()
            return self._ended is not None and self._all_done()

    def quiet(self) -> bool:
        """Whether no rank does anything."""
        return len(self._idle) == len(self._dealt)

    def tasks_of(self, rank: int) -> int:
        """How many answers of this rank have not come."""
        return len(self._dealt.get(rank, ()))

    def joined(self, rank: int) -> None:
        """A rank is ready for calls."""
        with self.changed:
            self._dealt[rank] = {}
            self._idle.add(rank)
            self.changed.notify_all()

    def give_all(self, part: Part, number: int) -> list[int]:
        """Give a call to all ranks, which are idle. Returns those that were not lost just now."""
        with self.changed:
            for dealt in self._dealt.values():
                dealt[number] = part
            self._idle.clear()
            given = list(self._dealt)
        for rank in {*range(self.ranks.n)}.difference(given):
            part.fail(rank, self._losses[rank])
        return given

    def answered(
        self, answers: Sequence[tuple[int, Outcome, bool]], parts: deque[tuple[Part, Outcome]] | None = None
    ) -> None:
        """Ranks have done what had these numbers. Each gets the next task, or several if its latest was quick.

        None waits behind another one while a rank has nothing to do. The last item of an answer says whether it was
        quick. parts: gets what has been answered, for the caller to settle; None: it is settled here.
        """
        settle = deque[tuple[Part, Outcome]]() if parts is None else parts
        quick: dict[int, bool] = {}
        with self._lock:
            now = time.monotonic()
            for number, outcome, was_quick in answers:
                rank = outcome.rank
                dealt = self._dealt.get(rank, {})
                if number in dealt:  # otherwise another rank has it since
                    settle.append((dealt.pop(number), outcome))
                    quick[rank], self._since[rank] = was_quick, now
                    if not dealt:
                        self._idle.add(rank)
            if now - self._looked > LONG:
                self._looked = now
                self._take_back_behind(lambda rank: now - self._since[rank] > LONG)
            for rank in quick:
                room = min(AHEAD, 1 + len(self._waiting) // len(self._dealt)) if quick[rank] else 1
                self._give(rank, room)
            if self._idle:
                self._take_back_behind(lambda rank: True)
            over = bool(self._idle) and self.deal()
        if over:
            self.ranks.end()
        while parts is None and settle:
            part, outcome = settle.popleft()
            part.settle(outcome)

    def lost(self, rank: int, error: PeerLostError) -> None:
        """A rank's process has ended. The task that it was doing is done again, once."""
        with self.changed:
            if rank in self._dealt:
                self._take_back(rank)
            self._stale, self._losses[rank] = True, error
            self._idle.discard(rank)
            failed = []
            for part in self._dealt.pop(rank, {}).values():
                if isinstance(part, Task) and part.may_be_redone:
                    part.may_be_redone = False
                    self._waiting.appendleft(part)
                else:
                    failed.append(part)
            self.changed.notify_all()
        for part in failed:
            part.fail(rank, error)
        self.ranks.notify()

    def broke(self, error: BaseException) -> None:
        """The ranks have ended, or cannot go on."""
        with self.changed:
            self._ended, self._broken = self._ended or error, True
            left = [(rank, part) for rank, dealt in self._dealt.items() for part in dealt.values()]
            left += [(0, task) for task in self._drop_waiting()]
            self._dealt.clear()
            self._idle.clear()
            self.changed.notify_all()
        for rank, part in left:
            part.fail(rank, error)
        self.ranks.notify()

    # ---- within ----

    def _check(self) -> None:
        if self._ended is not None:
            closed = isinstance(self._ended, ClosedError)
            raise ClosedError(f"{self._ended}; make a new one") if closed else self._ended

    def _all_done(self) -> bool:
        return not self._waiting and self.quiet()

    def _drop_waiting(self) -> list[Task]:
        """Remove the tasks that wait."""
        dropped = [task for task in self._waiting if isinstance(task, Task)]
        self._waiting = deque(turn for turn in self._waiting if isinstance(turn, Turn))
        return dropped

    def _give(self, rank: int, room: int) -> bool:
        """Give a rank the next tasks that it may be given, until it has so many. Returns whether there was one."""
        dealt, given = self._dealt[rank], False
        while len(dealt) < room and self._waiting and not isinstance(task := self._waiting[0], Turn):
            if dealt and not self.ranks.small(task.call):
                break
            self._waiting.popleft()
            if task.begin(rank):
                if not dealt:
                    self._idle.discard(rank)
                    self._since[rank] = time.monotonic()
                dealt[task.number] = task
                self.ranks.send_task(rank, task)
                given = True
        if given:
            self.ranks.sent(rank)
        return given

    def _take_back_behind(self, of: Callable[[int], bool]) -> None:
        """Take back what waits behind the present tasks of these ranks."""
        for rank, dealt in self._dealt.items():
            if len(dealt) > 1 and of(rank):
                self._take_back(rank)

    def _take_back(self, rank: int) -> bool:
        """Let the tasks wait again that this rank has not begun. Returns whether there are any."""
        dealt = self._dealt[rank]
        numbers = sorted(self.ranks.take_back(rank), reverse=True)
        for number in numbers:
            if isinstance(task := dealt.get(number), Task):
                del dealt[number]
                task.taken_back()
                self._waiting.appendleft(task)
        if not dealt:
            self._idle.add(rank)
        return bool(numbers)

    def _wait_for_all(self, turn: Turn) -> None:
        """Wait until all ranks are free for this call."""
        with self.changed:
            self.changed.wait_for(
                lambda: self._broken or (self._waiting[0] is turn and len(self._idle) == self.ranks.n)
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


def each_of(fn: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """The results of fn for the elements of one sequence, or of several in parallel."""
    return [fn(*each) for each in zip(*columns, strict=True)]


def _check_function(fn: Callable[..., Any]) -> None:
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: expected a function")


def _to_blame(failed: Sequence[Outcome]) -> Exception:
    """The first error that does not merely follow from that of another rank, or from its loss."""
    errors = [outcome.error for outcome in failed if outcome.error is not None]
    own = [error for error in errors if not isinstance(error, PeerLostError) and type(error) is not RankwiseError]
    lost = [outcome.error for outcome in failed if outcome.lost and outcome.error is not None]
    return [*own, *lost, *errors][0]
