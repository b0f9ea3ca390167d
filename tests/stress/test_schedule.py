"""Ten thousand mixed operations from a seeded schedule: right to the byte, without hang or leak.

Another schedule: `RANKWISE_STRESS_SEED=123 pytest tests/stress`. The seed is in the output of a failure.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

from rankwise.testing import run_ranks
from stress.schedule import run_schedule

SEED = int(os.environ.get("RANKWISE_STRESS_SEED", "20240229"))
SLACK = 4 << 20  # bytes: random sizes leave gaps in the heap; a leak of 500 bytes an operation shows


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ten_thousand_operations_on_four_processes() -> None:
    print(f"seed {SEED}")
    by_rank = run_ranks(partial(run_schedule, operations=10_000, seed=SEED), 4, backend="shm", timeout=200)
    for rank, uses in enumerate(by_rank):
        first, last = uses[0], uses[-1]
        assert (first.operations, last.operations) == (1_000, 10_000)
        assert last.descriptors == first.descriptors, f"rank {rank} leaks descriptors: {uses}"
        assert last.private - first.private < SLACK, f"rank {rank} leaks memory: {uses}"


@pytest.mark.parametrize("n", [2, pytest.param(7, marks=pytest.mark.slow)])
def test_a_thousand_operations_on_threads(n: int) -> None:
    print(f"seed {SEED + n}")
    run_ranks(partial(run_schedule, operations=1_000, seed=SEED + n), n, timeout=100)
