"""CUDA's streams, events and memory for the nccl backend: StreamSyncOps on a communicator's CUDA stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise.contract.stream_sync import StreamSyncOps

_NON_BLOCKING = 1  # cudaStreamNonBlocking: it does not wait for the legacy default stream
_NO_TIMING = 2  # cudaEventDisableTiming
_DEFAULT_COPY = 4  # cudaMemcpyDefault: CUDA infers host or device from the addresses
_DEVICE_MEMORY = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged
_NOT_READY = 600  # cudaErrorNotReady


class CudaFailed(Exception):
    """A call of CUDA's runtime failed."""


class CudaStreams(StreamSyncOps):
    """A CUDA stream for one communicator, and its staging memory. Handles are CUDA's own."""

    def __init__(self, cuda: Any, device: int) -> None:
        self._cuda, self.device = cuda, device
        self._call("cudaSetDevice", device)
        self.stream = int(self._call("cudaStreamCreateWithFlags", _NON_BLOCKING))
        attribute = cuda.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor
        self.capability = int(self._call("cudaDeviceGetAttribute", attribute, device))
        """The major number of the GPU's compute capability."""
        self.wait_for: Callable[[Callable[[], bool]], None] | None = None
        """A function that waits and checks for failures; None: CUDA's own waiting."""
        self._events: set[int] = set()
        self._scratch: dict[str, tuple[int, int]] = {}
        self._closed = False

    @classmethod
    def of_rank(cls, cuda: Any, local_rank: int) -> CudaStreams:
        """On the GPU of this local rank; ranks share GPUs if there are too few."""
        status, count = cuda.cudaGetDeviceCount()
        if int(status):
            raise CudaFailed(f"cudaGetDeviceCount: {status}")
        return cls(cuda, local_rank % count)

    def another(self) -> CudaStreams:
        """Another stream on this device."""
        return CudaStreams(self._cuda, self.device)

    # ---- StreamSyncOps ----

    def create_event(self) -> int:
        event = int(self._call("cudaEventCreateWithFlags", _NO_TIMING))
        self._events.add(event)
        return event

    def destroy_event(self, event: int) -> None:
        if event in self._events:
            self._events.remove(event)
            self._call("cudaEventDestroy", event)

    def record_on_stream(self, event: int, stream: int) -> None:
        self._call("cudaEventRecord", self._known(event), stream)

    def record_on_comm_stream(self, event: int) -> None:
        self._call("cudaEventRecord", self._known(event), self.stream)

    def comm_stream_wait_event(self, event: int) -> None:
        self._call("cudaStreamWaitEvent", self.stream, self._known(event), 0)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cudaStreamWaitEvent", stream, self._known(event), 0)

    def sync_comm_stream(self) -> None:
        if self.wait_for is None:
            self._call("cudaStreamSynchronize", self.stream)
        else:
            self.wait_for(self.idle)

    def _known(self, event: int) -> int:
        if event not in self._events:
            raise ValueError(f"event={event}: expected an event of this communicator that has not been destroyed")
        return event

    # ---- what the communicator needs ----

    def idle(self) -> bool:
        """Whether the stream has completed all queued work."""
        return self._ready("cudaStreamQuery", self.stream)

    def reached(self, event: int) -> bool:
        return self._ready("cudaEventQuery", event)

    def idle_within(self, seconds: float) -> bool:
        """Wait for the stream, without checking for failures."""
        import time

        end = time.monotonic() + seconds
        while not self.idle():
            if time.monotonic() > end:
                return False
            time.sleep(1e-4)
        return True

    def on_device(self, ptr: int) -> bool:
        """Whether an address is in device memory."""
        if not ptr:
            return False
        status, attributes = self._cuda.cudaPointerGetAttributes(ptr)
        return not int(status) and int(attributes.type) in _DEVICE_MEMORY

    def copy(self, to: int, given: int, size: int) -> None:
        """Copy bytes in the stream's order. Host memory must not change until the stream has reached this copy."""
        if size:
            self._call("cudaMemcpyAsync", to, given, size, self._cuda.cudaMemcpyKind(_DEFAULT_COPY), self.stream)

    def copy_now(self, to: int, given: int, size: int) -> None:
        """The same, complete when it returns."""
        self.copy(to, given, size)
        self.sync_comm_stream()

    def scratch(self, name: str, size: int) -> int:
        """The device memory with this name, valid until it is next requested."""
        ptr, held = self._scratch.get(name, (0, 0))
        if held < max(size, 1):
            if ptr:
                self.sync_comm_stream()
                self._call("cudaFree", ptr)
            self._call("cudaSetDevice", self.device)  # this thread may not be the one that made the stream
            ptr = int(self._call("cudaMalloc", max(size, 256)))
            self._scratch[name] = ptr, max(size, 256)
        return ptr

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for event in list(self._events):
                self.destroy_event(event)
            for ptr, _ in self._scratch.values():
                self._call("cudaFree", ptr)
            self._call("cudaStreamDestroy", self.stream)

    def _ready(self, query: str, handle: int) -> bool:
        (status,) = getattr(self._cuda, query)(handle)
        if int(status) not in (0, _NOT_READY):
            raise CudaFailed(f"{query}: {status}")
        return int(status) == 0

    def _call(self, function: str, *args: Any) -> Any:
        """A function of CUDA's runtime; its result, if it has one. Raises CudaFailed if it fails."""
        status, *result = getattr(self._cuda, function)(*args)
        if int(status):
            raise CudaFailed(f"{function}: {status}")
        return result[0] if result else None


class Mark:
    """The end of an operation on a stream. event: marks it, and is destroyed with it. keep: what owns the memory."""

    def __init__(self, streams: CudaStreams, event: int, keep: object) -> None:
        self._streams, self._event, self._keep = streams, event, keep

    def done(self) -> bool:
        return self._streams.reached(self._event)

    def cancel(self) -> bool:
        return False

    def __del__(self) -> None:
        self._streams.destroy_event(self._event)
