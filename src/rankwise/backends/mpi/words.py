"""Integers in a window of MPI on rank 0, which the ranks change by MPI's atomic operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.backends.mpi.transport import Transport
from rankwise.contract.words import SharedWords


class WindowWords(SharedWords):
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
        self._lock = transport.lock or threading.RLock()

    def add(self, index: int, n: int) -> int:
        before, change = np.empty(1, np.int64), np.array([n], np.int64)
        self._step(lambda: self.window.Fetch_and_op(change, before, 0, index, self._sum))
        return int(before[0])

    def swap_if(self, index: int, before: int, after: int) -> bool:
        found, old, new = np.empty(1, np.int64), np.array([before], np.int64), np.array([after], np.int64)
        self._step(lambda: self.window.Compare_and_swap(new, old, found, 0, index))
        return int(found[0]) == before

    def free(self) -> None:
        """Collective."""
        self.window.Unlock_all()
        self.window.Free()

    def _step(self, step: Callable[[], Any]) -> None:
        with self._lock:
            step()
            self.window.Flush(0)
