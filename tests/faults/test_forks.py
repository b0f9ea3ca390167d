"""fork after init: the child is not a rank and gets an error; the parent continues."""

from __future__ import annotations

import pytest

from faults.trials import Trial, fault
from faults.workers import Workers


@pytest.mark.parametrize("state", ["idle", "operation", "busy thread"])
@fault(9, "fork", few=1, full=30)
def test_fork(trial: Trial, state: str) -> None:
    n = trial.rng.randint(2, 3)
    way = trial.rng.choice(["sys.exit", "close", "del", "os._exit", "kill"])
    with Workers(trial, n, "fork", state, way) as workers:
        assert workers.end() == 0, workers.stderr
        assert set(workers.of("goes on")) == set(range(n))
        assert workers.stderr == ""
