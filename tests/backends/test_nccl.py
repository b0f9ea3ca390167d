"""nccl: its logic over a double of nccl4py and CUDA, and the double's signatures against the real ones."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from array_level import EVERY_SCENARIO
from engines import conforms
from rankwise.arrays.base import Buffer, Device
from rankwise.arrays.numpy import NUMPY
from rankwise.backends.native import threads
from rankwise.backends.nccl import communicator as nccl
from rankwise.backends.nccl.communicator import Libraries, NcclCommunicator
from rankwise.backends.registry import Opener
from rankwise.contract.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    PeerLostError,
    RankwiseError,
)
from rankwise.contract.job import Job
from rankwise.contract.operations import ALL_GATHER, ALL_REDUCE, Call
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS

sys.path.insert(0, str(Path(__file__).parent))
from nccl_double import Cuda, Nccl, NCCLError, World


def doubled(n: int, *, everywhere: bool, calls: list[Any] | None = None, made: list[Libraries] | None = None) -> Opener:
    """A backend for n threads. everywhere: all memory counts as the device's, as if arrays were on the GPU."""
    worlds: dict[str, World] = {}
    lock = threading.Lock()

    def open_communicator(job: Job, timeout: float) -> NcclCommunicator:
        with lock:
            world = worlds.setdefault(job.id, World(n))
        record: list[Any] = [] if calls is None else calls
        found = Libraries(Nccl(world, record), Cuda(record, everywhere=everywhere))
        if made is not None:
            made.append(found)
        return nccl.connect(found, threads.connect(world.side, job.rank, timeout), job.rank)

    return open_communicator


def all_reduce_of(x: np.ndarray[Any, np.dtype[np.float64]]) -> Call:
    return Call(ALL_REDUCE, x.ctypes.data, x.ctypes.data, x.size, DType.F64, ReduceOp.SUM)


@pytest.mark.parametrize(
    "everywhere", [pytest.param(True, id="device"), pytest.param(False, id="host", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", OPERATIONS["pointer"])
def test_operation(name: str, everywhere: bool) -> None:
    conforms(name, "pointer", 3, doubled(3, everywhere=everywhere))


@pytest.mark.parametrize("name", EVERY_SCENARIO)
def test_scenario(name: str) -> None:
    run_ranks(EVERY_SCENARIO[name], 2, backend=doubled(2, everywhere=False))


def one(calls: list[Any], **options: Any) -> NcclCommunicator:
    comm = doubled(1, calls=calls, **{"everywhere": True, **options})(Job(), 5.0)
    assert isinstance(comm, NcclCommunicator)
    return comm


def test_event_lifecycle() -> None:
    """The contract's seven steps are CUDA's calls, in this order, and none of them blocks."""
    calls: list[Any] = []
    x = np.ones(4, np.float32)
    with one(calls) as comm:
        ops, compute, mine = comm.stream_sync, 77, comm._cuda.stream
        assert ops is not None
        del calls[:]
        event = ops.create_event()
        ops.record_on_stream(event, compute)
        ops.comm_stream_wait_event(event)
        comm.all_reduce(x.ctypes.data, 4, DType.F32, ReduceOp.SUM)
        ops.record_on_comm_stream(event)
        ops.stream_wait_event(compute, event)
        ops.destroy_event(event)
        assert calls == [
            ("cudaEventRecord", event, compute),
            ("cudaStreamWaitEvent", mine, event, 0),
            ("all_reduce", 4, 7, 0, mine),
            ("cudaEventRecord", event, mine),
            ("cudaStreamWaitEvent", compute, event, 0),
            ("cudaEventDestroy", event),
        ]
        with pytest.raises(ValueError, match="has not been destroyed"):
            ops.record_on_stream(event, compute)


def test_device_memory_is_passed_to_nccl_without_a_copy() -> None:
    calls: list[Any] = []
    with one(calls) as comm:
        stream = comm._cuda.stream
        x, y = np.ones(6, np.float32), np.zeros(6, np.float32)
        p, q = x.ctypes.data, y.ctypes.data
        for call, launched in (
            (lambda: comm.all_reduce(p, 6, DType.BF16, ReduceOp.MEAN), ("all_reduce", 6, 9, 4, stream)),
            (lambda: comm.all_reduce(p, 6, DType.FP8E4M3, ReduceOp.MAX), ("all_reduce", 6, 10, 2, stream)),
            (lambda: comm.broadcast(p, 6, DType.F32, 0), ("broadcast", 24, 1, 0, stream)),
            (lambda: comm.all_gather(p, q, 6, DType.F32), ("all_gather", 24, 1, stream)),
            (lambda: comm.reduce_scatter(p, q, 6, DType.F16, ReduceOp.MIN), ("reduce_scatter", 6, 6, 3, stream)),
        ):
            del calls[:]
            call()
            assert calls == [launched]
        del calls[:]
        comm.barrier()
        assert ("all_reduce", 1, 1, 0, stream) in calls


def on_device(x: np.ndarray[Any, np.dtype[np.float64]], stream: int) -> Buffer:
    """A tensor's Buffer, packed if x is strided; `stream` is the one on which the program works on it."""
    shape, packed = x.shape, np.empty(x.shape)
    where = Device("cuda:0", stream)
    if x.flags.c_contiguous:
        return Buffer(x.ctypes.data, x.size, DType.F64, shape, x, NUMPY, x, device=where)

    def put_back(packed: Any) -> Any:
        x[...] = packed
        return x

    return Buffer(packed.ctypes.data, x.size, DType.F64, shape, packed, NUMPY, x, put_back, x, where)


@pytest.mark.parametrize("strided", ["x", "out", "both"])
def test_a_strided_tensor_is_ordered_after_its_stream_as_another_is(strided: str) -> None:
    calls: list[Any] = []
    with one(calls) as comm:
        x, out = (np.arange(8.0)[::2] if strided in (name, "both") else np.arange(4.0) for name in ("x", "out"))
        group = Group(comm)
        reads, writes = on_device(x, 77), on_device(out, 78)
        call = Call(ALL_GATHER, reads.ptr, writes.ptr, 4, DType.F64)
        group._call(call, reads, writes, False)
        before = calls[: [name for name, *_ in calls].index("all_gather")]
        recorded = {stream: event for name, event, stream in (c for c in before if c[0] == "cudaEventRecord")}
        for stream in (77, 78):
            assert ("cudaStreamWaitEvent", comm._cuda.stream, recorded[stream], 0) in before
        assert out.tolist() == x.tolist()


def test_a_group_of_calls_is_ended_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise NCCL only queues what this thread calls from then on."""

    def refuse(*_: Any) -> None:
        raise NCCLError("InvalidUsage (5)")

    x, y = np.ones(4), np.zeros(4)
    p, q, item = x.ctypes.data, y.ctypes.data, DType.F64
    for name, operation in (
        ("broadcast", lambda comm: comm.all_gather_v(p, q, [4], item)),
        ("send", lambda comm: comm.all_to_all_v(p, q, [4], [4], item)),
        ("reduce", lambda comm: comm.reduce_scatter_v(p, q, [4], item, ReduceOp.SUM)),
    ):
        made: list[Libraries] = []
        comm = one([], made=made)
        monkeypatch.setattr(made[0].nccl, name, refuse)
        with pytest.raises(RankwiseError, match="InvalidUsage"):
            operation(comm)
        assert made[0].nccl._group is None
        comm.close()


def test_everything_is_released() -> None:
    calls: list[Any] = []
    made: list[Libraries] = []
    comm = one(calls, everywhere=False, made=made)
    x = np.ones(1000)
    comm.all_reduce(x.ctypes.data, 1000, DType.F64, ReduceOp.SUM)
    comm.start(all_reduce_of(x)).wait()
    assert made[0].cuda.allocated
    comm.close()
    comm.close()
    names = [call[0] for call in calls]
    assert names.count("comm_destroy") == names.count("cudaStreamDestroy") == 1
    assert names.count("cudaEventDestroy") == 1
    assert made[0].cuda.allocated == 0


def test_a_started_operation_is_done_when_the_device_has_run_it() -> None:
    with one([]) as comm:
        x = np.ones(3)
        work = comm.start(all_reduce_of(x))
        assert not work.done()
        work.wait()
        assert work.done() or work.done()  # the double is busy every second time


def test_an_unresponsive_device_is_aborted_at_the_timeout() -> None:
    calls: list[Any] = []
    made: list[Libraries] = []
    comm = one(calls, made=made)
    comm.timeout = 0.2
    made[0].cuda.stuck = True
    start = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.barrier()
    assert (caught.value.limit, caught.value.operation) == (0.2, "barrier")
    assert time.monotonic() - start < 40
    assert ("comm_abort",) in calls
    with pytest.raises(CollectiveTimeout):
        comm.barrier()
    comm.close()
    assert [call[0] for call in calls].count("comm_abort") == 1


def test_an_asynchronous_error_fails_the_group() -> None:
    made: list[Libraries] = []
    comm = one([], made=made)
    made[0].nccl.async_error = 6  # ncclRemoteError
    with pytest.raises(PeerLostError, match=r"result 6 \(its last error\)") as caught:
        comm.barrier()
    assert caught.value.operation == "barrier"
    with pytest.raises(PeerLostError):
        comm.sync()
    comm.close()


def test_a_failing_rank_ends_the_others() -> None:
    made: list[Libraries] = []

    def body(group: Group) -> None:
        comm = group.comm
        assert isinstance(comm, NcclCommunicator)
        group.barrier()
        if group.rank == 0:
            comm.abort("had enough")
        else:
            comm._cuda._cuda.stuck = True  # the GPU waits for rank 0
        with pytest.raises(RankwiseError):
            comm.sync()

    run_ranks(body, 2, backend=doubled(2, everywhere=False, made=made), timeout=30)


def test_a_cancelled_receive_takes_no_message_and_no_sync_waits_for_it() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            group.barrier()
            group.send(np.full(3, 7.0), dst=0)
            return
        x, y = np.zeros(3), np.zeros(3)
        dropped = group.irecv(x, src=1)
        with pytest.raises(CollectiveTimeout):
            dropped.wait(0.01)
        assert dropped.cancel()
        group.comm.sync()
        group.barrier()
        assert group.recv(y, src=1).tolist() == [7.0] * 3
        assert not x.any()

    run_ranks(body, 2, backend=doubled(2, everywhere=True), timeout=30)


def test_a_measurement_counts_each_operation_once_and_waiting_for_the_device_as_sync() -> None:
    def body(group: Group) -> None:
        group.all_reduce(np.ones(1000))
        group.reduce_scatter(np.ones(10))
        group.barrier()

    with rw.trace.measure() as m:
        run_ranks(body, 2, backend=doubled(2, everywhere=False), timeout=30)
    found = m.by_operation
    assert (found["all_reduce"].count, found["all_reduce"].bytes) == (2, 16000)
    assert (found["reduce_scatter"].count, found["reduce_scatter"].bytes) == (2, 80)
    assert found["barrier"].count == 2
    assert found["sync"].count >= 2


def test_the_survivors_shrink() -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            group.close()
            return
        with pytest.raises(RankwiseError):
            group.comm._side.barrier()  # type: ignore[attr-defined]
        assert group.failed() == {1: "left the group"}
        assert group.agree(3) == 3
        smaller = group.shrink()
        assert isinstance(smaller.comm, NcclCommunicator)
        assert (smaller.ranks, smaller.rank) == ((0, 2), group.rank // 2)
        assert smaller.all_reduce(np.ones(1000))[-1] == 2
        if group.rank == 0:
            alone = smaller.shrink(exclude=[1])  # which lives, and does not come
            assert (alone.ranks, alone.all_reduce(1)) == ((0,), 1)

    run_ranks(body, 3, backend=doubled(3, everywhere=False), timeout=30)


# ---- the real nccl4py ----


def parameters(text: str) -> list[str]:
    """`all_reduce(intptr_t sendbuff, comm) -> int` -> ["sendbuff", "comm"]."""
    inside = re.search(r"\((.*)\)", text.strip().splitlines()[0])
    assert inside is not None, text
    words = [part.strip().partition(":")[0] for part in inside[1].split(",") if part.strip()]
    return [word.split()[-1] for word in words]


def own_methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: f for name, f in vars(kind).items() if inspect.isfunction(f) and not name.startswith("_")}


@pytest.mark.parametrize(
    ("module", "double", "package"),
    [("nccl.bindings.nccl", Nccl, "nccl4py"), ("cuda.bindings.runtime", Cuda, "cuda-bindings")],
)
def test_the_double_has_the_signatures_of_the_real_library(module: str, double: type, package: str) -> None:
    try:
        real = importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{package} is not installed ({error}); pip install 'rankwise[nccl]'")
    for name, function in own_methods(double).items():
        theirs = parameters(getattr(real, name).__doc__)
        ours = list(inspect.signature(function).parameters)[1:]
        assert ours == theirs, f"{name}: the double takes {ours}, the real one {theirs}"
    if package == "nccl4py":
        assert {d: int(getattr(real.DataType, name)) for d, name in REAL_TYPES.items()} == nccl.DTYPES
        assert {op: int(getattr(real.RedOp, name)) for op, name in REAL_OPS.items()} == nccl.OPS
        assert int(real.Result.InProgress) == nccl._IN_PROGRESS
        unique = np.arange(128, dtype=np.uint8)
        assert bytes(real.UniqueId.from_buffer(unique)) == unique.tobytes()
        assert issubclass(real.NCCLError, Exception)
    else:
        assert int(real.cudaMemcpyKind.cudaMemcpyDefault) == 4
        assert int(real.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor) == 75
        assert int(real.cudaError_t.cudaErrorNotReady) == 600
        assert {int(getattr(real.cudaMemoryType, f"cudaMemoryType{kind}")) for kind in ("Device", "Managed")} == {2, 3}
        assert (real.cudaStreamNonBlocking, real.cudaEventDisableTiming) == (1, 2)


REAL_TYPES = {
    DType.I8: "Int8", DType.U8: "Uint8", DType.I32: "Int32", DType.U32: "Uint32", DType.I64: "Int64",
    DType.U64: "Uint64", DType.F16: "Float16", DType.F32: "Float32", DType.F64: "Float64", DType.BF16: "Bfloat16",
    DType.FP8E4M3: "Float8e4m3", DType.FP8E5M2: "Float8e5m2",
}  # fmt: skip
REAL_OPS = {
    ReduceOp.SUM: "Sum", ReduceOp.PROD: "Prod", ReduceOp.MAX: "Max", ReduceOp.MIN: "Min", ReduceOp.MEAN: "Avg",
}  # fmt: skip


def no_gpu() -> str:
    """Why nccl cannot be used here; "" where it can."""
    try:
        nccl.libraries()
    except BackendUnavailable as error:
        return str(error)
    return ""


def test_without_a_gpu_the_error_names_the_cause() -> None:
    why = no_gpu()
    if not why:
        pytest.skip("there is a GPU here")
    assert re.search(r"backend 'nccl' is not available here: no (module|GPU|CUDA|libnccl).*; ", why)
    with pytest.raises(BackendUnavailable):
        nccl.open_communicator(Job(), 1.0)
