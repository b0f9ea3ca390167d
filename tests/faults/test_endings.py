"""A rank or the launcher ends early, or is stopped for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from faults.trials import Trial, fault
from faults.workers import HANG, Workers, lives
from leftovers import started_processes
from rankwise import Group, PeerLostError
from rankwise.observe.jobs import parent_of
from rankwise.testing import RanksFailed


@fault(2, "the launcher is killed", few=1, full=40)
def test_launcher_killed(trial: Trial) -> None:
    n = trial.rng.randint(1, 4)
    with Workers(trial, n, trial.rng.choice(["barrier", "in_python", "anything", "asleep"])) as workers:
        if trial.rng.random() < 0.7:
            workers.all("ready")
            trial.moment(0.1)
        else:
            trial.moment(0.5)
        at = time.monotonic()
        workers.launcher.kill()
        workers.launcher.wait()
        workers.drain()
        while any(lives(pid) for pid in workers.pids.values()):
            assert time.monotonic() < at + 10, "ranks outlive their launcher"
            time.sleep(0.001)
        trial.took(time.monotonic() - at)


@fault(2, "the launcher is killed, starting", few=1, full=60)
def test_launcher_killed_while_it_starts_ranks(trial: Trial) -> None:
    """The ranks do not use rankwise, so only the launcher's watchdog can end them."""
    n = trial.rng.randint(1, 6)
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "sleep", "1000"]
    before = started_processes()
    launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    awaited = trial.rng.randint(1, n + 1)  # the first is the watchdog
    end = time.monotonic() + HANG
    while sum(parent_of(int(entry)) == launcher.pid for entry in os.listdir("/proc") if entry.isdecimal()) < awaited:
        assert time.monotonic() < end, "the ranks do not start"
    trial.moment(trial.rng.choice([0, 0.0005, 0.005]))
    at = time.monotonic()
    launcher.kill()
    launcher.wait()
    while left := {pid: words for pid, words in started_processes().items() if pid not in before}:
        assert time.monotonic() < at + 10, f"they outlive their launcher: {left}"
    trial.took(time.monotonic() - at)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["raises", "sys.exit", "os._exit", "returns"])
@fault(3, "leaves early", few=1, full=25)
def test_a_rank_ends_early(trial: Trial, way: str) -> None:
    n = trial.rng.randint(2, 4)
    victim = trial.rng.randrange(n)
    status = {"raises": 1, "returns": 0}.get(way, trial.rng.randint(2, 120))
    with Workers(trial, n, "leave_early", victim, way, status) as workers:
        code = workers.end()
        left = workers.of("leaves")[victim]["at"]
        errors = workers.errors(but=victim)
        trial.took(max(error["at"] for error in errors.values()) - left)
        for error in errors.values():
            assert (error["type"], error["lost"]) == ("PeerLostError", victim), error
            assert error["how"] == f"exited with status {status}", error
        assert code == status
        if status:
            assert f"rankwise: rank {victim} (pid {workers.pids[victim]}) exited with status {status}" in workers.stderr


@fault(3, "raises, as a thread", few=1, full=60)
def test_a_thread_raises(trial: Trial) -> None:
    n = trial.rng.randint(2, 5)
    victim, before = trial.rng.randrange(n), trial.rng.randrange(50)
    when: dict[int, float] = {}
    told: dict[int, tuple[int, str]] = {}

    def body(group: Group) -> None:
        for _ in range(before):
            group.all_reduce(1)
        if group.rank == victim:
            when[victim] = time.monotonic()
            raise LookupError("lost my keys")
        try:
            group.barrier()
        except PeerLostError as error:
            when[group.rank], told[group.rank] = time.monotonic(), (error.rank, error.how)
            raise

    with pytest.raises(RanksFailed, match="lost my keys") as caught:
        trial.run(n, body)
    assert len(caught.value.failures) == len(when) == n
    assert list(told.values()) == [(victim, "aborted the group: it raised LookupError")] * (n - 1)
    trial.took(max(when.values()) - when[victim])


@pytest.mark.slow
@fault(4, "stopped for a while and continued", few=1, full=15)
def test_stopped_and_continued(trial: Trial) -> None:
    n = trial.rng.randint(2, 4)
    enough = trial.folder / "enough"
    with Workers(trial, n, "sums", str(enough)) as workers:
        workers.all("ready")
        trial.moment(0.2)
        stopped = [rank for rank in range(n) if trial.rng.random() < 0.4] or [trial.rng.randrange(n)]
        for rank in stopped:
            os.kill(workers.pids[rank], signal.SIGSTOP)
        time.sleep(3)
        workers.forget("sums")
        for rank in stopped:
            os.kill(workers.pids[rank], signal.SIGCONT)
        workers.all("sums")
        enough.touch()
        assert workers.end() == 0, workers.stderr
        assert workers.stderr == ""
        assert not workers.of("error")
