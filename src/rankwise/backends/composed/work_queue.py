"""A queue of functions with a thread that runs them, for backends whose engine has no usable queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from rankwise.contract.errors import ClosedError, CollectiveTimeout, RankwiseError
from rankwise.contract.work import Work


class Task(Work[Any]):
    """A function in a WorkQueue. `wait` returns what it returned, or raises what it raised."""

    def __init__(self, function: Callable[[], Any], thread: threading.Thread) -> None:
        self._function: Callable[[], Any] | None = function
        self._thread = thread
        self._value: Any = None
        self._error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        assert self._function is not None
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `wait` raises it
            self._error = error
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        self._error = self._error or error
        self._over.set()  # set before the function is released, which may close the group
        self._function = None

    def wait(self, timeout: float | None = None) -> Any:
        if not self._over.is_set() and threading.current_thread() is self._thread:
            raise RankwiseError("work on a stream cannot wait for work queued behind it on the same stream")
        if not self._over.wait(timeout):
            limit = timeout or 0.0
            raise CollectiveTimeout(f"the operation was not complete within {limit:g} s", limit=limit)
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        return self._over.is_set()

    def until_over(self, timeout: float | None) -> bool:
        """Wait for it to end in any way; False if it is still running."""
        return self._over.wait(timeout)


class WorkQueue:
    """Runs functions once each, in the order queued, in a thread that starts with the first.

    last: the function that was queued last, or None.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.last: Task | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, function: Callable[[], Any]) -> Task:
        task = Task(function, self._thread)
        with self._lock:
            if self._closed:
                raise ClosedError("this communicator was closed")
            if self.last is None:
                self._thread.start()
            self.last = task
            self._tasks.put(task)
        return task

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all queued functions have run; at once in the queue's own thread. False after `timeout`."""
        last = self.last
        return last is None or last.done() or threading.current_thread() is self._thread or last.until_over(timeout)

    def close(self) -> None:
        """Accept no more functions. Those that have not begun are cancelled; the thread ends after the running one."""
        with self._lock:
            self._closed = True
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task.end(ClosedError("this communicator was closed before the operation began"))
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
            del task  # and what its function references
