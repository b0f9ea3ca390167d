"""Ranks are killed again and again, and the job goes on; no commit is lost, and the launcher leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from faults.trials import Trial, fault
from faults.workers import HANG, Workers, lives

RESTARTS = ("--restarts", "1000")


def training(trial: Trial, n: int, options: tuple[str, ...]) -> Workers:
    size = trial.rng.choice((1, 10_000, 1_000_000))
    return Workers(trial, n, "elastic", str(trial.folder / "enough"), size, options=options)


def kill(workers: Workers, ranks: list[int]) -> None:
    """Kill the present processes of these ranks at once."""
    workers.drain()
    for rank in ranks:
        with suppress(ProcessLookupError):
            os.kill(workers.pids[rank], signal.SIGKILL)


def finish(trial: Trial, workers: Workers, left: int) -> None:
    (trial.folder / "enough").touch()
    assert workers.end() == 0, workers.stderr
    ends = workers.of("trained")
    assert len(ends) == left
    assert len({end["step"] for end in ends.values()}) == 1
    check_commits(workers)


def check_commits(workers: Workers) -> None:
    """The ranks go on at most one step before the farthest, and a replacement finds the commits of the lost rank."""
    farthest, own = 0, dict[int, int]()
    for report in workers.reports:
        if report["what"] == "commits":
            farthest, own[report["rank"]] = max(farthest, report["step"]), report["step"]
        elif report["what"] == "resumes":
            assert report["step"] >= farthest - 1, f"commits are lost: {report}, {farthest}"
            own[report["rank"]] = farthest = report["step"]
        elif report["what"] == "finds" and report["rank"] in own:
            assert report["commits"][0] >= own[report["rank"]] - 1, f"commits are lost: {report}, {own}"
    assert not workers.of("error"), workers.of("error")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one", "all", "replacements", "several", "all but one"])
@fault(16, "killed, started again", few=1, full=20)
def test_killed_and_started_again(trial: Trial, way: str) -> None:
    n = trial.rng.randint(2, 4)
    with training(trial, n, RESTARTS) as workers:
        workers.all("resumes")
        for _ in range(3):
            trial.moment(0.3)
            count = {"several": trial.rng.randint(1, n - 1), "all but one": n - 1, "all": n}.get(way, 1)
            victims = trial.rng.sample(range(n), count)
            kill(workers, victims)
            if way == "replacements":
                await_replacement(workers, victims[0])
                trial.moment(0.1)
                kill(workers, victims)
        finish(trial, workers, n)


def await_replacement(workers: Workers, rank: int) -> None:
    """Wait until the replacement of a rank that was killed runs its program."""
    before, end = workers.pids[rank], time.monotonic() + HANG
    while workers.pids[rank] == before:
        assert time.monotonic() < end, "the rank is not started again"
        time.sleep(0.001)
        workers.drain()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["one after another", "at once"])
@fault(16, "killed, the others go on", few=1, full=30)
def test_killed_and_left_out(trial: Trial, way: str) -> None:
    n = trial.rng.randint(2, 4)
    with training(trial, n, ("--keep-going",)) as workers:
        workers.all("resumes")
        victims = trial.rng.sample(range(n), trial.rng.randint(1, n - 1))
        for group in [victims] if way == "at once" else [[victim] for victim in victims]:
            trial.moment(0.3)
            kill(workers, group)
        finish(trial, workers, n - len(victims))


@pytest.mark.slow
@fault(16, "the launcher is killed, after losses", few=1, full=20)
def test_launcher_killed_after_losses(trial: Trial) -> None:
    n = trial.rng.randint(2, 4)
    with training(trial, n, RESTARTS) as workers:
        workers.all("resumes")
        kill(workers, trial.rng.sample(range(n), trial.rng.randint(1, n)))
        trial.moment(0.5)
        at = time.monotonic()
        workers.launcher.kill()
        workers.launcher.wait()
        workers.drain()
        pids = {report["pid"] for report in workers.reports}
        while any(lives(pid) for pid in pids):
            assert time.monotonic() < at + 10, "ranks outlive their launcher"
            time.sleep(0.001)
        trial.took(time.monotonic() - at)
