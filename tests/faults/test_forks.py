"""fork after init: the child is no rank and is told so; the parent works on."""

from __future__ import annotations

import pytest

from faults.trials import Trial, fault
from faults.workers import Crew


@pytest.mark.parametrize("state", ["idle", "operation", "busy thread"])
@fault(9, "fork", few=1, full=30)
def test_fork(trial: Trial, state: str) -> None:
    n = trial.rng.randint(2, 3)
    way = trial.rng.choice(["sys.exit", "close", "del", "os._exit", "kill"])
    with Crew(trial, n, "fork", state, way) as crew:
        assert crew.end() == 0, crew.stderr
        assert set(crew.of("goes on")) == set(range(n))
        assert crew.stderr == ""
