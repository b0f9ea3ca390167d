"""The Works of the array level: pending operations with their memory and their results."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from rankwise._native import Request
from rankwise._native import Work as EngineWork
from rankwise.contract.closing import ClosingOrder, close_at_exit
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, CollectiveTimeout, RankwiseError, too_late
from rankwise.contract.logger import logger
from rankwise.contract.message import ANY
from rankwise.contract.public import public
from rankwise.contract.shortcuts import FailedWork
from rankwise.contract.timeouts import LONGEST_TIMEOUT, check_wait
from rankwise.contract.work import OuterWork, Pauses, Work, adopt, wait_until
from rankwise.system.alive import Alive

T = TypeVar("T")
W = TypeVar("W", bound="ArrayWork[Any]")

adopt(EngineWork)  # not only those of the engine's communicators: every stream makes them
adopt(Request)


class Pending:
    """The pending works of one group, and failed ones whose error has not been raised to the caller yet.

    It keeps their memory alive until the engine is done with it, even if the caller has dropped the
    Work. group: as messages name the group, after the rank.
    """

    _sweep_at = 16
    _closing = _forked = False

    def __init__(self, group: str, comm: Communicator) -> None:
        self._group = group
        self._comm = comm
        self.works: dict[int, ArrayWork[Any]] = {}
        self.failed: deque[FailedWork] = deque()
        _open.add(self)

    @property
    def name(self) -> str:
        return f"rank {self._comm.rank} of {self._group}"

    def add(self, work: ArrayWork[Any]) -> None:
        # Completed works are removed only when there are four times as many, so that the search costs little.
        if len(self.works) >= self._sweep_at:
            self.release_done()
            self._sweep_at = max(Pending._sweep_at, 4 * len(self.works))
        self.works[id(work)] = work

    def own(self, work: Work[T], group: object = None) -> Work[T]:
        """The Work of an operation that was started and goes on even if the caller drops it.

        It is the communicator's own if that keeps its memory and tells of its failure, as the engine's does. group: is
        not closed as long as the caller has the Work.
        """
        if isinstance(work, EngineWork):
            work.group = group
            return work
        return ArrayWork(work, work.wait, self, group).register()

    def remove(self, work: ArrayWork[Any]) -> None:
        self.works.pop(id(work), None)

    def release_done(self) -> None:
        """Finish the works that are complete, and take the failed ones that only the communicator has."""
        for work in list(self.works.values()):
            work.done()
        self.failed += self._comm.shortcuts.failed_works()

    def raise_first(self) -> None:
        """Raise the first error of a completed work that has not been raised to the caller yet."""
        self.release_done()
        raise_first(self.failed)

    def failure(self, work: ArrayWork[Any]) -> None:
        """Record a failed work that was not waited for. The communicator itself logs what fails by closing."""
        by_closing = (self._closing or self._comm.closed) and isinstance(work.error, RankwiseError)
        if len(self.failed) < _MOST_FAILED and not by_closing:
            self.failed.append(work)

    def before_close(self) -> None:
        """The communicator will be closed next, unless the program has closed it, and what failed then is logged."""
        if not self._forked:
            if not self._comm.closed:
                self.release_done()
            self._closing = True

    def close(self) -> None:
        """Release all works after the engine has released their memory; log errors that were never raised.

        Works that are not complete by now fail with ClosedError. May be repeated.
        """
        if not self._forked:  # in the child, locks may be held by threads that exist only in the parent
            late = self._comm.shortcuts.failed_works()
            if self.works or self.failed or late:
                self._end(late)
        self.works.clear()
        self.failed.clear()

    def _end(self, late: Iterable[FailedWork]) -> None:
        """late: those that have failed since the communicator was closed."""
        for work in list(self.works.values()):
            if not work.done():
                work.fail(ClosedError(f"the operation was not complete when {self.name} was closed"))
        errors = [work.exception() for work in self.failed if not work.waited]
        errors = [error for error in errors if not isinstance(error, ClosedError)]
        errors += [error for work in late if not isinstance(error := work.exception(), RankwiseError)]
        if errors:
            self._log(errors)

    def forked(self) -> None:
        """Called in a forked child: the works are the parent's, and `wait` says so."""
        self._forked = True
        for work in self.works.values():
            work.forked()
        self.failed.clear()

    def _log(self, errors: Sequence[BaseException | None]) -> None:
        what = "an operation" if len(errors) == 1 else f"{len(errors)} operations"
        first = errors[0]  # logged as text: a log that keeps the error would keep the frames that raised it
        text = "closing %s: %s with async_op=True failed, and no wait() raised the error; the first: %s: %s"
        logger().error(text, self.name, what, type(first).__name__, str(first))


_open: Alive[Pending] = Alive()


def _before_close_all(left: Callable[[], float]) -> None:
    for pending in _open:
        pending.before_close()


def _close_all(left: Callable[[], float]) -> None:
    for pending in _open:
        pending.close()


def _forked() -> None:
    for pending in _open:
        pending.forked()


close_at_exit(ClosingOrder.WORKS, _before_close_all)
close_at_exit(ClosingOrder.LAST_WORKS, _close_all)
os.register_at_fork(after_in_child=_forked)

_MOST_FAILED = 100  # works kept for their errors; the first errors are the most informative


class ArrayWork(Work[T]):
    """A pending operation of a group.

    inner: the communicator's Work. finish: returns the result after inner is complete. It is called once,
    by the first call of `wait` or `done` that finds inner complete; `wait` raises its error. Until then
    finish and keep hold the memory that the engine uses, and the group, so that a dropped group is not
    closed. source, tag: as passed to a receive, perhaps ANY.
    """

    def __init__(
        self,
        inner: Work[Any],
        finish: Callable[[], T],
        pending: Pending,
        keep: object = None,
        source: int | None = None,
        tag: int | None = None,
    ) -> None:
        self._inner, self._source, self._tag = inner, source, tag
        self._finish: Callable[[], T] | None = finish
        self._keep = keep
        self._pending = pending
        self._lock = threading.Lock()
        self._value: T
        self.error: BaseException | None = None
        """The operation's error, if it failed; known once `done` has returned True."""
        self.waited = False
        """Whether `wait` has been called, and so has raised the operation's error."""

    def register(self: W) -> W:
        """The last step of starting an operation: from now on it goes on even if the caller drops this Work.

        If an exception ends the call before this step, the Work is dropped, and its message, if any, is cancelled.
        """
        self._pending.add(self)
        return self

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Work, failed: {type(self.error).__name__}>"
        return f"<Work, {'complete' if self._finish is None else 'not yet waited for'}>"

    @property
    def source(self) -> int | None:
        """The source of the message, once a receive is complete; None before that, and from the null rank."""
        return self._of_message("source", self._source)

    @property
    def tag(self) -> int | None:
        """Likewise its tag."""
        return self._of_message("tag", self._tag)

    def _of_message(self, name: str, wanted: int | None) -> int | None:
        if self._finish is not None or self.error is not None:
            return None
        value: int | None = getattr(self._inner, name) if wanted == ANY else wanted
        return value

    def wait(self, timeout: float | None = None) -> T:
        if timeout is not None:
            timeout = check_wait(timeout)
        if self._finish is not None:
            succeeded = False
            try:
                self._inner.wait(timeout)
                succeeded = True
            except Exception:
                if self._finish is not None and not self._inner.done():
                    raise  # this wait has timed out, but the operation is still pending
            except BaseException:  # an interrupt of this thread, or what ended the function that ran
                self.waited = self.done()
                raise
            self.waited = True
            self._make_result(succeeded)
        if self.error is not None:
            self.waited = True
            raise self.error
        return self._value

    def done(self) -> bool:
        if self._finish is not None:
            if not self._inner.done():
                return False
            self._make_result()
        return True

    def cancel(self) -> bool:
        cancelled = self._finish is not None and self._inner.cancel()
        if cancelled:
            self.fail(ClosedError("the operation was cancelled"))
        return cancelled

    def _await_end(self, timeout: float) -> object:
        return self._inner.wait(timeout)

    def _await_any(self, works: Sequence[Work[Any]], timeout: float) -> bool:
        return self._inner._await_any([work._inner if isinstance(work, ArrayWork) else work for work in works], timeout)

    def fail(self, error: Exception) -> None:
        """Fail with `error`, unless it has ended: the engine has released the memory before it was complete."""
        with self._lock:
            if self._finish is not None:
                self.error = error
                self._drop()

    def forked(self) -> None:
        """Called in a forked child, whose parent runs the operation. The lock may be held by a thread of the parent."""
        self.error = ClosedError("this operation belongs to the parent of this forked process")
        self._finish = None

    def _make_result(self, succeeded: bool = False) -> None:
        """Make the result, once, after the operation has ended and the engine has released the memory.

        succeeded: it is known to have ended without an error.
        """
        with self._lock:
            if self._finish is None:
                return
            self.error = None if succeeded else Work.exception(self._inner)  # which may be the engine's own request
            if isinstance(self.error, RankwiseError):
                self.error.__traceback__ = None  # it was raised within this package, and `wait` raises it again
            if self.error is None:
                try:
                    self._value = self._finish()
                except Exception as failure:  # noqa: BLE001 - whatever it is, `wait` raises it
                    self.error = failure
            if self.error is not None and not self.waited:
                self._pending.failure(self)
            self._drop()

    def _drop(self) -> None:
        self._finish = self._keep = None
        self._pending.remove(self)


def several(works: Sequence[Work[None]]) -> Work[list[None]]:
    """Several works of a communicator as one."""
    return OuterWork(lambda timeout: wait_all(works, timeout), *works)


def wait_or_cancel(work: Work[T], timeout: float | None = None) -> T:
    """Wait as a blocking operation does. If that fails, nobody has the Work, so it must not receive a later message."""
    try:
        return work.wait(timeout)
    except CollectiveTimeout:
        if work.cancel() or not work.done():
            raise
    except BaseException:
        work.cancel()
        raise
    return work.wait()  # it was complete before it could be cancelled


def raise_first(failed: deque[Any]) -> None:
    """Raise the first error of these works that has not been raised to the caller yet, and forget those before it."""
    while failed:
        work = failed.popleft()
        if not work.waited:
            work.wait()


@public
def wait_all(works: Iterable[Work[T]], timeout: float | None = None) -> list[T]:
    """Wait for every Work and return their results, in the order given.

    If some fail, all are waited for, and then the error of the first is raised.

    Args:
        timeout: seconds for all of them together; None means each communicator's timeout, as in `Work`.

    Example:
        >>> works = [group.all_reduce(np.full(2, i), async_op=True) for i in (1, 2)]
        >>> [x.tolist() for x in rw.wait_all(works)]
        [[2, 2], [4, 4]]
    """
    limit = None if timeout is None else check_wait(timeout)
    end = time.monotonic() + (limit or 0.0)
    results: list[T] = []
    errors: list[Exception] = []
    late = partial(too_late, "wait_all: an operation was not complete", limit or 0.0)
    for work in list(works):
        try:
            results.append(work.wait() if limit is None else wait_until(end, work, late))
        except Exception as error:  # noqa: BLE001 - raised below, when the others are complete
            errors.append(error)
    if errors:
        raise errors[0]
    return results


@public
def wait_any(works: Iterable[Work[Any]], timeout: float | None = None) -> int:
    """Wait until a Work is complete or has failed.

    Args:
        timeout: seconds. None waits without limit: the communicator's timeout ends a collective, but a message may
            never come.

    Returns:
        The index of the Work in `works`, the lowest of several.

    Raises:
        CollectiveTimeout: the time is over.

    Example:
        >>> works = [group.barrier(async_op=True)]
        >>> rw.wait_any(works)
        0
    """
    works = list(works or ())
    if not works:
        raise ValueError("works: expected at least one Work, got none")
    limit = LONGEST_TIMEOUT if timeout is None else check_wait(timeout)
    end, pauses = time.monotonic() + limit, Pauses()
    while True:
        for place, work in enumerate(works):
            if work.done():
                return place
        left = end - time.monotonic()
        if left <= 0:
            raise too_late(f"wait_any: none of {len(works)} operations completed", limit)
        pauses.wait(works, left)
