"""torch's Work over the operations of a communicator."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from rankwise.contract.work import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankwise.contract.work import Work as OurWork

NO_TIMEOUT = timedelta(0)  # torch's value for it
POLLS = 64
"""How often a call that asks for a future checks whether the operation is complete before it leaves that to a thread:
about 30 us, no longer than it takes to wake the thread."""

_making_futures = threading.Lock()


class Settling(Protocol):
    """A group's operations, which call `settle` of its works whose future was asked for."""

    def settle_later(self, work: Started) -> None: ...


class Started(Work):
    """An operation that was started. The engine makes most of them, and sets the first three attributes."""

    inner: OurWork[Any] = COMPLETE
    """The work itself, which keeps its memory alive and copies results to their destination."""

    tensors: Sequence[Tensor] = ()
    """What it writes."""

    core: Settling

    message = False
    """Whether it is a message, which is not on the group's stream."""

    _futures: tuple[Any, Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        self.inner.wait(timeout.total_seconds() if timeout else None)
        return True

    def is_completed(self) -> bool:
        return self.inner.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The operation's error, once it is complete."""
        return self.inner.exception() if self.inner.done() else None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        self.wait()
        return list(self.tensors)

    def source_rank(self) -> int:
        """Of a receive from any rank: whose message it was."""
        source: int = self.inner.wait()
        return source

    _source_rank = source_rank

    def get_future(self) -> Any:
        with _making_futures:
            asked = self._futures is None
            if asked:
                # A failure must reach C++ (DDP's reducer) as one: only what a callback raises does.
                first: Any = Future()
                self._futures = first, first.then(lambda _: self.result())
            assert self._futures is not None
        if asked:
            if any(self.inner.done() for _ in range(POLLS)):
                self.settle()
            else:
                self.core.settle_later(self)
        return self._futures[1]

    def settle(self) -> None:
        """The operation is complete, or never will be: complete its future, if it was asked for and is not."""
        with _making_futures:
            if self._futures is None or self._futures[0].done():
                return
            first = self._futures[0]
        first.set_result(None)


def started(inner: OurWork[Any], tensors: Sequence[Tensor], core: Settling, message: bool = False) -> Started:
    work = Started()
    work.inner, work.tensors, work.core, work.message = inner, tensors, core, message
    return work


def complete(tensors: Sequence[Tensor]) -> Started:
    """An operation that is complete."""
    work = Started()
    work.tensors = tensors
    return work
