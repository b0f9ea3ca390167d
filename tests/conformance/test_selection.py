"""The selection of cases covers what it says it covers."""

from __future__ import annotations

import pytest

from rankwise.contract.types import ReduceOp
from rankwise.testing.cases import (
    BOUNDARIES,
    COUNTS,
    LARGE,
    OPERATIONS,
    REDUCTIONS,
    ROOTED,
    SHAPES,
    SPLITS,
    TAKES_OUT,
    numpy_dtypes,
    select,
)
from rankwise.testing.oracle import contents

ALL = [(level, name, n) for level, names in OPERATIONS.items() for name in names for n in (1, 2, 7, 64)]


@pytest.mark.parametrize(("level", "operation", "n"), ALL)
def test_every_value_of_every_axis_occurs(level: str, operation: str, n: int) -> None:
    cases = select(operation, level, n)
    ops = set(ReduceOp) if operation in REDUCTIONS else {None}
    assert {(case.dtype, case.op) for case in cases} >= {(dtype, op) for dtype in numpy_dtypes() for op in ops}
    if operation in ROOTED:
        assert {case.root for case in cases} == set(range(n))
    if level == "array":
        assert {case.shape for case in cases} >= {shape for shape in SHAPES if shape or operation not in SPLITS}
        assert {case.strided for case in cases} == {False, True}
        assert {case.out for case in cases} == ({False, True} if operation in TAKES_OUT else {False})
    else:
        assert {case.shape for case in cases} >= {(count,) for count in COUNTS}
    sizes = {(case.shape[0] * case.dtype.itemsize, case.dtype.itemsize) for case in cases if len(case.shape) == 1}
    for boundary in BOUNDARIES:
        for around in (-1, 0, 1):
            assert any(size == boundary // item * item + around * item for size, item in sizes), (boundary, around)
    assert max(size for size, _ in sizes) > LARGE // n
    assert len({case.seed for case in cases}) == len(cases)


def test_equal_seeds_give_equal_cases_and_others_differ() -> None:
    assert select("reduce", "array", 4, 1) == select("reduce", "array", 4, 1)
    assert select("reduce", "array", 4, 1) != select("reduce", "array", 4, 2)


def test_ranks_hold_different_contents() -> None:
    case = next(case for case in select("broadcast", "pointer", 4) if case.shape == (1023,))
    assert len({contents(case, rank, 4).tobytes() for rank in range(4)}) == 4
    assert contents(case, 2, 4).tobytes() == contents(case, 2, 4).tobytes()
