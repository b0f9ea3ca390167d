"""torch's Work over the operations of a communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableSet
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

if TYPE_CHECKING:
    from rankwise.contract.work import Work as OurWork

Results = list[Tensor]
NO_TIMEOUT = timedelta(0)  # torch's value for it


class Done(Work):
    """An operation that is complete."""

    def __init__(self, tensors: Results) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> Exception | None:
        return None

    def synchronize(self) -> None:
        pass

    def result(self) -> Results:
        return self._tensors

    def get_future(self) -> Any:
        future: Any = Future()
        future.set_result(self._tensors)
        return future


class Started(Work):
    """A pending operation.

    inner: the work itself, which keeps its memory alive and copies results to their destination.
    notify: calls a function in any thread once inner is complete. expected: keeps works alive whose
    future may be awaited.
    """

    def __init__(
        self,
        inner: OurWork[Any],
        tensors: Results,
        notify: Callable[[Callable[[], None]], None],
        expected: MutableSet[Started],
    ) -> None:
        super().__init__()
        self.inner = inner
        self._tensors = tensors
        self._notify = notify
        self._expected = expected
        self._lock = threading.Lock()
        self._futures: tuple[Any, Any] | None = None

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

    def result(self) -> Results:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Of a receive from any rank: whose message it was."""
        self.wait()
        source: int = self.inner.wait()
        return source

    _source_rank = source_rank

    def get_future(self) -> Any:
        with self._lock:
            if self._futures is None:
                # A failure must reach C++ (DDP's reducer) as one: only what a callback raises does.
                first: Any = Future()
                self._futures = first, first.then(self._outcome)
                self._expected.add(self)
                self._notify(self.settle)
        return self._futures[1]

    def _outcome(self, _: Any) -> Results:
        self.inner.wait()
        return self._tensors

    def settle(self) -> None:
        """The operation is complete, or never will be: complete its future, if it was asked for and is not."""
        with self._lock:
            if self._futures is None or self._futures[0].done():
                return
            first = self._futures[0]
        first.set_result(None)
