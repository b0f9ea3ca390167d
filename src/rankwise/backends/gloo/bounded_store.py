"""A store that may be unreachable: torch's clients wait for ever if the network to the store's host fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rankwise.backends.composed.work_queue import WorkQueue
from rankwise.meeting.torch_store import TorchStore

T = TypeVar("T")


class BoundedStore(TorchStore):
    """The same store; a request that takes longer than `limit` seconds, and all later ones, raise ConnectionError."""

    def __init__(self, store: TorchStore, limit: float) -> None:
        super().__init__(store.connection, store.prefix)
        self._limit = limit
        self._queue: WorkQueue | None = None
        self._lost = False

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _ask(self, request: Callable[[Any], T]) -> T:
        if self._lost:
            raise ConnectionError("the store does not answer")
        if self._queue is None:
            self._queue = WorkQueue("rankwise store")
        answer: list[T] = []
        ask = super()._ask
        task = self._queue.put(lambda: answer.append(ask(request)))
        if not task.until_over(self._limit):
            self._lost = True
            self._queue.close()
            raise ConnectionError("the store does not answer")
        task.wait()
        return answer[0]
