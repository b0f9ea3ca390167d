"""Failures of a part of the group (this host, a lane, the engine between hosts), with the group's rank numbers.

A rank that knows why the group failed fails its other parts too, so that their ranks do not wait for it. They find the
reason, a Failure of the group as JSON, in the `how` of the PeerLostError that names this rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankwise.contract.errors import CollectiveTimeout, RankwiseError, error_of
from rankwise.contract.failure import Failure
from rankwise.contract.failure_kinds import ERROR, LOST

REASON_BYTES = 227  # bytes of a reason that the core keeps


def of_the_group(error: RankwiseError, ranks: Sequence[int], operation: str, sequence: int = -1) -> RankwiseError:
    """The failure of a part, whose ranks are `ranks` of the group, in this operation of the group.

    It is raised `from None`, because the part's error numbers the ranks in another way.
    """
    failure = error.failure
    if failure.kind == ERROR:
        return error
    passed_on = failure.kind == LOST and failure.how.startswith("{")
    failure = Failure.from_json(failure.how) if passed_on else failure.renumbered(ranks)
    return error_of(failure.found_in(operation, sequence))


def latest(late: CollectiveTimeout, of_all: RankwiseError | None) -> RankwiseError:
    """Why a call timed out: the rank that a part awaited may itself have waited in another part.

    late: what the part says, with the group's rank numbers. of_all: what the ranks of the group say of themselves.
    """
    if of_all is None:
        return late
    error = of_the_group(of_all, range(1 << 31), late.operation, late.sequence)
    if isinstance(error, CollectiveTimeout) and (not error.missing or set(late.missing) <= set(error.missing)):
        return late  # which knows the stacks
    return error


def to_pass_on(failure: Failure, room: int | None = None) -> str:
    """The `how` with which a rank fails a part because the group has failed. What exceeds `room` bytes is left out."""
    whole = replace(failure, message="")
    names = replace(whole, ranks={})
    least = replace(names, host="", pid=0, how=ascii(names.how)[1:41], to_blame=names.to_blame[:8])
    shapes = (each.to_json() for each in (whole, names, least))
    return next(shape for shape in shapes if room is None or len(shape) <= room)
