"""The names of the reduction operations, and what each means for each type."""

from __future__ import annotations

from rankwise.api import dtypes
from rankwise.contract.types import DType, ReduceOp

Op = str | ReduceOp
"""What callers may pass as `op`: a name or a ReduceOp."""

NAMES = {
    "sum": ReduceOp.SUM,
    "mean": ReduceOp.MEAN,
    "avg": ReduceOp.MEAN,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "product": ReduceOp.PROD,
    "prod": ReduceOp.PROD,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}

PAIRS: dict[tuple[Op, int], tuple[DType, ReduceOp]] = {
    (name, int(dtype)): (dtype, op) for name, op in NAMES.items() for dtype in DType if op.refused_for(dtype) is None
}
"""(name, dtype number) -> (DType, ReduceOp), for what has a meaning: the one look-up of the fast path."""


def resolve(op: Op, dtype: DType) -> ReduceOp:
    """The ReduceOp that `op` means.

    TypeError where it is neither name nor ReduceOp, or means nothing for `dtype`; ValueError where
    no operation has that name.
    """
    if type(op) is str and (pair := PAIRS.get((op, dtype))) is not None:
        return pair[1]
    if isinstance(op, ReduceOp):
        found: ReduceOp | None = op
    elif isinstance(op, str):
        found = NAMES.get(op)
    else:
        raise TypeError(f"op={op!r}: expected a name such as 'sum' or a ReduceOp, got {type(op).__name__}")
    if found is None:
        raise ValueError(f"op={op!r}: expected one of {', '.join(NAMES)}")
    why = found.refused_for(dtype)
    if why is not None:
        raise TypeError(f"op={found.name.lower()!r} on {dtypes.name(dtype)}: {why}")
    return found
