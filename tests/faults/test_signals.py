"""Ctrl-C and SIGTERM: to one rank, and to the launcher."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from faults.trials import Trial, fault
from faults.workers import Workers

BLOCKED = ["barrier", "all_reduce", "recv", "wait", "split", "object"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@fault(7, "a blocked rank gets", few=1, full=60)
def test_one_rank(trial: Trial, name: str) -> None:
    n, signum = trial.rng.randint(2, 4), signal.Signals[name]
    kept = trial.rng.randrange(n)
    victim = trial.rng.choice([rank for rank in range(n) if rank != kept])
    call = trial.rng.choice(BLOCKED)
    with Workers(trial, n, "blocked", kept, call) as workers:
        workers.all("blocked")
        trial.moment(trial.rng.choice([0.001, 0.3]))
        at = workers.signal(victim, signum)
        if signum == signal.SIGINT:
            interrupted = workers.one("error", victim)
            assert interrupted["type"] == "KeyboardInterrupt", interrupted
            trial.took(interrupted["at"] - at)
        # Who waits for a message of another rank goes on waiting: that rank may still send it.
        for rank in set(range(n)) - {victim, kept} if call != "recv" or signum == signal.SIGTERM else ():
            error = workers.one("error", rank)
            assert (error["type"], error["lost"]) == ("PeerLostError", victim), error
            assert re.search(
                "interrupted|left|exited|closed" if signum == signal.SIGINT else "SIGTERM", error["how"]
            ), error
            if signum == signal.SIGTERM:
                trial.took(error["at"] - at)
        os.kill(workers.pids[kept], signal.SIGKILL)
        workers.end()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@fault(7, "the launcher gets", few=1, full=30)
def test_launcher(trial: Trial, name: str) -> None:
    n, signum = trial.rng.randint(2, 4), signal.Signals[name]
    with Workers(trial, n, "blocked", trial.rng.randrange(n), trial.rng.choice(BLOCKED)) as workers:
        workers.all("started" if trial.rng.random() < 0.3 else "blocked")
        trial.moment(0.2)
        at = time.monotonic()
        workers.launcher.send_signal(signum)
        assert workers.end() == 128 + signum
        trial.took(time.monotonic() - at)
        assert re.fullmatch(
            rf"rankwise: stopped by {signum.name}; {n} ranks were ended", workers.stderr.splitlines()[-1]
        ), workers.stderr
