"""MPI's communicator, its messages, and how memory is described to MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

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
