"""Work of the array level: a send or receive under way, with the array it belongs to."""

from __future__ import annotations

import threading
from typing import Any

from rankwise.api.arrays import Buffer
from rankwise.contract.errors import RankwiseError
from rankwise.contract.work import Work


class Pending:
    """The works of one group that are under way.

    It keeps their memory alive until the engine is done with it, also where the caller has dropped
    the Work.
    """

    def __init__(self) -> None:
        self.works: dict[int, ArrayWork] = {}
        self._look_at = _FEW

    def add(self, work: ArrayWork) -> None:
        # Dropped works are looked for only when the number has doubled, so that the search costs little.
        if len(self.works) >= self._look_at:
            self.release_done()
            self._look_at = max(_FEW, 2 * len(self.works))
        self.works[id(work)] = work

    def remove(self, work: ArrayWork) -> None:
        self.works.pop(id(work), None)

    def release_done(self) -> None:
        """Finish the works that are complete."""
        for work in list(self.works.values()):
            work.done()

    def clear(self) -> None:
        """Forget them all; only when the engine has let go of their memory."""
        self.works.clear()


_FEW = 16


class ArrayWork(Work[Any]):
    """isend's or irecv's handle. The result of irecv is the array received, isend's is None.

    It keeps the array alive. The array belongs to the operation until `wait` has returned or
    `done` has said True.
    """

    def __init__(self, inner: Work[None], buffer: Buffer, receives: bool, pending: Pending) -> None:
        self._inner = inner
        self._buffer: Buffer | None = buffer
        self._receives = receives
        self._pending = pending
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: RankwiseError | None = None
        pending.add(self)

    def wait(self, timeout: float | None = None) -> Any:
        if self._buffer is not None:
            try:
                self._inner.wait(timeout)
            except RankwiseError as error:
                if self._inner.done():
                    self._settle(error)
                raise
            self._settle(None)
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        if self._buffer is not None:
            if not self._inner.done():
                return False
            error = None
            try:
                self._inner.wait()
            except RankwiseError as failure:
                error = failure
            self._settle(error)
        return True

    def _settle(self, error: RankwiseError | None) -> None:
        """The engine has let go of the memory: give the caller its array, once."""
        with self._lock:
            if self._buffer is None:
                return
            if error is not None:
                self._error = error
            elif self._receives:
                self._value = self._buffer.finish()
            self._buffer = None
        self._pending.remove(self)
