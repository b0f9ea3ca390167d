"""The handle of an operation that may still be running."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T", covariant=True)


class Work(ABC, Generic[T]):
    """One asynchronous operation.

    Its buffers must not be touched until `wait` has returned or `done` has returned True; after that
    the operation never writes to them. Work queued after it on a stream may use them without calling
    either. Any thread may use it. In asyncio, `await work` waits while other tasks run.

    >>> x = np.ones(3)
    >>> work = group.all_reduce(x, async_op=True)
    >>> work.wait() is x
    True
    >>> work.done()
    True
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> T:
        """Block until the operation is complete and return its result.

        timeout: seconds; None means the communicator's timeout. Raises CollectiveTimeout when that has
        passed (the operation stays pending if nothing was lost), or the operation's own error.
        """

    @abstractmethod
    def done(self) -> bool:
        """Whether the operation is complete or has failed; never blocks."""

    def withdraw(self) -> bool:
        """Give up a send or receive whose `wait` has raised an error, if the engine can.

        Returns whether it is given up: its buffer is not used any more, and the message that it would have received
        stays for another receive.
        """
        return False

    def result(self) -> T:
        """The operation's result; blocks as `wait` does."""
        return self.wait()

    def __await__(self) -> Generator[Any, None, T]:
        if self.done():
            return self.wait()
        result, error = yield from _in_a_thread(self).__await__()
        if error is not None:
            raise error
        return result


class Completed(Work[None]):
    """An operation that ran as soon as it was started. `wait` raises its error, if any."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def wait(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return True


def _in_a_thread(work: Work[T]) -> asyncio.Future[tuple[T, None] | tuple[Any, BaseException]]:
    """The result and the error of `work`, awaited in a thread of its own: in a pool, waits could block each other."""
    import asyncio
    import threading

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

    threading.Thread(target=wait, name="rankwise await", daemon=True).start()
    return future
