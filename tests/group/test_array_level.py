"""Bad arguments, arrays of every layout, composed operations: not in the conformance suite of a backend."""

from __future__ import annotations

import pytest

from array_level import SCENARIOS
from rankwise.testing import run_ranks


@pytest.mark.parametrize(("backend", "n"), [("solo", 1), ("threads", 1), ("threads", 3), ("shm", 2), ("shm", 4)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(backend: str, n: int, name: str) -> None:
    run_ranks(SCENARIOS[name], n, backend=backend)
