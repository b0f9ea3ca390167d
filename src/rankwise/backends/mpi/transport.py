"""MPI's communicator, its messages, and how memory is described to MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.contract.closing import ClosingOrder, close_at_exit
from rankwise.contract.words import SharedWords

if TYPE_CHECKING:
    from mpi4py import MPI

TAGS_PER_TAG = 32  # MPI's tags for each of ours: one per dtype
BLOCK = 1 << 30  # bytes; larger sizes are made of such blocks, as they may exceed an int

_ONE_AT_A_TIME = threading.RLock()  # the lock of all calls into an MPI without MPI_THREAD_MULTIPLE


class Transport:
    """One rank's MPI communicator, which it owns. Addresses point to the caller's memory; sizes are in bytes.

    comm: MPI's communicator. mpi: mpi4py's module. memory: makes a buffer for mpi4py from an address and a size. most:
    the largest count, which before MPI 4 is a C int. concurrent: whether threads may call MPI at once.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)  # so that mpi4py raises them
        self.mpi, self.comm = MPI, comm
        self.rank, self.world_size = comm.rank, comm.size
        self.concurrent = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.lock = None if self.concurrent else _ONE_AT_A_TIME
        self.memory: Callable[[int, int], Any] = MPI.memory.fromaddress
        self.byte = MPI.BYTE
        self._wides: dict[int, Any] = {}
        self.counts_ints = MPI.VERSION < 4
        self.most = (1 << 31) - 1 if self.counts_ints else 1 << 62
        # Open MPI's other communicators do not have this attribute.
        self.most_tags = (int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767) + 1) // TAGS_PER_TAG

    # ---- memory, as MPI describes it ----

    def bytes(self, ptr: int, size: int) -> Any:
        return self.described(self.memory(ptr, size), size)

    def described(self, memory: Any, size: int) -> Any:
        """A buffer of this size."""
        return memory if size <= self.most else self.wide(memory, size)

    def each(self, ptr: int, size: int) -> tuple[Any, int, Any]:
        """A block of `size` for each rank."""
        whole = self.memory(ptr, size * self.world_size)
        return (whole, size, self.byte) if size <= self.most else self.wide(whole, size)

    def wide(self, memory: Any, size: int) -> tuple[Any, int, Any]:
        """More bytes than a count can say: one element of a datatype of this size, which is kept."""
        if size not in self._wides:
            self._wides[size] = self._span(0, size)
        return memory, 1, self._wides[size]

    def blocks(self, ptr: int, sizes: Sequence[int]) -> tuple[Any, tuple[Sequence[int], Sequence[int]], Any]:
        *starts, whole = accumulate(sizes, initial=0)
        return self.memory(ptr, whole), (sizes, starts), self.byte

    def typed_blocks(self, ptr: int, sizes: Sequence[int]) -> tuple[tuple[Any, Any, Any], list[Any]]:
        """Buffer, (counts, displacements in bytes) and datatypes for Alltoallw; and the datatypes to free."""
        *starts, whole = accumulate(sizes, initial=0)
        counts, kinds, made = list(sizes), [self.byte] * len(sizes), []
        for rank, size in enumerate(sizes):
            if starts[rank] + size > self.most:
                kind = self._span(starts[rank], size)
                made.append(kind)
                counts[rank], starts[rank], kinds[rank] = 1, 0, kind
        return (self.memory(ptr, whole), (counts, starts), kinds), made

    def _span(self, start: int, size: int) -> Any:
        """A new datatype of MPI: the `size` bytes from `start` on. Its counts are ints."""
        blocks, rest = divmod(size, BLOCK)
        block = self.byte.Create_contiguous(BLOCK)
        span = self.mpi.Datatype.Create_struct([blocks, rest], [start, start + blocks * BLOCK], [block, self.byte])
        block.Free()
        return span.Commit()


class WindowWords(SharedWords):
    """Integers in a window of MPI on rank 0, which the ranks change by MPI's atomic operations.

    Between hosts an MPI may complete an operation only when rank 0 is in a call of MPI.
    """

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
        found, old, new = np.empty(1, np.int64), np.array([before], np.int64), np.array([after], np.int64)
        self._step(lambda: self.window.Compare_and_swap(new, old, found, 0, index))
        return int(found[0]) == before

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


_windows: list[WindowWords] = []  # in the order made, which is the same on all ranks


def _free_all(_left: Callable[[], float]) -> None:
    """The process ends: MPI's Finalize will wait for the other ranks too, but hangs if a thread is in a call of MPI."""
    for words in list(_windows):
        if words._thread is not None:
            words._thread.join()
        elif words._closed:
            words._free()


close_at_exit(ClosingOrder.ENGINES, _free_all)


class MpiPeers:
    """Messages between the ranks during a collective. Sizes are in bytes; one of 0 bytes is not sent.

    `wait` waits for what `send` and `recv` return.

    They travel over a duplicate of the communicator, so that no receive of the program can match them. The ranks make
    it together, in the first call that uses it.
    """

    def __init__(self, transport: Transport, duplicate: Callable[[], Any]) -> None:
        self._transport, self._duplicate = transport, duplicate
        self.rank, self.world_size = transport.rank, transport.world_size

    @cached_property
    def _comm(self) -> Any:
        return self._duplicate()

    def send(self, ptr: int, size: int, peer: int) -> Any:
        return self._comm.Isend(self._transport.bytes(ptr, size), peer) if size else None

    def recv(self, ptr: int, size: int, peer: int) -> Any:
        return self._comm.Irecv(self._transport.bytes(ptr, size), peer) if size else None

    def wait(self, pending: Any) -> None:
        if pending is not None:
            pending.Wait()

    def close(self) -> None:
        if "_comm" in vars(self):
            self._comm.Free()
