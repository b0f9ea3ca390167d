"""The expected results, computed with NumPy, and the contents of each rank's buffers.

Contents are chosen so that the correct result is exact: floats that are reduced are small integers and
powers of two, so the order of additions does not matter; integers and data that is only moved may have
any bits. Every rank can compute every rank's input from (case, rank), so no test data is ever sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from rankwise.contract.operations import EXSCAN, SCAN, Operation, one_block
from rankwise.contract.types import DType, ReduceOp
from rankwise.testing.cases import ROWS, SEND_RECV, Case, numpy_dtypes

Array: TypeAlias = np.ndarray[Any, Any]

# Contents repeat after this many elements. It is a prime, so that a misplaced block of a common size
# does not look correct.
PERIOD = 4099
NARROW = (DType.F16, DType.BF16, DType.FP8E4M3, DType.FP8E5M2)


@dataclass(frozen=True)
class Exchange:
    """An operation's data on all ranks, as its row of the table says.

    sent: a rank's input. counts: counts[i][j] says how much of axis 0 of rank i's input is for rank j, if it is
    divided, or if a vector collective gathers it; otherwise they are not used. fold: reduces a list of arrays.
    """

    row: Operation
    world_size: int
    root: int | None
    sent: Callable[[int], Array]
    counts: Sequence[Sequence[int]]
    fold: Callable[[list[Array]], Array]

    def received(self, rank: int) -> Array | None:
        """What a rank must receive; None if it receives nothing, or an op's neutral element."""
        row = self.row
        if row.rooted == "writes" and rank != self.root:
            return None
        parts = [self._for(rank, source) for source in self._sources(rank)]
        if "op" in row.takes:
            return self.fold(parts) if parts else None
        if row.receives is one_block:
            return parts[0]
        return np.concatenate(parts) if row.vectors or row.sends is not one_block else np.stack(parts)

    def _sources(self, rank: int) -> Sequence[int]:
        """The ranks whose data a rank receives."""
        if self.row.rooted == "reads":
            assert self.root is not None
            return [self.root]
        of: dict[Operation, Sequence[int]] = {
            SCAN: range(rank + 1), EXSCAN: range(rank), SEND_RECV: [(rank - 1) % self.world_size],
        }  # fmt: skip
        return of.get(self.row, range(self.world_size))

    def _for(self, rank: int, source: int) -> Array:
        """What a rank receives from the rank `source`."""
        whole = self.sent(source)
        if self.row.sends is one_block:
            return whole
        return np.split(whole, np.cumsum(self.counts[source])[:-1])[rank]


def exchange(case: Case, level: str, world_size: int) -> Exchange:
    """The data of a case; at the level "pointer", its shape is that of a block, and its counts are of elements."""
    row, length = ROWS[case.operation], case.shape[0] if case.shape else 0
    counts = [[length] * world_size] * world_size
    if "send_counts" in row.takes:
        counts = [uneven(case, world_size, salt=rank) for rank in range(world_size)]
    elif row.vectors:
        counts = [uneven(case, world_size)] * world_size
    elif level == "array":
        counts = [even(length, world_size)] * world_size

    def sent(rank: int) -> Array:
        shape = case.shape
        if row.sends is not one_block:
            shape = (sum(counts[rank]), *shape[1:])
        elif row.vectors:
            shape = (counts[rank][rank], *shape[1:])
        return contents(case, rank, world_size, shape)

    def fold(inputs: list[Array]) -> Array:
        assert case.op is not None
        return reduced(inputs, case.dtype, case.op) if case.meaningful else inputs[0]

    return Exchange(row, world_size, case.root, sent, counts, fold)


@lru_cache(maxsize=8)  # ranks that are threads share the inputs of a case
def contents(case: Case, rank: int, world_size: int, shape: tuple[int, ...] | None = None) -> Array:
    """A rank's input for a case, read-only. shape: replaces the shape of the case."""
    shape = case.shape if shape is None else shape
    rng = np.random.default_rng((case.seed, rank))
    values = np.resize(_pattern(rng, case, world_size, min(math.prod(shape), PERIOD)), shape)
    values.flags.writeable = False
    return values


def _pattern(rng: np.random.Generator, case: Case, world_size: int, count: int) -> Array:
    dtype = numpy_dtypes()[case.dtype]
    if case.dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    values: Array
    if case.op is None or case.dtype.is_integral:
        anything: Array = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
        return anything
    limit = 2 if dtype.itemsize == 1 else 8
    if case.op is ReduceOp.PROD:
        values = rng.choice([1.0, 1.0, 1.0, -1.0, 2.0, 0.5], count)
    elif case.op is ReduceOp.MEAN:
        values = rng.integers(-2, 3, count).astype(float) * world_size
    else:
        values = rng.integers(-limit, limit + 1, count).astype(float)
    if case.dtype.is_complex:
        return np.asarray(values * rng.choice([1, 1j], count), dtype)
    return values.astype(dtype)


def reduced(inputs: list[Array], dtype: DType, op: ReduceOp) -> Array:
    """The reduction of the ranks' inputs, as the contract defines it."""
    kind = inputs[0].dtype
    wide = np.stack([x.astype(np.float32) if dtype in NARROW else x for x in inputs])
    if dtype is DType.BOOL:
        unite = op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR)
        every = wide.any(axis=0) if unite else wide.all(axis=0)
        return np.asarray(np.logical_xor.reduce(wide) if op is ReduceOp.BXOR else every)
    function: dict[ReduceOp, np.ufunc] = {
        ReduceOp.SUM: np.add, ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
        ReduceOp.MEAN: np.add, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }  # fmt: skip
    with np.errstate(over="ignore"):
        result = function[op].reduce(wide, axis=0, dtype=wide.dtype)
        if op is ReduceOp.MEAN:  # divide by a real number, since complex division rounds more than once
            divisor = wide.real.dtype.type(len(inputs))
            result = result.real / divisor + 1j * (result.imag / divisor) if dtype.is_complex else result / divisor
        return np.asarray(result).astype(kind)


def even(length: int, world_size: int) -> list[int]:
    """The lengths into which the group's operations, and numpy.array_split, divide axis 0."""
    return [(length + rank) // world_size for rank in reversed(range(world_size))]


def uneven(case: Case, world_size: int, salt: int = 0) -> list[int]:
    """One count per rank for the vector collectives: about shape[0] on average, and some are 0."""
    rng = np.random.default_rng((case.seed, 7919, salt))
    mean = case.shape[0] if case.shape else 0
    counts = rng.integers(0, 2 * mean + 1, world_size)
    counts[rng.random(world_size) < 0.25] = 0
    return [int(count) for count in counts]


def check_equal(got: Array, want: Array, exact: bool, what: str = "") -> None:
    """Raise AssertionError, with the first difference, if there is one. what: begins its message.

    exact: the bits must be equal, as for data that was only moved; otherwise 0.0 equals -0.0.
    """
    assert (got.shape, got.dtype) == (want.shape, want.dtype), (
        f"{what}got {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    )
    if exact:
        width = max(1, got.dtype.itemsize)
        left, right = (np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, width) for a in (got, want))
        wrong = (left != right).any(axis=1)
    else:
        wrong = (got != want).reshape(-1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise AssertionError(
            f"{what}{int(wrong.sum())} of {wrong.size} elements differ, the first at {at}: "
            f"got {got.reshape(-1)[at]!r}, expected {want.reshape(-1)[at]!r}"
        )
