"""How a Work is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import rankwise as rw

SOON = 60.0  # seconds within which anything that a rank waits for must come


class Wrong(AssertionError):
    """A result is not what the oracle says."""


def _poll(work: Any) -> Any:
    end = time.monotonic() + SOON
    while not work.done():
        if time.monotonic() > end:
            raise Wrong(f"polling does not find it done: {work}")
        time.sleep(1e-4)
    return work.wait()


def _in_a_thread(work: Any) -> Any:
    found: list[Any] = []
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            found.append(work.wait())
        except rw.RankwiseError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _called_back(work: Any) -> Any:
    over = threading.Event()
    work.add_done_callback(lambda work: over.set())
    if not over.wait(SOON):
        raise Wrong("a callback was not called")
    return work.wait()


def _without_error(work: Any) -> Any:
    if (error := work.exception()) is not None:
        raise error
    return work.wait()


FINISHES: dict[str, Callable[[Any], Any]] = {
    "wait": lambda work: work.wait(),
    "all": lambda work: work.wait(),
    "result": lambda work: work.result(SOON),
    "poll": _poll,
    "thread": _in_a_thread,
    "callback": _called_back,
    "exception": _without_error,
}
