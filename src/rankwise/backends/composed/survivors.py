"""How a communicator that consists of other communicators shrinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise.backends.closing import OpenCommunicator
from rankwise.contract.errors import RankwiseError


def shrunk(
    parts: Sequence[OpenCommunicator], exclude: Sequence[Sequence[int]]
) -> Iterator[tuple[list[OpenCommunicator], tuple[int, ...]]]:
    """Shrink all parts of a communicator, once for each item that the caller takes.

    exclude: for each part, the ranks to leave out.

    Yields the new parts, and the numbers that the ranks of the first one had in parts[0]. The caller tries to connect
    these survivors, and takes another item if one of them was lost meanwhile; then the new parts are shrunk in turn and
    closed. The given parts stay open. Raises RankwiseError if the survivors are the same as before.
    """
    given, former = parts, tuple(range(parts[0].world_size))
    tried: set[tuple[int, ...]] = set()
    while True:
        smaller = [part.shrink(ranks) for part, ranks in zip(parts, exclude, strict=True)]
        exclude = [()] * len(parts)  # the new parts do not have these ranks
        numbers = smaller[0].former_ranks
        assert numbers is not None
        former = tuple(former[rank] for rank in numbers)
        if parts is not given:
            _close(parts)
        parts = smaller
        if former in tried:
            _close(parts)
            raise RankwiseError(f"shrink: ranks {list(former)} could not connect, although none was lost")
        tried.add(former)
        yield smaller, former


def _close(parts: Sequence[OpenCommunicator]) -> None:
    for part in parts:
        part.close(0.0)
