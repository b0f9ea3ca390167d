"""Many more ranks than cores: every operation, messages, groups and failures still work."""

from __future__ import annotations

from functools import partial

import pytest

from rankwise.contract.types import DType, ReduceOp
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS, REDUCTIONS, ROOTED, WHOLE, Case
from rankwise.testing.scenarios import SCENARIOS
from rankwise.testing.suite import Result, Status, merged, run_cases

MANY_RANKS = [("threads", 64), ("shm", 16)]


def once(operation: str, n: int) -> list[Case]:
    """One small case and one of several pieces of staging, from the last rank."""
    op = ReduceOp.SUM if operation in REDUCTIONS else None
    root = n - 1 if operation in ROOTED else None
    large = 60_000 if operation in WHOLE else 60_000 // n
    return [Case(operation, DType.F32, (count,), op, root, seed=count) for count in (13, large)]


@pytest.mark.parametrize(
    ("backend", "n", "level"),
    [
        ("threads", 64, "pointer"),
        pytest.param("threads", 64, "array", marks=pytest.mark.slow),
        ("shm", 16, "pointer"),
        ("shm", 16, "array"),
    ],
)
def test_every_operation_once(backend: str, n: int, level: str) -> None:
    cases = [case for operation in OPERATIONS[level] for case in once(operation, n)]
    results: list[Result] = merged(run_ranks(n, partial(run_cases, level=level, cases=cases), backend=backend))
    assert [f"{r.case}: {r.detail}" for r in results if r.status is not Status.PASS] == []


@pytest.mark.parametrize(("backend", "n"), MANY_RANKS)
@pytest.mark.parametrize("name", ["every_pair", "nested_splits", "random_reals", "messages_during_collectives"])
def test_scenario(backend: str, n: int, name: str) -> None:
    run_ranks(n, SCENARIOS[name], backend=backend)
