"""nccl4py and CUDA's runtime without a GPU: "device memory" is memory of this process, NCCL is the engine `threads`.

The functions take what the real ones take, in the same order; test_nccl.py compares the names. Every
call is recorded. Streams run at once, and say so only when asked twice.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from rankwise import _native
from rankwise.backends.native import threads
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.backends.nccl.communicator import DTYPES, OPS
from rankwise.contract.types import DType, ReduceOp

TYPES = {number: dtype for dtype, number in DTYPES.items()}
REDUCTIONS = {number: op for op, number in OPS.items()}


class Status(IntEnum):
    success = 0
    cudaErrorNotReady = 600


class NCCLError(Exception):
    """As nccl.bindings.nccl.NCCLError."""


def reduction(datatype: int, op: int) -> tuple[DType, ReduceOp]:
    """Of 8-bit floats NCCL has no mean."""
    if TYPES[datatype] in (DType.FP8E4M3, DType.FP8E5M2) and REDUCTIONS[op] is ReduceOp.MEAN:
        raise NCCLError("InvalidArgument (4): invalid argument")
    return TYPES[datatype], REDUCTIONS[op]


class UniqueId:
    def __init__(self, data: Any = None) -> None:
        self._data = np.zeros(128, np.uint8) if data is None else data
        self.ptr = self._data.ctypes.data

    @staticmethod
    def from_buffer(buffer: Any) -> UniqueId:
        return UniqueId(np.frombuffer(buffer, np.uint8).copy())

    def __bytes__(self) -> bytes:
        return bytes(self._data)


class World:
    """What the ranks of a test share: one job's NCCL."""

    def __init__(self, n: int) -> None:
        self.side = _native.Segment.create(n)
        self.ids = itertools.count(1)
        self._segments: dict[int, _native.Segment] = {}
        self._lock = threading.Lock()

    def segment(self, unique: int, n: int) -> _native.Segment:
        """Where the ranks that have this id meet."""
        with self._lock:
            if unique not in self._segments:
                self._segments[unique] = _native.Segment.create(n)
            return self._segments[unique]


class Nccl:
    """One rank's nccl.bindings.nccl."""

    NCCLError = NCCLError
    UniqueId = UniqueId

    def __init__(self, world: World, calls: list[tuple[Any, ...]]) -> None:
        self._world, self._calls = world, calls
        self._group: list[tuple[Any, ...]] | None = None
        self.async_error = 0

    def get_version(self) -> int:
        return 23000

    def get_unique_id(self) -> UniqueId:
        return UniqueId(np.full(128, next(self._world.ids), np.uint8))

    def comm_init_rank(self, nranks: int, comm_id: int, rank: int) -> EngineCommunicator:
        unique = np.ctypeslib.as_array((ctypes.c_uint8 * 128).from_address(comm_id))
        assert (unique == unique[0]).all(), "not rank 0's id"
        self._calls.append(("comm_init_rank", nranks, rank))
        return threads.connect(self._world.segment(int(unique[0]), nranks), rank, 60.0)

    def comm_split(self, comm: EngineCommunicator, color: int, key: int, config: int) -> EngineCommunicator | None:
        assert config == 0
        return comm.split(color, key)

    def comm_destroy(self, comm: EngineCommunicator) -> None:
        self._calls.append(("comm_destroy",))
        comm.close()

    def comm_abort(self, comm: EngineCommunicator) -> None:
        self._calls.append(("comm_abort",))
        comm.abort("ncclCommAbort")

    def comm_get_async_error(self, comm: EngineCommunicator) -> int:
        return self.async_error

    def get_error_string(self, result: int) -> str:
        return f"result {result}"

    def get_last_error(self, comm: EngineCommunicator) -> str:
        return "its last error"

    def group_start(self) -> None:
        assert self._group is None
        self._group = []

    def group_end(self) -> None:
        """Messages before and after broadcasts and reductions: those of the engine block."""
        assert self._group is not None
        calls, self._group = self._group, None
        works = []
        for name, comm, *args in calls:
            found = getattr(comm, name)(*args)
            if found is not None:
                works.append(found)
        for work in works:
            work.wait()

    def all_reduce(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, comm: Any, stream: int
    ) -> None:
        self._note("all_reduce", count, datatype, op, stream)
        if sendbuff != recvbuff:
            ctypes.memmove(recvbuff, sendbuff, count * TYPES[datatype].itemsize)
        comm.all_reduce(recvbuff, count, *reduction(datatype, op))

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, comm: Any, stream: int
    ) -> None:
        self._note("broadcast", count, datatype, root, stream)
        if comm.rank == root and sendbuff != recvbuff:
            ctypes.memmove(recvbuff, sendbuff, count * TYPES[datatype].itemsize)
        comm.broadcast(recvbuff, count, TYPES[datatype], root)

    def reduce(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, root: int, comm: Any, stream: int
    ) -> None:
        self._note("reduce", count, datatype, op, root, stream)
        size = count * TYPES[datatype].itemsize
        copy = (ctypes.c_char * max(size, 16)).from_buffer_copy(ctypes.string_at(sendbuff, size).ljust(16, b"\0"))
        comm.reduce(ctypes.addressof(copy), count, *reduction(datatype, op), root)
        if comm.rank == root:
            ctypes.memmove(recvbuff, copy, size)

    def all_gather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: Any, stream: int) -> None:
        self._note("all_gather", sendcount, datatype, stream)
        comm.all_gather(sendbuff, recvbuff, sendcount, TYPES[datatype])

    def reduce_scatter(
        self, sendbuff: int, recvbuff: int, recvcount: int, datatype: int, op: int, comm: Any, stream: int
    ) -> None:
        self._note("reduce_scatter", recvcount, datatype, op, stream)
        comm.reduce_scatter(sendbuff, recvbuff, recvcount, *reduction(datatype, op))

    def send(self, sendbuff: int, count: int, datatype: int, peer: int, comm: Any, stream: int) -> None:
        self._note("send", count, datatype, peer, stream)
        assert self._group is not None, "a send outside a group can wait forever"
        self._group.append(("send", comm, sendbuff, count, TYPES[datatype], peer))

    def recv(self, recvbuff: int, count: int, datatype: int, peer: int, comm: Any, stream: int) -> None:
        self._note("recv", count, datatype, peer, stream)
        assert self._group is not None, "a recv outside a group can wait forever"
        self._group.append(("recv", comm, recvbuff, count, TYPES[datatype], peer))

    def _note(self, *call: Any) -> None:
        self._calls.append(call)


class Cuda:
    """One rank's cuda.bindings.runtime. Addresses in `device` (ranges) are device memory; with everywhere, all are."""

    cudaMemcpyKind = staticmethod(int)
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrComputeCapabilityMajor=75)

    def __init__(self, calls: list[tuple[Any, ...]], *, everywhere: bool, devices: int = 1) -> None:
        self._calls, self._everywhere, self._devices = calls, everywhere, devices
        self._handles = itertools.count(1000)
        self._memory: dict[int, Any] = {}
        self._busy = False
        self.stuck = False
        self._lock = threading.Lock()

    def cudaGetDeviceCount(self) -> tuple[Status, int]:
        return Status.success, self._devices

    def cudaDeviceGetAttribute(self, attr: int, device: int) -> tuple[Status, int]:
        assert attr == 75
        return Status.success, 9

    def cudaSetDevice(self, device: int) -> tuple[Status]:
        return self._note("cudaSetDevice", device)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Status, int]:
        assert flags == 1
        return Status.success, next(self._handles)

    def cudaStreamDestroy(self, stream: int) -> tuple[Status]:
        return self._note("cudaStreamDestroy", stream)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Status]:
        return self._note("cudaStreamSynchronize", stream)

    def cudaStreamQuery(self, stream: int) -> tuple[Status]:
        self._busy = not self._busy
        return (Status.cudaErrorNotReady if self._busy or self.stuck else Status.success,)

    def cudaStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Status]:
        return self._note("cudaStreamWaitEvent", stream, event, flags)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[Status, int]:
        assert flags == 2
        return Status.success, next(self._handles)

    def cudaEventDestroy(self, event: int) -> tuple[Status]:
        return self._note("cudaEventDestroy", event)

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Status]:
        return self._note("cudaEventRecord", event, stream)

    def cudaEventQuery(self, event: int) -> tuple[Status]:
        return self.cudaStreamQuery(event)

    def cudaPointerGetAttributes(self, ptr: int) -> tuple[Status, Any]:
        within = any(at <= ptr < at + len(memory) for at, memory in self._memory.items())
        return Status.success, SimpleNamespace(type=2 if within or self._everywhere else 0)

    def cudaMalloc(self, size: int) -> tuple[Status, int]:
        memory = (ctypes.c_char * size)()
        self._memory[ctypes.addressof(memory)] = memory
        return Status.success, ctypes.addressof(memory)

    def cudaFree(self, devPtr: int) -> tuple[Status]:
        del self._memory[devPtr]
        return (Status.success,)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: int, stream: int) -> tuple[Status]:
        assert kind == 4
        ctypes.memmove(dst, src, count)
        return self._note("cudaMemcpyAsync", count, stream)

    @property
    def allocated(self) -> int:
        return len(self._memory)

    def _note(self, *call: Any) -> tuple[Status]:
        self._calls.append(call)
        return (Status.success,)
