"""Bad arguments and arrays of every layout: the same on all backends, so not in the conformance suite."""

from __future__ import annotations

import pytest

from array_level import arguments, memory
from rankwise.testing import run_ranks
from rankwise.testing.scenarios import scenarios_of

SCENARIOS = scenarios_of(arguments, memory)


@pytest.mark.parametrize(("backend", "n"), [("solo", 1), ("threads", 1), ("threads", 3), ("shm", 2), ("shm", 4)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(backend: str, n: int, name: str) -> None:
    run_ranks(SCENARIOS[name], n, backend=backend)
