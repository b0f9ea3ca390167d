"""The values that callers may pass as `op`: names, ReduceOps, and composed ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from rankwise.contract.types import DTYPE_NAMES, DType, ReduceOp

OpName = Literal["sum", "mean", "avg", "max", "min", "product", "prod", "band", "bor", "bxor"]
"""The names of the engine's operations, so that a type checker finds op="sun"."""

Op = OpName | ReduceOp | Callable[[Any, Any], Any]
"""The type of `op`: a name, a ReduceOp, or a function of two arrays."""

Located = Literal["minloc", "maxloc"]
"""The names of the operations that also say which rank holds the result; all_reduce and reduce take them."""

LOCATING: dict[str, ReduceOp] = {"minloc": ReduceOp.MIN, "maxloc": ReduceOp.MAX}


def is_composed(op: Op | Located) -> bool:
    """Whether `op` is not one of the engine's ops, and needs several calls."""
    if type(op) is str:
        return op.lower() in LOCATING
    return callable(op) and not isinstance(op, ReduceOp) and _foreign(op) is None


def _foreign(op: object) -> str | None:
    """The name of an operation of torch.distributed or mpi4py, None for anything else."""
    kind = type(op).__module__
    if kind.startswith("torch."):
        op = getattr(op, "op", op)  # an object of torch's ReduceOp holds the operation
    elif kind != "mpi4py.MPI":
        return None
    return str(op.name).removeprefix("MPI_") if hasattr(op, "name") else None


NAMES: dict[str, ReduceOp] = {
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

PAIRS: dict[tuple[str, int], tuple[DType, ReduceOp]] = {
    (name, int(dtype)): (dtype, op) for name, op in NAMES.items() for dtype in DType if op.refused_for(dtype) is None
}
"""(name, dtype number) -> (DType, ReduceOp) for meaningful pairs; the fast path makes only this look-up."""


def resolve(op: Op | Located, dtype: DType) -> ReduceOp:
    """The ReduceOp of an `op` argument.

    Raises TypeError if it is neither a name nor a ReduceOp, or is meaningless for `dtype`; ValueError if there is no op
    of that name.
    """
    if type(op) is str and (pair := PAIRS.get((op, dtype))) is not None:
        return pair[1]
    name = op if isinstance(op, str) else _foreign(op)
    if isinstance(op, ReduceOp):
        resolved: ReduceOp | None = op
    elif name is not None:
        resolved = NAMES.get(name.lower())
    else:
        expected = "a name such as 'sum' or a ReduceOp"
        if is_composed(op):
            raise TypeError(f"op={op!r}: expected {expected}; this operation takes no other")
        raise TypeError(f"op={op!r}: expected {expected}, got {type(op).__name__}")
    if resolved is None:
        if isinstance(op, str) and op.lower() in LOCATING:
            raise ValueError(f"op={op!r}: it is for all_reduce and reduce")
        raise ValueError(f"op={name!r}: expected one of {', '.join(NAMES)}")
    why = resolved.refused_for(dtype)
    if why is not None:
        raise TypeError(f"op={resolved.name.lower()!r} on {DTYPE_NAMES[dtype]}: {why}")
    return resolved
