"""`await` of a Work that ends in another thread."""

from __future__ import annotations

import asyncio

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
