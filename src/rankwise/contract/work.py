"""The handle of an operation that may still be running."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rankwise.contract.errors import CollectiveTimeout
from rankwise.contract.logger import logger
from rankwise.contract.public import public
from rankwise.contract.timeouts import LONGEST_TIMEOUT

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T", covariant=True)
W = TypeVar("W", bound="Work[Any]")


@public
class Work(ABC, Generic[T]):
    """One asynchronous operation. It has the methods of a concurrent.futures.Future; `wait` is `result`.

    Its buffers must not be touched until `wait` has returned or `done` has returned True; after that the operation
    never writes to them. Work queued after it on a stream may use them without calling either. Any thread may use it.
    In asyncio, `await work` waits while other tasks run.

    `timeout` is how many seconds a call may block. None means the communicator's timeout: a collective's starts when
    the operation begins to run, a message's when the call begins to wait. For a function on a stream of the program's
    own, None is no limit.

    Example:
        >>> x = np.ones(3)
        >>> work = group.all_reduce(x, async_op=True)
        >>> work.wait() is x
        True
        >>> work.done(), work.exception()
        (True, None)
        >>> work.add_done_callback(lambda work: print(work.result()))
        [2. 2. 2.]
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> T:
        """Block until the operation is complete and return its result, or raise its error.

        Raises:
            CollectiveTimeout: the timeout has passed. The operation stays pending, unless its group has failed.
        """

    @abstractmethod
    def done(self) -> bool:
        """Whether the operation is complete or has failed; never blocks."""

    def cancel(self) -> bool:
        """Cancel a send or receive that is not complete, if the engine can: over shared memory and between threads.

        Over gloo, a receive can be cancelled that no message has matched yet.

        A cancelled operation has failed with ClosedError, and its buffer is not used any more. The message that it
        would have received stays for another receive; one that it was sending is still delivered if the receiver may
        have begun to take its data.

        Returns:
            Whether it was cancelled. If the operation is complete, False, and nothing changes.
        """
        return False

    def result(self, timeout: float | None = None) -> T:
        """The same as `wait`."""
        return self.wait(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the operation has ended, as `wait` does, and return its error, or None if it is complete."""
        error = _raised_by(self.wait, timeout)
        if error is None:
            return None
        if not self.done():
            raise error
        return _error_of(self, error)

    def add_done_callback(self: W, function: Callable[[W], object]) -> None:
        """Call function(work) once the operation has ended, in whatever way; at once if it has already.

        Otherwise a thread waits for the operation and calls the function; each function has its own thread, and there
        is no order between them. What the function raises is logged. The wait has no limit: a message that never comes
        fails the operation only when its group is closed.
        """

        def call() -> None:
            try:
                function(self)
            except Exception:  # noqa: BLE001 - it is logged
                logger().exception("a callback of %r failed", self)

        def wait_and_call() -> None:
            while not self.done():
                _raised_by(self._await_end, _PERIOD)
            call()

        if self.done():
            call()
        else:
            _in_a_thread(wait_and_call)

    def _await_end(self, timeout: float) -> object:
        """Wait until the operation has ended, at most so long, without counting as a `wait` that raises its error."""
        return self.wait(timeout)

    def _await_any(self, works: Sequence[Work[Any]], timeout: float) -> bool:
        """Wait at most `timeout` seconds, perhaps less, until one of the works, of which this is one, has ended.

        Returns False at once if that is not possible, so that the caller must poll.
        """
        return False

    def __await__(self) -> Generator[Any, None, T]:
        if self.done():
            return self.wait()
        result, error = yield from _outcome(self).__await__()
        if error is not None:
            raise error
        return result


class Pauses:
    """The waits between looks at works: until one of them has ended, or, if that cannot be, ever longer ones."""

    def __init__(self) -> None:
        self._pause = 20e-6

    def wait(self, works: Sequence[Work[Any]], timeout: float = LONGEST_TIMEOUT) -> None:
        """Wait at most `timeout` seconds, perhaps less."""
        if not works or not works[0]._await_any(works, timeout):
            time.sleep(min(self._pause, timeout))
            self._pause = min(2 * self._pause, 1e-3)


def adopt(kind: type) -> None:
    """Make a class of native code, which has `wait` and `done`, a Work. Other methods of a Work that it has stay."""
    for name in ("cancel", "result", "exception", "add_done_callback", "_await_end", "_await_any", "__await__"):
        if name not in vars(kind):
            setattr(kind, name, getattr(Work, name))
    Work.register(kind)


class OuterWork(Work[T]):
    """A Work with a `wait` of its own. It is done when all works within it are: at once, if there are none.

    cancelled: called when it has been cancelled. ranks: of a receive whose source the work within gives as a number in
    a part of the group, the ranks of that part.
    """

    def __init__(
        self,
        wait: Callable[[float | None], T],
        *inner: Endable,
        cancelled: Callable[[], object] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._wait, self._inner, self._cancelled, self._ranks = wait, inner, cancelled, ranks

    def wait(self, timeout: float | None = None) -> T:
        return self._wait(timeout)

    def done(self) -> bool:
        return all(work.done() for work in self._inner)

    def cancel(self) -> bool:
        """Whether one within was cancelled, and none is pending any more."""
        gone = [work.cancel() for work in self._inner]
        cancelled = any(gone) and all(gone[i] or work.done() for i, work in enumerate(self._inner))
        if cancelled and self._cancelled is not None:
            self._cancelled()
        return cancelled

    @property
    def source(self) -> int:
        rank: int = self._inner[0].source  # type: ignore[attr-defined]  # see Communicator.recv
        return rank if self._ranks is None else self._ranks[rank]

    @property
    def tag(self) -> int:
        return self._inner[0].tag  # type: ignore[attr-defined, no-any-return]


class Endable(Protocol):
    """What ends at some time: a Work, or an event of a device."""

    def done(self) -> bool: ...
    def cancel(self) -> bool: ...


def ended(result: Any = None, error: Exception | None = None) -> Work[Any]:
    """An operation that ran as soon as it was started: `wait` returns the result, or raises the error, if any."""

    def wait(_timeout: float | None) -> Any:
        if error is not None:
            raise error
        return result

    return OuterWork(wait)


COMPLETE: Work[None] = ended()
"""An operation that is complete, without an error."""

_PERIOD = 1.0  # seconds between two checks whether another thread has cancelled the Work


def _outcome(work: Work[T]) -> asyncio.Future[tuple[T, None] | tuple[Any, BaseException]]:
    """The result and the error of waiting for `work`."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def deliver(outcome: Any) -> None:
        if not future.cancelled():
            future.set_result(outcome)

    def wait() -> None:
        try:
            outcome: Any = work.wait(), None
        except BaseException as error:  # noqa: BLE001 - the awaiting task raises it
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, outcome)

    _in_a_thread(wait)
    return future


def _in_a_thread(function: Callable[[], None]) -> None:
    """A wait for a Work has a thread of its own, since in a pool one wait could block another."""
    import threading

    threading.Thread(target=function, name="rankwise await", daemon=True).start()


def _error_of(work: Work[Any], raised: BaseException) -> BaseException | None:
    """The error of a Work that has ended. raised: that, or the timeout or interrupt that ended a wait."""
    again = _raised_by(work.wait)
    for error in (raised, again):
        if again is not raised and not isinstance(error, Exception | None):
            raise error  # an interrupt
    return again


def _raised_by(wait: Callable[..., object], *timeout: float | None) -> BaseException | None:
    try:
        wait(*timeout)
    except BaseException as error:  # noqa: BLE001 - the caller decides
        # The Work keeps the error. Without this frame, the error does not refer to the callers, which hold the Work.
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    return None


def wait_until(end: float, work: Work[T], late: Callable[[], Exception]) -> T:
    """The rest of a longer wait, until `end` (of time.monotonic). Raises `late()` if the work is pending then."""
    try:
        return work.wait(max(0.0, end - time.monotonic()))
    except CollectiveTimeout:
        if work.done():  # it has failed
            raise
    raise late()
