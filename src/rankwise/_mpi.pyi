"""Messages over an MPI that mpi4py has loaded."""

from collections.abc import Callable, Sequence

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
    def recv(self, ptr: int, bytes: int, source: int, tag: int, keep: object) -> MpiRequest:
        """source, tag: or ANY."""

    def find(self, source: int, tag: int, probes: int) -> tuple[int, int, int, int] | None:
        """Probe up to `probes` times: (source, tag, dtype, bytes). source, tag: or ANY, here and in take."""

    def take(self, source: int, tag: int, probes: int) -> tuple[int, int, int, bytearray, MpiRequest | None] | None:
        """Receive the message that `find` would find: (source, tag, dtype, memory, request)."""

    def close(self, error: int) -> None:
        """The communicator will be freed: wait for calls in progress; later ones raise this error code of MPI."""
