"""Ranks are lost, several at once or one after the other, or stopped, while the others shrink their group and go on."""

from __future__ import annotations

import signal

import pytest

from faults.trials import Trial, fault
from faults.workers import Workers


@pytest.mark.slow
@fault(16, "killed while the others shrink", few=2, full=200)
def test_kills(trial: Trial) -> None:
    n = trial.rng.randint(2, 5)
    victims = trial.rng.sample(range(n), trial.rng.randint(1, n - 1))
    survivors = sorted(set(range(n)) - set(victims))
    with Workers(trial, n, "going_on", len(survivors), 20.0) as workers:
        workers.all("ready")
        trial.moment(0.1)
        for victim in victims:
            at = workers.signal(victim, signal.SIGKILL)
            trial.moment(trial.rng.choice((0.0, 0.003, 0.02)))
        for rank in survivors:
            report = workers.one("went on", rank)
            assert report["ranks"] == survivors, report
            trial.took(report["at"] - at)
        workers.end()


@pytest.mark.slow
@fault(16, "stopped while the others shrink", few=1, full=60)
def test_a_stopped_survivor(trial: Trial) -> None:
    with Workers(trial, 4, "going_on", 2, 0.2) as workers:
        workers.all("ready")
        trial.moment(0.05)
        killed, stopped, *others = trial.rng.sample(range(4), 4)
        workers.signal(killed, signal.SIGKILL)
        trial.moment(0.005)
        workers.signal(stopped, signal.SIGSTOP)
        for rank in others:
            assert workers.one("went on", rank)["ranks"] == sorted(others)
        workers.signal(stopped, signal.SIGCONT)
        error = workers.one("error", stopped)
        assert error["type"] == "PeerLostError", error
        number = workers.of("shrinks")[stopped]["ranks"].index(stopped)  # it may have been in a smaller group already
        assert (error["lost"], error["how"].partition(",")[0]) == (number, "was excluded from the group"), error
        workers.end()
