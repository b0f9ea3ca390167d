"""Failures of a part of the group (this host, a lane, the engine between hosts), with the group's rank numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankwise.contract.errors import CollectiveTimeout, MismatchError, PeerLostError, RankwiseError

GROUP = -2  # an error that fails a part has -2 - r for rank r of the group


def of_the_group(error: RankwiseError, ranks: Sequence[int], where: str) -> RankwiseError:
    """The failure of a part, whose ranks are `ranks` of the group."""

    def number(rank: int) -> int:
        if rank <= GROUP:  # another rank failed the part, with the group's numbers encoded so
            return GROUP - rank
        return ranks[rank] if 0 <= rank < len(ranks) else -1

    lost = number(error.rank) if isinstance(error, PeerLostError) else -1
    return renumbered(error, number, f"rank {lost} was lost; {where}: {error}" if lost >= 0 else f"{where}: {error}")


def renumbered(error: RankwiseError, number: Callable[[int], int], why: str) -> RankwiseError:
    """The same error with another text and other rank numbers."""
    if isinstance(error, PeerLostError):
        return PeerLostError(
            why, rank=number(error.rank), how=error.how, operation=error.operation, sequence=error.sequence
        )
    if isinstance(error, MismatchError):
        calls_by_rank = {number(rank): call for rank, call in error.calls.items()}
        return MismatchError(why, calls=calls_by_rank, sequence=error.sequence)
    if isinstance(error, CollectiveTimeout):
        return CollectiveTimeout(
            why,
            limit=error.limit,
            missing=tuple(number(rank) for rank in error.missing),
            states={number(rank): state for rank, state in error.states.items()},
            operation=error.operation,
            sequence=error.sequence,
        )
    return error
