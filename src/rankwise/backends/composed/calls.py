"""Calls as values that ranks compare and describe, and the checks of arguments, for the backends over other engines.

A call is a tuple: the operation's name, then the arguments on which the ranks must agree, in the order
of FIELDS; the Forced algorithm, if there is one; and a Description, if the caller gave one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwise.contract.errors import MismatchError, error_of
from rankwise.contract.failure import MISMATCH, AtRank, Failure, differences
from rankwise.contract.types import DType, ReduceOp

Call = tuple[Any, ...]


class Forced(str):
    """The algorithm that RANKWISE_ALGORITHM forces on a call."""


class Description(NamedTuple):
    """What `Communicator.describe` recorded for a call."""

    shape: tuple[int, ...]
    operation: str


ITEMSIZE = tuple(dtype.itemsize for dtype in DType)
DESCRIPTION = 256  # bytes of a call's description, as sent to the other ranks
MOST_COUNTS = 16  # per-rank counts that are written out

FIELDS: dict[str, tuple[str, ...]] = {
    "barrier": (),
    "all_reduce": ("count", "dtype", "op"),
    "broadcast": ("count", "dtype", "root"),
    "reduce": ("count", "dtype", "op", "root"),
    "all_gather": ("count", "dtype"),
    "gather": ("count", "dtype", "root"),
    "scatter": ("count", "dtype", "root"),
    "scatter_array": ("root",),  # the first step of a scatter whose array only the root knows
    "reduce_scatter": ("count", "dtype", "op"),
    "all_to_all": ("count", "dtype"),
    "all_gather_v": ("counts", "dtype"),
    "gather_v": ("counts", "dtype", "root"),
    "scatter_v": ("counts", "dtype", "root"),
    "reduce_scatter_v": ("counts", "dtype", "op"),
    "all_to_all_v": ("dtype",),
    "split": (),
}

_REFUSED = [[op.refused_for(dtype) for op in ReduceOp] for dtype in DType]
_KINDS = {"F": "float", "I": "int", "U": "uint", "C": "complex"}
_NAMES = {DType.BF16: "bfloat16", DType.FP8E4M3: "float8_e4m3fn", DType.FP8E5M2: "float8_e5m2", DType.BOOL: "bool"}
DTYPE_NAMES = {dtype: _NAMES.get(dtype) or _KINDS[dtype.name[0]] + dtype.name[1:] for dtype in DType}


def describe(call: Call) -> str:
    """all_reduce(count=4, dtype=float32, op=sum), or exscan: reduce_scatter(count=4, ..., shape=(2, 2))"""
    operation, *values = call
    description = values.pop() if values and isinstance(values[-1], Description) else None
    names = [*FIELDS[operation], "algorithm"] if values and isinstance(values[-1], Forced) else FIELDS[operation]
    fields = [f"{name}={_text(value)}" for name, value in zip(names, values, strict=True)]
    if description is not None and len(description.shape) != 1:
        fields.append(f"shape={description.shape}")
    whole = f"{description.operation}: " if description is not None and description.operation else ""
    return f"{whole}{operation.removesuffix('_array')}({', '.join(fields)})"


@lru_cache(1024)
def digest(call: Call) -> int:
    """A signed 64-bit number that is equal for equal calls, and almost certainly different for different ones."""
    return int.from_bytes(hashlib.blake2b(repr(call).encode(), digest_size=8).digest(), "little", signed=True)


def encoded(call: Call) -> bytes:
    """`describe` in DESCRIPTION bytes, for the other ranks."""
    return describe(call).encode()[:DESCRIPTION].ljust(DESCRIPTION, b"\0")


def decoded(description: bytes) -> str:
    """The text of another rank's `encoded`."""
    return description.rstrip(b"\0").decode(errors="replace")


def mismatch(calls: dict[int, str], sequence: int) -> MismatchError:
    calls = dict(sorted(calls.items()))
    ranks = {rank: AtRank(call) for rank, call in calls.items()}
    failure = Failure(MISMATCH, ranks=ranks, to_blame=tuple(differences(calls)))
    found = error_of(failure.found_in("", sequence))
    assert isinstance(found, MismatchError)
    return found


def unmatched(call: Call, sizes: NDArray[np.int64], sequence: int) -> MismatchError | None:
    """What is wrong with the ranks' calls of all_to_all_v; None if nothing is.

    sizes[i]: how many bytes rank i sends to each rank, and how many it expects from each.
    """
    dtype: DType = call[1]
    counts = sizes // ITEMSIZE[dtype]
    sent, expected = counts[:, 0], counts[:, 1].T
    if (sent == expected).all():
        return None
    source, target = np.argwhere(sent != expected)[0]
    head = (
        f"all_to_all_v: rank {source} sends {sent[source, target]} elements to rank {target}, which expects "
        f"{expected[source, target]} (operation #{sequence})"
    )
    texts = {
        rank: f"all_to_all_v(send_counts={_text(tuple(out))}, recv_counts={_text(tuple(into))}, dtype={_text(dtype)})"
        for rank, (out, into) in enumerate(counts.tolist())
    }
    lines = [head, *(f"  rank {rank}: {text}" for rank, text in texts.items())]
    return MismatchError("\n".join(lines), calls=texts, sequence=sequence)


def check_reduction(count: int, dtype: DType, op: ReduceOp) -> None:
    if count < 0:
        raise ValueError(f"count={count}: expected 0 or more")
    if (why := _REFUSED[dtype][op]) is not None:
        raise TypeError(f"op={op.name.lower()} of {DTYPE_NAMES[dtype]}: {why}")


def check_count(count: int) -> None:
    if count < 0:
        raise ValueError(f"count={count}: expected 0 or more")


def check_rank(rank: int, world_size: int, name: str = "root") -> None:
    if not 0 <= rank < world_size:
        raise ValueError(f"{name}={rank}: expected a rank of the group, 0 to {world_size - 1}")


def checked_counts(counts: Sequence[int], world_size: int, name: str = "counts") -> tuple[int, ...]:
    if len(counts) != world_size:
        raise ValueError(f"{name}: expected {world_size} counts, one for each rank, got {len(counts)}")
    if world_size and min(counts) < 0:
        raise ValueError(f"{name}={list(counts)}: expected counts of 0 or more")
    return tuple(counts)


def _text(value: Any) -> str:
    if isinstance(value, DType):
        return DTYPE_NAMES[value]
    if isinstance(value, ReduceOp):
        return value.name.lower()
    if isinstance(value, tuple) and len(value) > MOST_COUNTS:
        return f"[{', '.join(map(str, value[:MOST_COUNTS]))}, ... {len(value)} in all, sum {sum(value)}]"
    return str(list(value)) if isinstance(value, tuple) else str(value)
