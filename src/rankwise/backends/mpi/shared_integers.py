"""Integers in a window of MPI on rank 0, which the ranks change by MPI's atomic operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise.backends.mpi.transport import Transport
from rankwise.contract.closing import ClosingOrder, close_at_exit
from rankwise.contract.shared_integers import SharedIntegers


class WindowIntegers(SharedIntegers):
    """Between hosts an MPI may complete an operation only when rank 0 is in a call of MPI."""

    def __init__(self, transport: Transport, number: int) -> None:
        """Collective."""
        mpi = transport.mpi
        size = 8 * number if transport.rank == 0 else 0
        self.window = mpi.Win.Allocate(size, 8, comm=transport.comm)
        if size:
            np.frombuffer(self.window.tomemory(), np.int64)[:] = 0
        transport.comm.Barrier()
        self.window.Lock_all()
        self._sum = mpi.SUM
        self._lock, self._concurrent = transport.lock or threading.RLock(), transport.concurrent
        self._thread: threading.Thread | None = None
        self._closed = False
        _windows.append(self)

    def add(self, index: int, n: int) -> int:
        before, change = np.empty(1, np.int64), np.array([n], np.int64)
        self._step(lambda: self.window.Fetch_and_op(change, before, 0, index, self._sum))
        return int(before[0])

    def swap_if(self, index: int, before: int, after: int) -> bool:
        current, old, new = np.empty(1, np.int64), np.array([before], np.int64), np.array([after], np.int64)
        self._step(lambda: self.window.Compare_and_swap(new, old, current, 0, index))
        return int(current[0]) == before

    def free(self, seconds: float) -> None:
        """Free the window, for which MPI waits until all ranks do: in a thread, for which this call waits so long.

        At the end of the process if no thread can do it: MPI allows one call at a time, or the interpreter ends.
        """
        self._closed = True
        if self._concurrent:
            thread = threading.Thread(target=self._free, name="rankwise mpi words", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
                thread.join(seconds)

    def _free(self) -> None:
        self.window.Unlock_all()
        self.window.Free()
        _windows.remove(self)

    def _step(self, step: Callable[[], Any]) -> None:
        with self._lock:
            step()
            self.window.Flush(0)


_windows: list[WindowIntegers] = []  # in the order made, which is the same on all ranks


def _free_all(_left: Callable[[], float]) -> None:
    """The process ends: MPI's Finalize will wait for the other ranks too, but hangs if a thread is in a call of MPI."""
    for words in list(_windows):
        if words._thread is not None:
            words._thread.join()
        elif words._closed:
            words._free()


close_at_exit(ClosingOrder.ENGINES, _free_all)
