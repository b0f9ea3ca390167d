"""The conformance cases, which are pure data: operation, dtype, op, shape, root, `out=` and layout.

The full cross product would run for hours, so `select` covers it: for one operation, level and world
size, each meaningful pair of dtype and op, each root, each shape, `out=` and each layout occurs at
least once. Parameters that are not enumerated together are drawn from a seed in shuffled rounds. Large
shapes occur with few dtypes. Each meaningless pair of dtype and op occurs once and must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import Any, TypeVar

import numpy as np

from rankwise.arrays.dtypes import to_numpy
from rankwise.contract.operations import BARRIER, BY_NAME, EXSCAN, SCAN, Operation, one_block
from rankwise.contract.types import DType, ReduceOp

T = TypeVar("T")

SEND_RECV = Operation("send_recv", "send count dtype", one_block, one_block)
"""Every rank sends a message to the next one."""

ROWS = {row.name: row for row in (*BY_NAME.values(), SCAN, EXSCAN, SEND_RECV) if row is not BARRIER}
"""What the suite checks: the table of the collectives, and what the group makes of them."""

OPERATIONS = {"pointer": tuple(name for name, row in ROWS.items() if row not in (SCAN, EXSCAN)), "array": tuple(ROWS)}
"""By level."""

REDUCTIONS = tuple(name for name, row in ROWS.items() if "op" in row.takes)
ROOTED = tuple(name for name, row in ROWS.items() if row.rooted)
TAKES_OUT = tuple(name for name, row in ROWS.items() if "recv" in row.takes)
"""The operations with a separate buffer for the result; one of the two buffers usually has world_size blocks.

At the array level they take `out=`.
"""
SPLITS = tuple(name for name, row in ROWS.items() if row.vectors or row.sends is not one_block)
"""The operations that need an axis 0."""

SHAPES = ((), (0,), (1,), (2,), (13,), (1023,), (3, 5, 7), (4, 0), (0, 4), (6, 2))
COUNTS = (0, 1, 2, 13, 105, 1023)
# Sizes in bytes at which an engine may change its algorithm (inline, one cache line, one page, one
# staging piece, the whole staging buffer), each tried with one element less, exactly, and with one more.
BOUNDARIES = (40, 64, 4096, 65536, 262144)
LARGE = 3 << 20  # bytes of the largest buffer; plus an odd tail of 5 elements per block
LARGE_DTYPES = (DType.F32, DType.I8)


@dataclass(frozen=True)
class Case:
    """One call to try, the same on every rank.

    shape: of one rank's input at the array level; (count,) at the pointer level, where count is
    the count that the operation takes (for vector collectives: about the mean of the counts). out:
    pass `out=`. strided: the arrays are views with gaps. seed: determines the contents.
    """

    operation: str
    dtype: DType
    shape: tuple[int, ...]
    op: ReduceOp | None = None
    root: int | None = None
    out: bool = False
    strided: bool = False
    seed: int = 0

    @property
    def meaningful(self) -> bool:
        """Whether the case has a result; if not, every backend must refuse it."""
        return self.op is None or means(self.operation, self.dtype, self.op)

    def __str__(self) -> str:
        words = [self.operation, self.dtype.name.lower(), str(self.shape)]
        if self.op is not None:
            words.append(self.op.name.lower())
        if self.root is not None:
            words.append(f"root={self.root}")
        words += [word for word in ("out", "strided") if getattr(self, word)]
        return " ".join([*words, f"seed={self.seed}"])


def means(operation: str, dtype: DType, op: ReduceOp) -> bool:
    """Whether reducing this dtype with this op is meaningful. Scans have no mean."""
    return op.refused_for(dtype) is None and not (ROWS[operation] in (SCAN, EXSCAN) and op is ReduceOp.MEAN)


@cache
def numpy_dtypes() -> dict[DType, np.dtype[Any]]:
    """The NumPy dtype of each DType that this installation supports; bfloat16 and fp8 need ml_dtypes."""
    present = find_spec("ml_dtypes") is not None
    needs_it = (DType.BF16, DType.FP8E4M3, DType.FP8E5M2)
    return {dtype: to_numpy(dtype) for dtype in DType if present or dtype not in needs_it}


def select(operation: str, level: str, world_size: int, seed: int = 0) -> list[Case]:
    """The cases of one operation at a level ("pointer" or "array") on `world_size` ranks."""
    rng = random.Random(f"{operation} {level} {world_size} {seed}")
    dtypes = sorted(numpy_dtypes())
    ops: list[ReduceOp | None] = list(ReduceOp) if operation in REDUCTIONS else [None]
    roots = _rounds(rng, range(world_size) if operation in ROOTED else [None])
    arrays = level == "array"
    outs = _rounds(rng, [False, True] if arrays and operation in TAKES_OUT else [False])
    layouts = _rounds(rng, [False, True] if arrays else [False])
    counts: list[tuple[int, ...]] = [(count,) for count in COUNTS]
    shapes = [shape for shape in SHAPES if shape or operation not in SPLITS]
    small = _rounds(rng, shapes if arrays else counts)
    seeds = iter(range(1 << 31))

    def case(dtype: DType, op: ReduceOp | None, shape: tuple[int, ...], contiguous: bool = False) -> Case:
        strided = False if contiguous else next(layouts)
        return Case(operation, dtype, shape, op, next(roots), next(outs), strided, next(seeds))

    cases = [case(dtype, op, next(small)) for dtype, op in product(dtypes, ops)]
    some_dtypes = _rounds(rng, dtypes)
    some_ops = _rounds(rng, [ReduceOp.SUM, ReduceOp.MAX] if operation in REDUCTIONS else [None])
    for size, delta in product(BOUNDARIES, (-1, 0, 1)):
        dtype = next(some_dtypes)
        count = max(0, size // dtype.itemsize + delta)
        cases.append(case(dtype, next(some_ops), (count,)))
    for dtype in LARGE_DTYPES:
        blocks = world_size if operation in TAKES_OUT else 1
        count = LARGE // dtype.itemsize // blocks + 5
        cases.append(case(dtype, next(some_ops), (count,), contiguous=True))
    # With few cases and many roots or shapes, continue until each has occurred.
    wanted_roots = range(world_size) if operation in ROOTED else []
    while any(all(c.root != root for c in cases) for root in wanted_roots):
        cases.append(case(next(some_dtypes), next(some_ops), (13,)))
    return cases


def _rounds(rng: random.Random, values: Sequence[T] | range) -> Iterator[T]:
    """All values in a random order, then all of them in another order, and so on without end."""
    while True:
        order: list[T] = list(values)  # type: ignore[arg-type]
        rng.shuffle(order)
        yield from order
