"""`rankwise status`: a running job seen from outside."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from in_process import rankwise
from launch.launchers import Launchers
from rankwise.observe import jobs
from rankwise.system.topology import parse_cpus
from rankwise.tools.status.table import table

RANKWISE = [sys.executable, "-m", "rankwise"]

# Rank 0 prints a line once it has left the first all_reduce, and waits for its standard input to end; the others wait
# for rank 0.
PROGRAM = """
import sys
import numpy as np
import rankwise as rw
group = rw.init()
group.all_reduce(np.ones(1 << 17))
if group.rank == 0:
    print("behind", flush=True)
    sys.stdin.read()
group.all_reduce(np.ones(2000))
"""


def status(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RANKWISE, "status", *words], capture_output=True, text=True, timeout=150)


@contextmanager
def job(program: str = PROGRAM, n: int = 3) -> Iterator[subprocess.Popen[bytes]]:
    launcher = subprocess.Popen(
        [*RANKWISE, "run", "-n", str(n), "--timeout", "60", "--", "python", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield launcher
    finally:
        launcher.communicate(timeout=150)
    assert launcher.returncode == 0


def once_behind(launcher: subprocess.Popen[bytes], sequence: int = 2) -> dict[str, Any]:
    """The job as JSON once rank 0 is behind, and all others wait in their all_reduce of this number."""
    assert launcher.stdout is not None
    assert b"behind" in launcher.stdout.readline()
    end = time.monotonic() + 40
    while time.monotonic() < end:
        done = status("--json", str(launcher.pid))
        if done.returncode == 0:
            (found,) = json.loads(done.stdout)
            if all(rank["where"].startswith(f"in all_reduce #{sequence} ") for rank in found["ranks"][1:]):
                break
    else:
        pytest.fail(f"the ranks did not come to wait: {done}")
    assert isinstance(found, dict)
    return found


def test_every_rank_of_a_job() -> None:
    with job() as launcher:
        found = once_behind(launcher)
        assert found["launcher"] == launcher.pid
        assert found["world_size"] == 3
        assert f"-n 3 --timeout 60 -- python -c {PROGRAM}".strip() in found["command"]
        assert 0 < time.time() - found["started"] < 90
        for rank, told in enumerate(found["ranks"]):
            assert told["rank"] == rank
            assert jobs.parent_of(told["pid"]) == launcher.pid
            assert parse_cpus(told["cpus"]) == os.sched_getaffinity(told["pid"])
            assert (told["state"], told["alive"], told["exit_status"]) == ("alive", True, None)
            assert told["behind"] == (rank == 0)
            assert (told["operation"], told["group"]) == ("all_reduce", 0)
            assert told["bytes"] >= 1 << 20
            assert 0 <= told["since"] < 90
        waiting = found["ranks"][1]
        assert waiting["waited"] > 0
        assert waiting["where"].startswith("in all_reduce #2 for ")
        assert found["ranks"][0]["where"].endswith(", last was all_reduce #1")

        by_rank = status(str(waiting["pid"]))
        assert by_rank.returncode == 0
        lines = by_rank.stdout.splitlines()
        assert lines[0].startswith("3 ranks for ")
        assert f"launcher {launcher.pid}: " in lines[0]
        table = lines[1:]
        assert table[0].split() == ["rank", "pid", "CPUs", "state", "moved", "waited", "where"]
        assert re.match(
            r" > 0 +\d+ +[\d,-]+  alive  1 MiB .* outside any collective for .*, last was all_reduce #1$", table[1]
        )
        assert re.match(r"   1 +\d+ +[\d,-]+  alive  1 MiB .* in all_reduce #2 for [\d.]+ s$", table[2])
        assert table[4] == " > others wait for it"
        assert f"launcher {launcher.pid}: " in status().stdout

        os.kill(found["ranks"][2]["pid"], signal.SIGSTOP)
        try:
            (stopped,) = json.loads(status("--json", str(launcher.pid)).stdout)
            assert stopped["ranks"][2]["state"] == "stopped"
        finally:
            os.kill(found["ranks"][2]["pid"], signal.SIGCONT)


def test_where_each_rank_is_in_its_program() -> None:
    with job() as launcher:
        once_behind(launcher)
        shown = status("--stacks", str(launcher.pid)).stdout
    assert "--timeout 60 -- python -c import sys import numpy" in shown  # longer than the line that 80 columns have
    reads, waits = shown[shown.index("Python stack of rank 0, ") :].split("Python stack of ranks 1, 2, ")
    assert 'File "<string>", line 9, in <module>' in reads
    assert 'File "<string>", line 10, in <module>' in waits


def test_a_rank_that_has_begun_nothing_is_marked() -> None:
    with job(PROGRAM.replace("group.all_reduce(np.ones(1 << 17))\n", "")) as launcher:
        found = once_behind(launcher, sequence=1)
        assert [rank["behind"] for rank in found["ranks"]] == [True, False, False]


def test_live_in_a_terminal() -> None:
    pytest.importorskip("rich")
    with job(n=2) as launcher:
        once_behind(launcher)
        outer, inner = pty.openpty()
        watch = subprocess.Popen(
            [*RANKWISE, "status", "--watch", str(launcher.pid)],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
            start_new_session=True,
        )
        os.close(inner)
        screen = b""
        while screen.count(b"others wait for it") < 3:  # and so has been drawn anew
            screen += os.read(outer, 65536)
        assert b"in all_reduce #2 for " in screen
        assert b"Ctrl-C ends" in screen
        watch.send_signal(signal.SIGINT)
        with suppress(OSError):  # which says that the other end of the pty was closed
            while data := os.read(outer, 65536):
                screen += data
        os.close(outer)
        assert watch.wait(30) == 0
        assert b"Traceback" not in screen


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["4194305"], "there is no process 4194305"),
        (["another"], "has no part in a job that runs now: expected a launcher or a rank"),
        (["--watch"], "--watch needs a terminal"),
    ],
)
def test_errors_are_one_line(words: list[str], why: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as another:
        done = status(*[str(another.pid) if word == "another" else word for word in words])
        another.kill()
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(f"rankwise status: error: .*{re.escape(why)}.*\n", done.stderr)


def test_wrong_words(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["--json", "--watch"], ["me"], ["1", "2"]):
        done = rankwise(capfd, "status", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("rankwise status: error: ")


def test_another_users_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(jobs.os, "listdir", refused)
    with pytest.raises(PermissionError, match=r"process 1 belongs to root: only that user and root may inspect it"):
        jobs.jobs_of(1)


# Rank 1 is killed; rank 0 does not end at once, so that there is something to look at.
DEATH = """
import os, signal, sys, time
import rankwise as rw
group = rw.init()
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    group.barrier()
except rw.PeerLostError:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("lost", flush=True)
    time.sleep(60)
"""


OWN_GROUPS = """
import sys
from mpi4py import MPI
own = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("here", flush=True)
    sys.stdin.read()
MPI.COMM_WORLD.Barrier()
"""


def test_groups_that_a_rank_makes_for_itself_are_no_jobs() -> None:
    words = [*RANKWISE, "run", "-n", "2", "--mpi4py", "python", "-c", OWN_GROUPS]
    launcher = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"here\n"
    (job,) = jobs.jobs_of(launcher.pid)
    assert (job.launcher, job.world_size) == (launcher.pid, 2)
    launcher.communicate(timeout=150)


def test_two_nodes_of_one_host_are_one_job() -> None:
    launchers, program = Launchers(), "print('here', flush=True); import time; time.sleep(600)"
    nodes = [launchers.start(2, node, 2, "--", "python", "-c", program) for node in (0, 1)]
    try:
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == node.stdout.readline() == "here\n"
        (job,) = jobs.jobs_of(nodes[1].pid)
        assert [rank.rank for rank in job.ranks()] == [0, 1, 2, 3]
        assert table(job).title.startswith("4 ranks (2 nodes) for ")
    finally:
        nodes[0].terminate()
        launchers.finish()


@pytest.mark.slow
def test_a_dead_rank() -> None:
    launcher = subprocess.Popen(
        [*RANKWISE, "run", "-n", "2", "--", "python", "-c", DEATH], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"lost\n"
    # It goes on for two seconds now: the launcher's patience with the others.
    (job,) = jobs.jobs_of(launcher.pid)
    states = [(rank.how, rank.state.exit_status) for rank in job.ranks()]
    assert states == [("alive", None), ("SIGKILL", -signal.SIGKILL)]
    launcher.communicate(timeout=150)
    assert launcher.returncode == 128 + signal.SIGKILL


def test_ranks_that_have_not_joined() -> None:
    program = "import sys; print('here', flush=True); sys.stdin.read()"
    launcher = subprocess.Popen(
        [*RANKWISE, "run", "-n", "1", "--", "python", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"here\n"
    done = status(str(launcher.pid))
    launcher.communicate(timeout=150)
    assert re.search(r"^   0 +not joined +0 B", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("no rank has joined: they are starting, or do not call rankwise.init\n")
