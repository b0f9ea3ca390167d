"""Messages, groups, numbers: the scenarios of rankwise.testing.scenarios on every backend."""

from __future__ import annotations

import pytest

from rankwise.testing import run_ranks
from rankwise.testing.scenarios import SCENARIOS

WORLDS = [("solo", 1), *((backend, n) for backend in ("threads", "shm") for n in (1, 2, 3, 4, 7))]
QUICK = [("solo", 1), ("threads", 1), ("threads", 3), ("shm", 2), ("shm", 4)]  # others: make test-all


@pytest.mark.parametrize(
    ("backend", "n", "name"),
    [
        pytest.param(*world, name, marks=() if world in QUICK else pytest.mark.slow)
        for world in WORLDS
        for name in SCENARIOS
    ],
)
def test_scenario(backend: str, n: int, name: str) -> None:
    run_ranks(SCENARIOS[name], n, backend=backend)
