"""What every Work does with its `wait` and `done`: errors, callbacks and `await`."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from logging.handlers import QueueHandler

import pytest

from rankwise.contract.work import Work


class Ends(Work[int]):
    """It is pending until it is waited for."""

    def __init__(self, error: BaseException | None) -> None:
        self._over = False
        self._error = error

    def wait(self, timeout: float | None = None) -> int:
        self._over = True
        if self._error is not None:
            raise self._error
        return 7

    def done(self) -> bool:
        return self._over


async def outcome(work: Ends) -> object:
    """The result or the error of awaiting the work. asyncio would end its loop at some errors of a task."""

    async def awaiting() -> object:
        try:
            return await work
        except BaseException as error:  # noqa: BLE001 - the test compares it
            return error

    return await asyncio.wait_for(awaiting(), 10)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, ValueError])
def test_whatever_ended_the_work_reaches_the_awaiting_task(kind: type[BaseException]) -> None:
    error = kind("of the work")
    found = asyncio.run(outcome(Ends(error)))
    if kind is StopIteration:  # Python lets no coroutine raise it
        assert isinstance(found, RuntimeError)
        found = found.__cause__
    assert found is error


def test_the_result_reaches_the_awaiting_task() -> None:
    assert asyncio.run(outcome(Ends(None))) == 7


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError, TimeoutError])
def test_exception_returns_what_ended_the_operation(kind: type[BaseException]) -> None:
    error = kind("of the work")
    work = Ends(error)
    assert work.exception() is error
    with pytest.raises(kind):
        work.result()
    assert Ends(None).exception(3) is None


class EndsLater(Work[int]):
    """The first waits raise `endings`. It ends when the test sets `over`."""

    def __init__(self, *endings: BaseException, over: bool = False) -> None:
        self.endings = list(endings)
        self.over = threading.Event()
        self.timeouts: list[float | None] = []
        if over:
            self.over.set()

    def wait(self, timeout: float | None = None) -> int:
        self.timeouts.append(timeout)
        if self.endings:
            raise self.endings.pop(0)
        if not self.over.wait(timeout):
            raise TimeoutError
        return 7

    def done(self) -> bool:
        return self.over.is_set()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_exception_raises_what_ended_only_the_wait(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        EndsLater(kind()).exception(3)


def test_an_operation_that_ends_just_after_the_timeout_has_no_error() -> None:
    work = EndsLater(TimeoutError(), over=True)
    assert work.exception(3) is None
    assert work.timeouts == [3, None]


@pytest.mark.parametrize("before", [[], [ValueError()], [TimeoutError()]])
def test_an_interrupt_is_not_the_error_of_an_operation_that_has_ended(before: list[Exception]) -> None:
    with pytest.raises(KeyboardInterrupt):
        EndsLater(*before, KeyboardInterrupt(), over=True).exception()


def test_a_callback_is_called_at_once_if_the_operation_has_ended() -> None:
    work, called = Ends(None), list[tuple[Work[int], threading.Thread]]()
    work.wait()
    work.add_done_callback(lambda work: called.append((work, threading.current_thread())))
    assert called == [(work, threading.current_thread())]


def test_callbacks_are_called_once_the_operation_has_ended() -> None:
    work, called = EndsLater(TimeoutError()), threading.Semaphore(0)
    for _ in range(2):
        work.add_done_callback(lambda work: called.release() if work.result() == 7 else None)
    assert not called.acquire(timeout=0.1)
    work.over.set()
    for _ in range(2):
        assert called.acquire(timeout=10)


@pytest.mark.parametrize("over", [True, False])
def test_the_error_of_a_callback_is_logged(over: bool) -> None:
    def fail(work: Work[int]) -> None:
        raise ArithmeticError("on purpose")

    logged = queue.SimpleQueue[logging.LogRecord]()
    logger, handler = logging.getLogger("rankwise"), QueueHandler(logged)  # type: ignore[arg-type]  # it has `put_nowait`
    logger.addHandler(handler)
    try:
        work = EndsLater(TimeoutError(), over=over)
        work.add_done_callback(fail)
        work.over.set()
        record = logged.get(timeout=10)
    finally:
        logger.removeHandler(handler)
    assert record.levelname == "ERROR"
    assert "ArithmeticError: on purpose" in record.getMessage()
