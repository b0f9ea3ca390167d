"""How ranks compare their calls on the backends over other engines, and what the engines' moves take of a call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.contract.errors import MismatchError, error_of
from rankwise.contract.failure import AtRank, Failure, differences
from rankwise.contract.failure_kinds import MISMATCH, TIMEOUT
from rankwise.contract.operations import OPERATIONS, Call, Operation, fields_of, no_elements, one_block
from rankwise.contract.types import ITEMSIZE

DESCRIPTION = 256  # the most bytes of a call's text that are sent to the other ranks

SCATTER_ARRAY = Operation("scatter_array", "root", one_block, no_elements, "reads", "scatter")
"""The first step of a scatter whose array only the root knows."""

_BYTES = {"count": "size", "counts": "sizes", "send_counts": "send_sizes", "recv_counts": "recv_sizes"}


def _move_fields(operation: Operation) -> list[str]:
    """What a move takes: the operation's arguments; if nothing is computed, with sizes in bytes."""
    if "op" in operation.takes:
        return list(operation.takes)
    return [_BYTES.get(name, name) for name in operation.takes if name != "dtype"]


MOVES: dict[Operation, tuple[str, Callable[[Call], tuple[Any, ...]]]] = {
    operation: (f"_{operation.name}", fields_of(_move_fields(operation))) for operation in OPERATIONS
}
"""By operation, the method that is its move, and a function that returns the move's arguments."""


def payload(call: Call, world_size: int) -> int:
    """The most bytes that a rank contributes to the call."""
    return call.operation.sends(call, 0, world_size) * ITEMSIZE[call.dtype]


@lru_cache(1024)
def digest(agreed: tuple[Any, ...]) -> int:
    """A signed 64-bit number that is equal for calls that agree, and almost certainly different for others."""
    return int.from_bytes(hashlib.blake2b(repr(agreed).encode(), digest_size=8).digest(), "little", signed=True)


def mismatch(calls: dict[int, str], sequence: int) -> MismatchError:
    calls = dict(sorted(calls.items()))
    ranks = {rank: AtRank(call) for rank, call in calls.items()}
    failure = Failure(MISMATCH, ranks=ranks, to_blame=tuple(differences(calls)))
    error = error_of(failure.found_in("", sequence))
    assert isinstance(error, MismatchError)
    return error


def timed_out(calls: Mapping[int, str], missing: Sequence[int], limit: float) -> Failure:
    """The failure of a group whose ranks are in these calls when the timeout has passed, while some are missing."""
    texts = {rank: f"in {call}" for rank, call in calls.items()} | dict.fromkeys(missing, "in no call of this group")
    ranks = {rank: AtRank(text) for rank, text in sorted(texts.items())}
    return Failure(TIMEOUT, ranks=ranks, to_blame=tuple(missing), limit=limit)


def unmatched(call: Call, sizes: NDArray[np.int64], sequence: int) -> MismatchError | None:
    """What is wrong with the ranks' calls of all_to_all_v; None if nothing is.

    sizes[i]: how many bytes rank i sends to each rank, and how many it expects from each.
    """
    counts = sizes // ITEMSIZE[call.dtype]
    sent, expected = counts[:, 0], counts[:, 1].T
    if (sent == expected).all():
        return None
    source, target = np.argwhere(sent != expected)[0]
    head = (
        f"all_to_all_v: rank {source} sends {sent[source, target]} elements to rank {target}, which expects "
        f"{expected[source, target]} (operation #{sequence})"
    )
    texts = {
        rank: call._replace(send_counts=out, recv_counts=into, shape=None).shown(call.operation.takes[2:])
        for rank, (out, into) in enumerate(counts.tolist())
    }
    lines = [head, *(f"  rank {rank}: {text}" for rank, text in texts.items())]
    return MismatchError("\n".join(lines), calls=texts, sequence=sequence)
