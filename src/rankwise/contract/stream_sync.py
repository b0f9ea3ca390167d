"""Events between a compute stream and the communicator's stream."""

from __future__ import annotations

from abc import ABC, abstractmethod

THIS_THREAD = 0  # in the place of a host stream's handle: the calling thread


class StreamSyncOps(ABC):
    """Overlaps communication with computation without blocking the caller.

    The life of an event, in order: `create_event`; `record_on_stream` (the gradient is ready);
    `comm_stream_wait_event`; launch the all_reduce, which runs on the communicator's stream
    (`Communicator.start`; async_op=True at the array level); `record_on_comm_stream` (completion);
    `stream_wait_event` on the compute stream; `destroy_event`.

    Events and streams are given as int handles. On CUDA these are CUDA events and streams; on the host
    they are rankwise's own (`rw.overlap.Stream().handle`), and THIS_THREAD (0) stands for the calling thread: an
    event recorded on it is complete at once, and a wait on it blocks the caller. Every operation on a
    stream is queued behind the work already there. An event is complete when everything queued before
    it has run. A function that raised has run too; its Work raises the error.

    The communicator's stream runs the work that `start` and these operations queue, in their order. A
    blocking collective runs after all of it. Messages (send, recv) do not pass through the stream.

    Nothing here blocks except `sync_comm_stream` and a wait on THIS_THREAD. A waiting stream sleeps.

    Failures: an event can never complete if its stream is closed before reaching it, or belongs to a
    group that has failed by then. Work that waits for such an event does not run: a host stream drops
    it, and its Works raise the reason (ClosedError, or the group's error); a communicator's stream fails
    its group, as it does when a wait takes longer than `timeout`.

    Misuse: ValueError for an int that is not, or no longer, an event or a stream of this process;
    ClosedError if the communicator is closed.
    """

    @abstractmethod
    def create_event(self) -> int:
        """A new event. Until it is recorded, a wait for it returns at once."""

    @abstractmethod
    def destroy_event(self, event: int) -> None:
        """Release the handle, which is never reused. Pending waits for the event continue."""

    @abstractmethod
    def record_on_stream(self, event: int, stream: int) -> None:
        """Record the event at the present end of the stream's queue.

        Pending waits for an earlier record of the event continue to wait for that one.
        """

    @abstractmethod
    def record_on_comm_stream(self, event: int) -> None:
        """Record the event at the present end of the communicator's stream."""

    @abstractmethod
    def comm_stream_wait_event(self, event: int) -> None:
        """Make the communicator's stream wait for the event, as last recorded, before it runs later work.

        Does nothing if the event was never recorded.
        """

    @abstractmethod
    def stream_wait_event(self, stream: int, event: int) -> None:
        """Make the stream wait for the event, as last recorded, before it runs later work.

        Does nothing if the event was never recorded.
        """

    @abstractmethod
    def sync_comm_stream(self) -> None:
        """Block until everything on the communicator's stream has run.

        If the group has failed, raises its failure. Other errors of an operation are raised by its Work.

        Raises:
            CollectiveTimeout: it takes longer than the timeout.
        """
