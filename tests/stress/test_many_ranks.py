"""Many more ranks than cores: every operation, messages, groups and failures still work."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from rankwise.testing.cases import OPERATIONS, REDUCTIONS, ROOTED, TAKES_OUT, Case
from rankwise.testing.scenarios import SCENARIOS
from rankwise.testing.suite import Result, Status, merged, run_cases

MANY_RANKS = [pytest.param("threads", 64, marks=pytest.mark.slow), ("shm", 16)]


def once(operation: str, n: int) -> list[Case]:
    """One small case and one of several pieces of staging, from the last rank."""
    op = ReduceOp.SUM if operation in REDUCTIONS else None
    root = n - 1 if operation in ROOTED else None
    large = 60_000 // n if operation in TAKES_OUT else 60_000
    return [Case(operation, DType.F32, (count,), op, root, seed=count) for count in (13, large)]


@pytest.mark.parametrize(
    ("backend", "n", "level"),
    [
        # tests/faults/test_threads.py calls some operations, drawn anew each time, on 64 ranks
        pytest.param("threads", 64, "pointer", marks=pytest.mark.slow),
        pytest.param("threads", 64, "array", marks=pytest.mark.slow),
        pytest.param("shm", 16, "pointer", marks=pytest.mark.slow),  # the array level calls these too
        ("shm", 16, "array"),
    ],
)
@pytest.mark.timeout(300)
def test_every_operation_once(backend: str, n: int, level: str) -> None:
    cases = [case for operation in OPERATIONS[level] for case in once(operation, n)]
    run = partial(run_cases, level=level, cases=cases)
    results: list[Result] = merged(run_ranks(run, n, backend=backend, timeout=250))
    assert [f"{r.case}: {r.detail}" for r in results if r.status is not Status.PASS] == []


def several_sizes(group: Group) -> None:
    """Inline, flat, staged in one piece and in several, and in the ranks' own memory. The results are known exactly."""
    n, rank = group.world_size, group.rank
    for count in (2, 200, 6000, 400_000):
        base = np.arange(count, dtype=np.int32) % 1000
        assert np.array_equal(group.all_reduce(base + rank), n * base + n * (n - 1) // 2)
        assert np.array_equal(group.broadcast(base + rank, n // 2), base + n // 2)
        block = base[: count // n + 1]
        blocks = np.add.outer(np.arange(n, dtype=np.int32), block)  # block i belongs to rank i
        assert np.array_equal(group.all_gather(block + rank), blocks)
        assert np.array_equal(group.reduce_scatter(blocks), n * blocks[rank : rank + 1])
        assert np.array_equal(group.all_to_all(blocks + rank), np.add.outer(np.arange(n), block + rank))


@pytest.mark.slow  # each process imports NumPy
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "n"), [("shm", 64), ("threads", 128)])
def test_several_sizes(backend: str, n: int) -> None:
    run_ranks(several_sizes, n, backend=backend, timeout=250)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_as_many_ranks_as_a_host_may_have() -> None:
    n = 1024

    def body(group: Group) -> float:
        group.barrier()
        return float(group.all_reduce(1.0))

    assert run_ranks(body, n, backend="threads", timeout=250) == [n] * n


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "n"), MANY_RANKS)
@pytest.mark.parametrize("name", ["every_pair", "nested_splits", "random_reals", "messages_during_collectives"])
def test_scenario(backend: str, n: int, name: str) -> None:
    run_ranks(SCENARIOS[name], n, backend=backend, timeout=250)
