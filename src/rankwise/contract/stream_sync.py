"""Events between a compute stream and the communicator's stream."""

from __future__ import annotations

from abc import ABC, abstractmethod

THIS_THREAD = 0  # in the place of a host stream's handle: the calling thread


class StreamSyncOps(ABC):
    """Lets communication run behind computation without blocking the caller.

    The life of an event, in order: `create_event`; `record_on_stream` (the gradient is ready);
    `comm_stream_wait_event`; launch the all_reduce, which runs on the communicator's stream
    (`Communicator.start`; async_op=True at the array level); `record_on_comm_stream` (completion);
    `stream_wait_event` on the compute stream; `destroy_event`.

    Words: an event and a stream are ints, handles. On CUDA they are CUDA events and streams; on the
    host they are rankwise's own, `rw.Stream().handle`, and THIS_THREAD (0) stands for the calling
    thread: an event recorded on it is reached at once, and to wait on it blocks the caller. What is
    said to a stream takes its place in the queue, behind what is there. An event is reached when
    everything before its place has run. A function that raised has run too; its Work tells.

    The communicator's stream runs, in this order, what `start` and these operations put there. A
    blocking collective runs after all of it. Messages (send, recv) do not pass through it.

    Nothing here blocks but `sync_comm_stream` and waiting on THIS_THREAD. A stream that waits sleeps.

    Failures: an event cannot be reached any more when its stream is closed before it comes to it, or
    is the stream of a group that has failed by then. Nothing that waits for it must run: a host stream
    drops what follows, and those Works raise the reason (ClosedError, or the group's error); a
    communicator's stream fails its group, as it does when a wait takes longer than `timeout`.

    Misuse: ValueError for an int that is no event, or no stream, of this process, or not any longer;
    ClosedError where the communicator is closed.
    """

    @abstractmethod
    def create_event(self) -> int:
        """A new event. Nothing is recorded yet, so that to wait for it is to wait for nothing."""

    @abstractmethod
    def destroy_event(self, event: int) -> None:
        """The handle is gone; it is not given out again. What waits for the event goes on waiting."""

    @abstractmethod
    def record_on_stream(self, event: int, stream: int) -> None:
        """The event now stands for the present end of the stream's queue.

        What waits since before for an earlier record goes on waiting for that one.
        """

    @abstractmethod
    def record_on_comm_stream(self, event: int) -> None:
        """The event now stands for the present end of the communicator's stream."""

    @abstractmethod
    def comm_stream_wait_event(self, event: int) -> None:
        """The communicator's stream runs what comes after this once the event, as last recorded, is reached.

        An event never recorded: nothing happens.
        """

    @abstractmethod
    def stream_wait_event(self, stream: int, event: int) -> None:
        """The stream runs what comes after this once the event, as last recorded, is reached.

        An event never recorded: nothing happens.
        """

    @abstractmethod
    def sync_comm_stream(self) -> None:
        """Block until everything on the communicator's stream has run; CollectiveTimeout past its limit.

        Raises the failure of a group that has failed. What else an operation raised, its Work does.
        """
