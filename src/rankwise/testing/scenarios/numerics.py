"""The arithmetic of reductions: rounding, NaN, infinity, wrapping, and equal bits on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing.cases import numpy_dtypes
from rankwise.testing.oracle import NARROW, Array

FLOATS = (DType.F64, DType.F32, *NARROW)


def random_reals(group: Group) -> None:
    """Sums, means and products of arbitrary reals lie within rounding of the exact result."""
    for dtype in _supported(group, FLOATS):
        for op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PROD):
            inputs = _reals(group.world_size, 1531, dtype)
            got = group.all_reduce(inputs[group.rank].copy(), op)
            low, high = _bounds(inputs, dtype, op)
            wrong = ~((low <= got) & (got <= high))
            assert not wrong.any(), (
                f"{op.name} of {dtype.name}: {got[wrong][0]} not in [{low[wrong][0]}, {high[wrong][0]}]"
            )


def same_bits_everywhere(group: Group) -> None:
    """The bits are equal on every rank, in a second run, and for the same numbers elsewhere in an array."""
    for dtype in _supported(group, FLOATS):
        for count in (1, 3, 1000, 70_001):
            own = _reals(group.world_size, count, dtype)[group.rank]
            for op in ("sum", "mean", "product"):
                first = group.all_reduce(own.copy(), op)
                second = group.all_reduce(own.copy(), op)
                assert first.tobytes() == second.tobytes(), (
                    f"{op} of {count} {dtype.name}: the second run gave other bits"
                )
                sums = group.all_gather(np.uint32(zlib.crc32(first.tobytes())))
                assert (sums == sums[0]).all(), f"{op} of {count} {dtype.name}: the ranks have different bits"
                reduced = group.reduce(own.copy(), group.world_size - 1, op)
                again = group.reduce(own.copy(), group.world_size - 1, op)
                if reduced is not None and again is not None:
                    # Other engines may add in another order to reduce than to all_reduce.
                    want = second if isinstance(group.comm, EngineCommunicator) else again
                    assert reduced.tobytes() == want.tobytes(), f"reduce gives other bits: {op} of {dtype.name}"


def narrow_floats_accumulate_in_float32(group: Group) -> None:
    """A large term and ones: rounding after each addition would lose the ones."""
    for dtype in _supported(group, (DType.F16, DType.BF16)):
        kind, large = numpy_dtypes()[dtype], 2048.0 if dtype is DType.F16 else 256.0
        x = np.full(77, large if group.rank == 0 else 1.0, kind)
        want = np.float32(large + group.world_size - 1).astype(kind)
        assert (group.all_reduce(x) == want).all(), f"{dtype.name}: {x[0]}, expected {want}"


def nan_propagates(group: Group) -> None:
    """A NaN on any one rank appears in the result of min and max, at its position and nowhere else."""
    for dtype in _supported(group, FLOATS):
        for op in ("min", "max", "sum"):
            for culprit in {0, group.world_size // 2, group.world_size - 1}:
                x = np.full(131, float(group.rank + 1), numpy_dtypes()[dtype])
                if group.rank == culprit:
                    x[[0, 64, 130]] = float("nan")
                got = np.isnan(group.all_reduce(x, op).astype(np.float32))
                assert np.flatnonzero(got).tolist() == [0, 64, 130], f"{op} of {dtype.name}, NaN on rank {culprit}"


def infinities(group: Group) -> None:
    last = group.rank == group.world_size - 1
    for dtype in _supported(group, (DType.F64, DType.F32, DType.F16)):
        kind = numpy_dtypes()[dtype]
        x = np.array([1, np.inf if last else 1, -np.inf if group.rank == 0 else 2, 3], kind)
        assert np.isposinf(group.all_reduce(x.copy(), "max")[1])
        assert np.isneginf(group.all_reduce(x.copy(), "min")[2])
        total = group.all_reduce(x.copy())
        assert np.isposinf(total[1])
        assert np.isneginf(total[2])
        both = np.array([np.inf if group.rank == 0 else -np.inf], kind)
        assert np.isnan(group.all_reduce(both)[0]) == (group.world_size > 1)


def integers_wrap(group: Group) -> None:
    for dtype in _supported(group, [dtype for dtype in DType if dtype.is_integral]):
        kind = numpy_dtypes()[dtype]
        top = int(np.iinfo(kind).max)
        want = top * group.world_size % (1 << 8 * kind.itemsize)
        got = group.all_reduce(np.full(37, top, kind))
        assert (got.view(f"u{kind.itemsize}") == want).all(), f"{kind.name}: {got[0]}"


def subnormals_are_kept(group: Group) -> None:
    """Subnormal numbers are not flushed to zero."""
    for dtype in _supported(group, (DType.F64, DType.F32, DType.F16)):
        kind = numpy_dtypes()[dtype]
        tiny = np.finfo(kind).smallest_subnormal
        assert (group.all_reduce(np.full(33, tiny, kind)) == tiny * kind.type(group.world_size)).all()
        assert (group.all_reduce(np.full(33, tiny, kind), "max") == tiny).all()


def _supported(group: Group, dtypes: Sequence[DType]) -> list[DType]:
    """The dtypes that both this installation and the backend support; the answer is the same on all ranks."""
    supported = []
    for dtype in dtypes:
        if dtype in numpy_dtypes():
            with suppress(UnsupportedError):
                group.all_reduce(np.zeros(1, numpy_dtypes()[dtype]))
                supported.append(dtype)
    return supported


def _reals(world_size: int, count: int, dtype: DType) -> list[Array]:
    """Every rank's numbers, with fractions and both signs, and too small for a product to overflow."""
    rng = np.random.default_rng(count)
    return [rng.uniform(-1.5, 1.5, count).astype(numpy_dtypes()[dtype]) for _ in range(world_size)]


def _bounds(inputs: list[Array], dtype: DType, op: ReduceOp) -> tuple[Array, Array]:
    """The least and the greatest result that the contract allows: accumulated in float32 for
    narrow floats, else in the type itself, in any order, then rounded once."""
    kind = inputs[0].dtype
    exact = np.stack(inputs).astype(np.longdouble)
    step = np.finfo(np.float32 if dtype in NARROW else kind).eps
    if op is ReduceOp.PROD:
        centre = exact.prod(axis=0)
        error = len(inputs) * step * abs(centre)
    else:
        divisor = len(inputs) if op is ReduceOp.MEAN else 1
        centre = exact.sum(axis=0) / divisor
        error = len(inputs) * step * abs(exact).sum(axis=0) / divisor
    # Twice the error also covers the rounding of the bounds themselves where nothing is wider than kind.
    return (centre - 2 * error).astype(np.float64).astype(kind), (centre + 2 * error).astype(np.float64).astype(kind)
