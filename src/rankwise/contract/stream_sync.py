"""Events between a compute stream and the communicator's stream."""

from __future__ import annotations

from abc import ABC, abstractmethod


class StreamSyncOps(ABC):
    """Lets communication run behind computation without blocking the caller.

    The life of an event, in order: `create_event`; `record_on_stream` (the gradient is ready);
    `comm_stream_wait_event`; launch the all_reduce, which runs on the communicator's stream;
    `record_on_comm_stream` (completion); `stream_wait_event` on the compute stream;
    `destroy_event`. Handles are ints. On CUDA these are CUDA events and streams; on the host they
    are rankwise's own streams.
    """

    @abstractmethod
    def create_event(self) -> int: ...

    @abstractmethod
    def destroy_event(self, event: int) -> None: ...

    @abstractmethod
    def record_on_stream(self, event: int, stream: int) -> None: ...

    @abstractmethod
    def record_on_comm_stream(self, event: int) -> None: ...

    @abstractmethod
    def comm_stream_wait_event(self, event: int) -> None: ...

    @abstractmethod
    def stream_wait_event(self, stream: int, event: int) -> None: ...

    @abstractmethod
    def sync_comm_stream(self) -> None: ...
