"""Ranks are killed, and the others at once raise an error that says which rank, how, and in which operation."""

from __future__ import annotations

import signal

import pytest

from faults.trials import Trial, fault
from faults.workers import Workers

PLACES = ["asleep"]
MORE_PLACES = [
    "all_reduce",
    "anything",
    "init",
    "polling",
    "barrier",
    "send_and_recv",
    "in_python",
    "works",
]  # only in make test-all


@pytest.mark.parametrize("place", [*PLACES, *(pytest.param(place, marks=pytest.mark.slow) for place in MORE_PLACES)])
@fault(1, "killed", few=1, full=26)
def test_killed(trial: Trial, place: str) -> None:
    kill_one(trial, trial.rng.randint(2, 4), place)


def kill_one(trial: Trial, n: int, place: str) -> None:
    with Workers(trial, n, place) as workers:
        workers.all("started" if place == "init" else "ready")
        trial.moment(0.04 if place == "init" else 0.3)
        victim = trial.rng.randrange(n)
        at = workers.signal(victim, signal.SIGKILL)
        assert workers.end() == 128 + signal.SIGKILL
        errors = workers.errors(but=victim)
        trial.took(max(error["at"] for error in errors.values()) - at)
        for rank, error in errors.items():
            assert error["type"] == "PeerLostError", error
            assert error["lost"] == victim, error
            assert error["how"] == "was killed by SIGKILL", error
            assert error["process"] == workers.pids[victim], error
            assert error["operation"], error
            if rank in workers.of("ready"):
                assert workers.of("again")[rank]["type"] == "PeerLostError"
        last = workers.stderr.splitlines()[-1]
        assert last.startswith(f"rankwise: rank {victim} (pid {workers.pids[victim]}) was killed by SIGKILL"), last
