"""Messages over an MPI that mpi4py has loaded."""

from collections.abc import Callable, Sequence
from typing import Any

class MpiRequest:
    """A message on its way over MPI. If this object is dropped before it is complete, its memory is never freed."""

    def test(self, times: int) -> bool:
        """Whether MPI has completed it, asked up to `times` times. Raises mpi4py's Exception."""

    def described(self) -> tuple[int, int, int]:
        """Of a complete receive: the message's source, MPI's tag and the bytes."""

class MpiMessages:
    """The messages of an MPI communicator.

    What sends and receives takes MPI's tags; find and take use rankwise's, which are MPI's `// tags_per_tag`.

    What starts a message returns None if it is complete, else its request. All raise mpi4py's Exception.
    """

    def __init__(
        self,
        functions: Sequence[int],
        handle_size: int,
        comm: int,
        byte: int,
        any_source: int,
        any_tag: int,
        tags_per_tag: int,
        source_at: int,
        tag_at: int,
        exception: type[Exception],
        wide: Callable[[int], int],
    ) -> None:
        """functions: the addresses of those in backends/mpi/functions.py. comm, byte: handles. source_at, tag_at: where
        a status has its fields. exception: mpi4py's. wide: returns the handle of a datatype of the given size.
        """

    def send(self, ptr: int, bytes: int, dest: int, tag: int, keep: object) -> MpiRequest | None: ...
    def send_bytes(self, data: bytes, dest: int, tag: int) -> MpiRequest | None: ...
    def recv(self, ptr: int, bytes: int, source: int, tag: int, tests: int, keep: object) -> MpiRequest | None:
        """source, tag: or ANY. None only if the message has come, with exactly this tag, not ANY, and this length."""

    def find(self, source: int, tag: int, probes: int) -> tuple[int, int, int, int] | None:
        """Probe up to `probes` times: (source, tag, dtype, bytes). source, tag: or ANY, here and in take."""

    def take(self, source: int, tag: int, probes: int) -> tuple[int, int, int, bytearray, MpiRequest | None] | None:
        """Receive the message that `find` would find: (source, tag, dtype, memory, request)."""

    def close(self, error: int) -> None:
        """The communicator will be freed: wait for calls in progress; later ones raise this error code of MPI."""

class MpiQuickMessages:
    """What Communicator.quick_messages returns over MPI, but for the methods of Shortcuts that do nothing."""

    def __init__(
        self,
        messages: MpiMessages,
        world_size: int,
        tags: int,
        header: bytes,
        busy: Sequence[list[Any]],
        usable: Callable[[], bool],
        keep: Callable[[int, int, int, bytearray, MpiRequest | None], None],
        wait: Callable[[MpiRequest, int, int], None],
        failed: Callable[[Exception, str, int, int], None],
    ) -> None:
        """tags: how many there are. usable: whether a call may be made now. keep: gets what `take` has returned, if a
        receive must be posted for it. wait(request, dest, tag): waits for a send. failed(error, operation, peer, tag):
        raises rankwise's error for MPI's.
        """
