"""A rank's own bug overwrites words of the shared memory: every rank ends in time, with right results or an error."""

from __future__ import annotations

from faults.trials import Trial, fault
from faults.workers import Workers

LIMIT = 2.0  # of one wait, in seconds


@fault(15, "overwritten shared memory", few=2, full=60)
def test_overwritten(trial: Trial) -> None:
    n, seconds = trial.rng.randint(2, 4), trial.rng.uniform(0.2, 1.5)
    victim, pauses = trial.rng.randrange(n), trial.rng.choice((0.001, 0.01, 0.1))
    args = (victim, seconds, pauses, str(trial.folder / "writes"))
    with Workers(trial, n, "overwritten", *args, timeout=LIMIT) as workers:
        began = max(report["at"] for report in workers.all("ready").values())
        status = workers.end()
        ends = workers.of("end")
        assert set(ends) == set(range(n)), f"status {status}: ranks {sorted(ends)} came to their end"
        assert "SIG" not in workers.stderr, workers.stderr
        assert max(report["at"] for report in ends.values()) < began + seconds + 10 * LIMIT, workers.reports
