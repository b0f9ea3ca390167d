"""nccl: NVIDIA's library between GPUs, through nccl4py; one GPU per rank.

An address may be in device memory, which NCCL works on in place, or in host memory, which is staged
through the device. Operations on device memory are launched on the communicator's CUDA stream and
return; `sync` waits for them, and `stream_sync` orders them among the program's own streams. Operations
on host memory are complete when they return.

In addition to NCCL's, the ranks have a communicator for host memory (`side`: shm, or gloo over several
hosts). It broadcasts the unique id, compares calls (RANKWISE_CHECK=1), carries messages, as NCCL has no
tags, and detects that a rank was lost.

NCCL's own reductions are used for the dtypes and ops that it has. It rounds f16, bf16 and fp8 at every
step. For other dtypes and ops the data is gathered, and reduced on the host by the native kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rankwise._native import address
from rankwise.backends import registry
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.composed import counting
from rankwise.backends.composed.communicator import ComposedCommunicator
from rankwise.backends.composed.survivors import shrunk
from rankwise.backends.nccl.streams import CudaFailed, CudaStreams, Mark
from rankwise.contract.communicator import Communicator, bind, complete, run_keeping
from rankwise.contract.errors import (
    BackendUnavailable,
    PeerLostError,
    RankwiseError,
    UnsupportedError,
    too_late,
)
from rankwise.contract.job import Job
from rankwise.contract.message import IncomingMessage
from rankwise.contract.operations import Call
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp
from rankwise.contract.work import OuterWork, Work, ended
from rankwise.system.settings import Settings

T = TypeVar("T")

INSTALL = "pip install 'rankwise[nccl]'"
POLL = 50e-6  # seconds between two polls of the stream, at first; up to POLL_MOST
POLL_MOST = 2e-3
PEER_CHECK = 0.05  # seconds between two checks that no rank was lost

# The numbers of ncclDataType_t and ncclRedOp_t.
DTYPES = {
    DType.I8: 0, DType.U8: 1, DType.I32: 2, DType.U32: 3, DType.I64: 4, DType.U64: 5, DType.F16: 6, DType.F32: 7,
    DType.F64: 8, DType.BF16: 9, DType.FP8E4M3: 10, DType.FP8E5M2: 11,
}  # fmt: skip
OPS = {ReduceOp.SUM: 0, ReduceOp.PROD: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.MEAN: 4}
_BYTE = DTYPES[DType.U8]
_IN_PROGRESS = 7  # ncclInProgress


@dataclass(frozen=True)
class Libraries:
    """nccl4py's bindings, which take C's arguments, and CUDA's runtime."""

    nccl: Any
    cuda: Any


def libraries() -> Libraries:
    """Load them. BackendUnavailable says what is missing: nccl4py, cuda-bindings, NCCL itself, a driver or a GPU."""
    try:
        from cuda.bindings import runtime
        from nccl.bindings import nccl
    except ImportError as error:
        raise BackendUnavailable("nccl", f"no module {error.name or error}", INSTALL) from None
    try:
        status, count = runtime.cudaGetDeviceCount()
    except Exception as error:  # noqa: BLE001 - whatever loading the driver raises
        raise BackendUnavailable("nccl", f"no CUDA ({error})", "install NVIDIA's driver") from None
    if int(status) or not count:
        why = status.name if int(status) else "cudaGetDeviceCount found none"
        raise BackendUnavailable("nccl", f"no GPU that CUDA can use ({why})", "use a machine with an NVIDIA GPU")
    try:
        nccl.get_version()
    except Exception as error:  # noqa: BLE001 - the loader's own error, of a package that may change
        raise BackendUnavailable("nccl", f"no libnccl.so.2 ({error})", "pip install nvidia-nccl-cu12") from None
    return Libraries(nccl, runtime)


def open_communicator(job: Job, timeout: float) -> NcclCommunicator:
    """Meet the other ranks of the job. This rank uses the GPU of its local rank, modulo the number of GPUs.

    Raises BackendUnavailable if there is no GPU, driver, NCCL or nccl4py.
    """
    available = libraries()
    if job.world_size == 1:
        side = registry.built_in("solo")(Job(), timeout)
    else:
        side = registry.built_in("shm" if job.one_host else "gloo")(job, timeout)
    comm = connect(available, side, job.local_rank if job.local_rank is not None else job.rank)
    comm.force(Settings.read().algorithms)
    return comm


def connect(available: Libraries, side: OpenCommunicator, local_rank: int) -> NcclCommunicator:
    """A communicator of side's ranks, which owns `side`. Collective."""
    streams = CudaStreams.of_rank(available.cuda, local_rank)
    try:
        comm = _meet(available, side)
    except available.nccl.NCCLError as error:
        side.close()
        raise RankwiseError(f"init: NCCL could not connect the ranks: {error}") from error
    return NcclCommunicator(available, side, comm, streams)


def _meet(available: Libraries, side: Communicator) -> Any:
    """NCCL's communicator of side's ranks. Collective."""
    unique = np.zeros(128, np.uint8)
    if side.rank == 0:
        unique[:] = np.frombuffer(bytes(available.nccl.get_unique_id()), np.uint8)
    complete(side).broadcast(address(unique), unique.nbytes, DType.U8, 0)
    handle = available.nccl.UniqueId.from_buffer(unique)
    return available.nccl.comm_init_rank(side.world_size, handle.ptr, side.rank)


class NcclCommunicator(ComposedCommunicator):
    """One rank's communicator in one NCCL group. Owns its NCCL communicator, its CUDA stream and `side`."""

    backend = "nccl"
    blocking = False
    device_memory = True

    def __init__(self, available: Libraries, side: OpenCommunicator, comm: Any, streams: CudaStreams) -> None:
        self.engine_errors = (available.nccl.NCCLError, CudaFailed)
        self._nccl, self._libraries, self._side, self._comm = available.nccl, available, side, comm
        self._messages: dict[int, Work[None]] = {}  # those that `sync` waits for
        self._aborted = False
        self.stream_sync = self._cuda = streams
        streams.wait_for = self._wait_for
        bind(self, side, "agree", "await_arrival", "failed", "left", "probe")
        super().__init__(side.rank, side.world_size, side.timeout, checks=Settings.read().check is True)
        self.any_source = side.any_source

    def _timeout_set(self, timeout: float) -> None:
        self._side.timeout = timeout

    # ---- completion ----

    def sync(self) -> None:
        counting.waits(self._complete_all)

    def _complete_all(self) -> None:
        self._check_failure()
        for message in list(self._messages.values()):
            message.wait()
        self._cuda.sync_comm_stream()

    def start(self, call: Call, keep: object = None, result: Any = None) -> Work[Any]:
        """Launch it now. The Work is done when the device has completed it."""
        try:
            self.run(call)
        except RankwiseError as error:
            return ended(error=error)
        event = self._cuda.create_event()
        self._cuda.record_on_comm_stream(event)
        end = Mark(self._cuda, event, keep)

        def wait(timeout: float | None) -> Any:
            counting.waits(self._wait_for, end.done, timeout)
            return result

        return OuterWork(wait, end)

    def call(self, function: Callable[[], T]) -> T:
        with self._call_lock:
            self._cuda.sync_comm_stream()
            return function()

    def start_call(self, function: Callable[[], T], *, at_once: bool = True) -> Work[T]:
        """Call it now, after the device has reached the end of the stream."""
        return Communicator.start_call(self, function)

    def _wait_for(self, reached: Callable[[], bool], timeout: float | None = None) -> None:
        """Poll until the device has reached this point; meanwhile check for NCCL's errors and for lost ranks."""
        limit = self._timeout if timeout is None else timeout
        end, pause, check = time.monotonic() + limit, POLL, time.monotonic() + PEER_CHECK
        while not reached():
            self._check_failure()
            now = time.monotonic()
            if now > end:
                operation, sequence = self._last_call.operation.name, self._sequence
                what = f"the GPU of rank {self._rank} did not complete {operation}"
                error = too_late(what, limit, operation=operation, sequence=sequence)
                if timeout is None:
                    self._fail(error)
                raise error
            if now > check:
                self._check_peers()
                check = now + PEER_CHECK
            time.sleep(pause)
            pause = min(2 * pause, POLL_MOST)

    def _check_failure(self) -> None:
        """Raise the error if something has failed."""
        self._check_usable()
        status = self._nccl.comm_get_async_error(self._comm)
        if int(status) not in (0, _IN_PROGRESS):
            self._fail(self._async_error(int(status)))
            raise self._final_error_copy()

    def _check_peers(self) -> None:
        if not self._side.any_source:
            return  # gloo detects a lost rank only when it sends
        try:
            self._side.probe(self._rank, 0)
        except RankwiseError as error:
            self._fail(error)
            raise

    def _async_error(self, status: int) -> RankwiseError:
        operation = self._last_call.operation.name
        text = f"{operation}: {self._nccl.get_error_string(status)} ({self._nccl.get_last_error(self._comm)})"
        remote = status in (2, 6)  # ncclSystemError, ncclRemoteError: a connection ended
        return PeerLostError(f"a rank was lost: {text}", operation=operation) if remote else RankwiseError(text)

    # ---- messages, through the host ----

    def send(self, ptr: int, count: int, dtype: DType, dest: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_failure()
        if not self._cuda.on_device(ptr):
            return self._message(self._side.send(ptr, count, dtype, dest, tag, keep))
        data = self._fetched(ptr, count * ITEMSIZE[dtype])
        return self._message(self._side.send(address(data), count, dtype, dest, tag, data))

    def recv(self, ptr: int, count: int, dtype: DType, src: int, tag: int = 0, keep: object = None) -> Work[None]:
        self._check_failure()
        finish = None
        if self._cuda.on_device(ptr):
            size = count * ITEMSIZE[dtype]
            data = np.empty(max(1, size), np.uint8)
            finish = partial(run_keeping, self._cuda.copy_now, (ptr, address(data), size), (keep, data))
            ptr, keep = address(data), data
        return self._message(self._side.recv(ptr, count, dtype, src, tag, keep), finish)

    def start_arrived(self, src: int, tag: int) -> IncomingMessage | None:
        self._check_failure()
        incoming = self._side.start_arrived(src, tag)
        return None if incoming is None else incoming._replace(work=self._message(incoming.work))

    def _message(self, work: Work[None], finish: Callable[[], None] | None = None) -> Work[None]:
        """A message that goes through the host. finish: copies what it received to the device."""
        number, pending = id(work), self._messages

        def wait(timeout: float | None) -> None:
            work.wait(timeout)
            if pending.pop(number, None) is not None and finish is not None:
                finish()

        pending[number] = message = OuterWork(wait, work, cancelled=partial(pending.pop, number, None))
        return message

    # ---- moves ----

    @contextmanager
    def _nccl_group(self) -> Iterator[None]:
        """Calls that NCCL launches together. The end of a group that an error leaves must not be missing either: this
        thread's later calls, also on other communicators, would only be queued.
        """
        self._nccl.group_start()
        try:
            yield
        finally:
            self._nccl.group_end()

    def _barrier(self) -> None:
        """A one-byte all_reduce, as NCCL has no barrier."""
        byte = self._cuda.scratch("barrier", 1)
        self._nccl.all_reduce(byte, byte, 1, _BYTE, OPS[ReduceOp.SUM], self._comm, self._cuda.stream)
        self._cuda.sync_comm_stream()

    def _broadcast(self, ptr: int, size: int, root: int) -> None:
        self._on_device(ptr, size, ptr, size, self._nccl.broadcast, size, _BYTE, root)

    def _all_gather(self, send: int, recv: int, size: int) -> None:
        self._on_device(send, size, recv, size * self._world_size, self._nccl.all_gather, size, _BYTE)

    def _all_gather_v(self, send: int, recv: int, sizes: Sequence[int]) -> None:
        """A broadcast from each rank, all in one NCCL group."""

        def launch(given: int, incoming: int, *stream: Any) -> None:
            with self._nccl_group():
                for rank, size in enumerate(sizes):
                    if size:
                        self._nccl.broadcast(given, incoming, size, _BYTE, rank, *stream)
                    incoming += size

        self._on_device(send, sizes[self._rank], recv, sum(sizes), launch)

    def _all_to_all_v(self, send: int, recv: int, send_sizes: Sequence[int], recv_sizes: Sequence[int]) -> None:
        def launch(given: int, incoming: int, *stream: Any) -> None:
            with self._nccl_group():
                for rank, (out, into) in enumerate(zip(send_sizes, recv_sizes, strict=True)):
                    if out:
                        self._nccl.send(given, out, _BYTE, rank, *stream)
                    if into:
                        self._nccl.recv(incoming, into, _BYTE, rank, *stream)
                    given, incoming = given + out, incoming + into

        self._on_device(send, sum(send_sizes), recv, sum(recv_sizes), launch)

    # ---- reductions ----

    def _all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size, composed = count * ITEMSIZE[dtype], super()._all_reduce
        if self._reduces(dtype, op):
            self._on_device(ptr, size, ptr, size, self._nccl.all_reduce, count, DTYPES[dtype], OPS[op])
        else:
            self._on_host(ptr, size, ptr, size, lambda _, incoming: composed(incoming, count, dtype, op))

    def _reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        """An all_reduce, so that the result has the same bits; the other ranks' buffers are unchanged."""
        size, given = count * ITEMSIZE[dtype], ptr
        if self._rank != root and self._cuda.on_device(given):
            ptr = self._cuda.scratch("reduce", size)
            self._cuda.copy(ptr, given, size)
        elif self._rank != root:
            copy = self._fetched(given, size)
            ptr = address(copy)
        self._all_reduce(ptr, count, dtype, op)

    def _reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size = count * ITEMSIZE[dtype]
        if self._reduces(dtype, op):
            places = send, size * self._world_size, recv, size
            self._on_device(*places, self._nccl.reduce_scatter, count, DTYPES[dtype], OPS[op])
        else:
            self._reduce_scatter_v(send, recv, (count,) * self._world_size, dtype, op)

    def _reduce_scatter_v(self, send: int, recv: int, counts: Sequence[int], dtype: DType, op: ReduceOp) -> None:
        """A reduce to each rank, all in one NCCL group."""
        item = ITEMSIZE[dtype]

        def launch(given: int, incoming: int, *stream: Any) -> None:
            with self._nccl_group():
                for rank, count in enumerate(counts):
                    if count:
                        self._nccl.reduce(given, incoming, count, DTYPES[dtype], OPS[op], rank, *stream)
                    given += count * item

        places, composed = (send, sum(counts) * item, recv, counts[self._rank] * item), super()._reduce_scatter_v
        if self._reduces(dtype, op):
            self._on_device(*places, launch)
        else:
            self._on_host(*places, lambda given, incoming: composed(given, incoming, counts, dtype, op))

    def _reduces(self, dtype: DType, op: ReduceOp) -> bool:
        """Whether NCCL has this reduction on this GPU: of fp8 no mean, and nothing before compute capability 9."""
        if dtype in (DType.FP8E4M3, DType.FP8E5M2) and (op is ReduceOp.MEAN or self._cuda.capability < 9):
            return False
        return dtype in DTYPES and op in OPS

    # ---- memory of the other kind; send and recv may be the same address ----

    def _on_device(
        self, send: int, send_size: int, recv: int, recv_size: int, launch: Callable[..., None], *args: Any
    ) -> None:
        """Launch an operation on device memory: the caller's, or copies of the caller's host memory.

        launch: takes the addresses of what it reads and writes, args, NCCL's communicator and the CUDA stream.
        """
        if not (send_size or recv_size):
            return
        from_host = send_size > 0 and not self._cuda.on_device(send)
        to_host = recv_size > 0 and not self._cuda.on_device(recv)
        given, incoming = self._cuda.scratch("in", send_size) if from_host else send, recv
        if to_host:
            incoming = given if from_host and recv == send else self._cuda.scratch("out", recv_size)
        if from_host:
            self._cuda.copy(given, send, send_size)
        launch(given, incoming, *args, self._comm, self._cuda.stream)
        if to_host:
            self._cuda.copy(recv, incoming, recv_size)
        if from_host or to_host:
            self._cuda.sync_comm_stream()

    def _on_host(self, send: int, send_size: int, recv: int, recv_size: int, body: Callable[[int, int], None]) -> None:
        """Run `body` on host memory: the caller's, or copies of the caller's device memory."""
        if not (self._cuda.on_device(send) or self._cuda.on_device(recv)):
            body(send, recv)
            return
        given = self._fetched(send, send_size)
        incoming = given if recv == send else np.empty(max(1, recv_size), np.uint8)
        body(address(given), address(incoming))
        self._cuda.copy_now(recv, address(incoming), recv_size)

    def _fetched(self, ptr: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        data = np.empty(max(1, size), np.uint8)
        self._cuda.copy_now(address(data), ptr, size)
        return data

    # ---- what ComposedCommunicator needs ----

    def _collect(self, own: int, everybody: int, size: int) -> None:
        """Envelopes go through the host communicator."""
        complete(self._side).all_gather(own, everybody, size, DType.U8)

    def _part(self, color: int, members: Sequence[int]) -> NcclCommunicator:
        key = members.index(self._rank)
        side = self._side.split(color, key)
        assert side is not None
        comm = self._nccl.comm_split(self._comm, color & 0x7FFFFFFF, key, 0)
        return NcclCommunicator(self._libraries, side, comm, self._cuda.another())

    # ---- going on after a loss ----

    def shrink(self, exclude: Sequence[int] = ()) -> NcclCommunicator:
        """`side` shrinks, and its ranks connect anew by NCCL; if one is lost meanwhile, the others do it again.

        ncclCommShrink would save some of that, but it must be called with the same lost ranks everywhere, takes as
        long, and is not in every NCCL.
        """
        if self._final_error is not None:
            self._abort_comm()  # its kernels may wait for a lost rank
        for (side,), former in shrunk([self._side], [exclude]):
            try:
                comm = _meet(self._libraries, side)
            except (RankwiseError, self._nccl.NCCLError):
                comm = None
            if side.agree(int(comm is not None)):
                new = NcclCommunicator(self._libraries, side, comm, self._cuda.another())
                new.former_ranks = former
                return new
            if comm is not None:
                self._nccl.comm_abort(comm)
        raise AssertionError  # shrunk ends with an error

    def _no_part(self) -> None:
        self._side.split(-1)
        self._nccl.comm_split(self._comm, _NO_COLOR, 0, 0)

    def _explain(self, error: Exception, where: str = "") -> RankwiseError:
        return RankwiseError(f"{self._last_call} #{self._sequence}: {error}")

    def _announce_failure(self, error: RankwiseError, *, known_to_all: bool) -> None:
        """Abort: the kernels that wait for other ranks end, and `side` informs the other ranks."""
        self._abort_comm()
        if known_to_all:
            return
        with suppress(UnsupportedError):
            self._side.abort(str(error))

    def _abort_comm(self) -> None:
        if not self._aborted:
            self._aborted = True
            self._nccl.comm_abort(self._comm)

    def _release(self, timeout: float, healthy: bool) -> None:
        try:
            if healthy and self._cuda.idle_within(timeout):
                self._aborted = True
                self._nccl.comm_destroy(self._comm)
            else:
                self._abort_comm()
        finally:
            self._cuda.close()
            self._side.close(timeout)


_NO_COLOR = -1  # NCCL_SPLIT_NOCOLOR
