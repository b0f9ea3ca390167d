"""Work of the array level: operations under way, with the memory they use and the result they will give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rankwise.contract.errors import CollectiveTimeout
from rankwise.contract.work import Work

T = TypeVar("T")


class Pending:
    """The works of one group that are under way.

    It keeps their memory alive until the engine is done with it, also where the caller has dropped
    the Work.
    """

    def __init__(self) -> None:
        self.works: dict[int, ArrayWork[Any]] = {}
        self._look_at = _FEW

    def add(self, work: ArrayWork[Any]) -> None:
        # Dropped works are looked for only when the number has doubled, so that the search costs little.
        if len(self.works) >= self._look_at:
            self.release_done()
            self._look_at = max(_FEW, 2 * len(self.works))
        self.works[id(work)] = work

    def remove(self, work: ArrayWork[Any]) -> None:
        self.works.pop(id(work), None)

    def release_done(self) -> None:
        """Finish the works that are complete."""
        for work in list(self.works.values()):
            work.done()

    def clear(self) -> None:
        """Forget them all; only when the engine has let go of their memory."""
        self.works.clear()


_FEW = 16


class ArrayWork(Work[T]):
    """An operation of a group under way.

    inner: the communicator's Work. finish: gives the result, once inner is complete. It is called
    once, by whoever waits or asks first; what it raises, `wait` raises. It, and keep, hold meanwhile
    the memory that the engine uses, and the group, which is not closed because it is dropped.
    """

    def __init__(self, inner: Work[None], finish: Callable[[], T], pending: Pending, keep: object = None) -> None:
        self._inner = inner
        self._finish: Callable[[], T] | None = finish
        self._keep = keep
        self._pending = pending
        self._lock = threading.Lock()
        self._value: T
        self._error: Exception | None = None
        pending.add(self)

    def wait(self, timeout: float | None = None) -> T:
        if self._finish is not None:
            try:
                self._inner.wait(timeout)
            except CollectiveTimeout:
                raise  # perhaps this wait's, with the operation still under way; the next one will tell
            except Exception as error:
                if self._inner.done():
                    self._settle(error)
                raise
            self._settle(None)
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        if self._finish is not None:
            if not self._inner.done():
                return False
            failure = None
            try:
                self._inner.wait()
            except Exception as error:  # noqa: BLE001 - whatever it is, `wait` raises it
                failure = error
            self._settle(failure)
        return True

    def _settle(self, error: Exception | None) -> None:
        """The engine has let go of the memory: make the result, once."""
        with self._lock:
            if self._finish is None:
                return
            self._error = error
            if error is None:
                try:
                    self._value = self._finish()
                except Exception as failure:  # noqa: BLE001 - whatever it is, `wait` raises it
                    self._error = failure
            self._finish = self._keep = None
        self._pending.remove(self)


class Several(Work[None]):
    """Works of a communicator as one."""

    def __init__(self, works: list[Work[None]]) -> None:
        self.works = works

    def wait(self, timeout: float | None = None) -> None:
        wait_all(self.works, timeout)

    def done(self) -> bool:
        return all(work.done() for work in self.works)


def wait_all(works: Iterable[Work[T]], timeout: float | None = None) -> list[T]:
    """Wait for every Work and return their results, in the order given.

    timeout: seconds for all of them together; None means each communicator's own limit. Where some
    failed, all are waited for first; then the first one's error is raised.

    >>> works = [group.all_reduce(np.full(2, i), async_op=True) for i in (1, 2)]
    >>> [x.tolist() for x in rw.wait_all(works)]
    [[2, 2], [4, 4]]
    """
    end = None if timeout is None else time.monotonic() + timeout
    results: list[T] = []
    errors: list[Exception] = []
    for work in list(works):
        try:
            results.append(work.wait(None if end is None else max(0.0, end - time.monotonic())))
        except Exception as error:  # noqa: BLE001 - raised below, when the others are settled
            errors.append(error)
    if errors:
        raise errors[0]
    return results


def wait_any(works: Sequence[Work[Any]], timeout: float | None = None) -> int:
    """Wait until one Work is complete or has failed, and return its place in `works`; the first, of several.

    timeout: seconds; CollectiveTimeout where none is complete by then. None waits as long as it takes.

    >>> works = [group.barrier(async_op=True)]
    >>> rw.wait_any(works)
    0
    """
    if not works:
        raise ValueError("works: expected at least one Work, got none")
    end = None if timeout is None else time.monotonic() + timeout
    nap = _SHORTEST_NAP
    while True:
        for place, work in enumerate(works):
            if work.done():
                return place
        if end is not None and time.monotonic() >= end:
            text = f"wait_any: none of {len(works)} operations was complete within {timeout:g} s"
            raise CollectiveTimeout(text, limit=timeout or 0.0)
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP)


_SHORTEST_NAP, _LONGEST_NAP = 20e-6, 1e-3
