"""A store that may be unreachable: torch's clients wait for ever if the network to the store's host fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rankwise.backends.composed.work_queue import WorkQueue
from rankwise.meeting.torch_store import LateStore

T = TypeVar("T")


class BoundedStore:
    """A store's methods, each for `limit` seconds at most; RuntimeError after that, and at once from then on."""

    def __init__(self, store: LateStore, limit: float) -> None:
        self._store, self._limit = store, limit
        self._queue: WorkQueue | None = None
        self._lost = False

    def set(self, key: str, text: str) -> None:
        self._run(lambda: self._store.set(key, text))

    def get(self, key: str) -> bytes:
        return self._run(lambda: self._store.get(key))

    def check(self, keys: list[str]) -> bool:
        return self._run(lambda: self._store.check(keys))

    def compare_set(self, key: str, expected: str, text: str) -> bytes:
        return self._run(lambda: self._store.compare_set(key, expected, text))

    def _run(self, request: Callable[[], T]) -> T:
        if self._lost:
            raise RuntimeError("the store does not answer")
        if self._queue is None:
            self._queue = WorkQueue("rankwise store")
        answer: list[Any] = []
        task = self._queue.put(lambda: answer.append(request()))
        if not task.until_over(self._limit):
            self._lost = True
            self._queue.close()
            raise RuntimeError("the store does not answer")
        task.wait()
        return answer[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()
