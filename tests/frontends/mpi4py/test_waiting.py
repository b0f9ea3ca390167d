"""Waiting is legal in MPI programs: it is reported, and fails only when no rank can ever go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--mpi4py"]
SHORT = """
import sys, time
from mpi4py import MPI
from rankwise.frontends.mpi4py.world import Watch
from rankwise.frontends.mpi4py.world import WORLD
from rankwise.system.settings import Settings

Watch(Settings.read().segment_fd, WORLD.group, 0.8).start()
comm = MPI.COMM_WORLD
"""


def run(tmp_path: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(program)
    return subprocess.run([*RUN, *options, str(file)], capture_output=True, text=True, timeout=60)


def test_a_long_wait_is_reported_and_goes_on(tmp_path: Path) -> None:
    program = (
        SHORT + "if comm.rank == 0:\n    time.sleep(2.5)\n    comm.send('late', 1)\nelse:\n    print(comm.recv())\n"
    )
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr
    assert done.stderr.count("the job goes on") == 1
    assert "rank 1: in recv" in done.stderr


def test_a_job_that_can_never_go_on_fails(tmp_path: Path) -> None:
    done = run(tmp_path, SHORT + "part = comm.Split(0)\npart.Barrier() if comm.rank else part.recv(source=1)\n")
    assert done.returncode == 1
    assert "every rank of the job has waited for 0.8 s, and none can go on" in done.stderr


def test_a_timeout_that_the_user_gives_holds(tmp_path: Path) -> None:
    done = run(tmp_path, "from mpi4py import MPI\nMPI.COMM_WORLD.recv(source=0, tag=1)\n", "--timeout", "0.5")
    assert done.returncode == 1
    assert "CollectiveTimeout" in done.stderr
