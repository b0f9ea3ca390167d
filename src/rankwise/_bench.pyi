"""Timing without Python in between, and what the machine can do: for `rankwise bench` alone."""

from collections.abc import Sequence

def time_batches(
    comm: object, operation: str, x: int, out: int, count: int, dtype: int, op: int, iterations: int, batches: int
) -> list[float]:
    """Seconds that each of `batches` batches of `iterations` calls took on this rank; each begins with a barrier.

    comm: the native engine's communicator; ValueError for any other.
    x, out: addresses as the operation takes them (send_recv: sent and received; the roots are rank 0).
    """

def core_seconds(what: str, bytes: int) -> float:
    """Seconds that each of two cores takes for so many bytes, both at once.

    what: "copy" own memory; "read" what the other core wrote last; "write" what it read last.
    """

def bound_seconds(
    operation: str,
    x: Sequence[int],
    out: Sequence[int],
    count: int,
    dtype: int,
    op: int,
    iterations: int,
    batches: int,
) -> list[float]:
    """Seconds that each of `batches` batches of `iterations` times the loads and stores of an operation took.

    By one thread a core, on the arrays of all ranks: addresses `x`, of `count` elements each, and `out`, 0 where a
    rank receives nothing. Each thread does the same part of everything every time.
    """

def line_seconds() -> float:
    """Seconds in which two cores see each other's new cache line, both ways at once."""
