"""mpi4py programs on real ranks: run_ranks.py does the checking, on every rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mpi_launchers

PROGRAM = Path(__file__).with_name("run_ranks.py")
RUN = [sys.executable, "-m", "rankwise", "run"]


def run(program: Path | str, n: int, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    from os import environ

    words = [*RUN, "-n", str(n), *options, str(program)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, env={**environ, **variables})


@pytest.mark.parametrize("n", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_programs_on_ranks(n: int) -> None:
    done = run(PROGRAM, n, "--mpi4py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "all well\n" * n


@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_what_few_programs_do(n: int) -> None:
    done = run(PROGRAM.with_name("check_seldom.py"), n, "--mpi4py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "all well\n" * n, "")


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_same_under_mpi(mpi: str) -> None:
    folder = mpi_launchers.programs(mpi)
    done = mpi_launchers.run(folder, 2, "-m", "mpi4py", str(PROGRAM.with_name("check_seldom.py")), timeout=100)
    assert (done.returncode, done.stdout.count("all well")) == (0, 2), done.stderr


CHILDREN = """
import multiprocessing, os, subprocess, sys
from mpi4py import MPI

def size_of_world(_):
    return MPI.COMM_WORLD.size

if __name__ == "__main__":
    for kind in ("spawn", "forkserver"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(kind, pool.map_async(size_of_world, [0]).get(60))
    code = "import rankwise as rw; print(rw.init().world_size)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    print(MPI.COMM_WORLD.allreduce(1))
"""


def test_child_processes_of_a_rank_are_no_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = run(program, 1, "--mpi4py")
    assert (done.returncode, done.stdout) == (0, "spawn [1]\nforkserver [1]\n1\n1\n"), done.stderr
    assert "so it is no rank of that job: it is one rank alone" in done.stderr


@pytest.mark.slow
def test_over_another_backend() -> None:
    pytest.importorskip("torch")
    source = (
        "from mpi4py import MPI\nimport numpy as np\nc, x = MPI.COMM_WORLD, np.zeros(3)\nassert c.allreduce(1) == 2\n"
        "other = 1 - c.rank\nassert c.sendrecv(c.rank, other, source=other) == other\n"
        "c.Sendrecv(np.full(2, 1.5), other, recvbuf=x, source=other)\nassert x.tolist() == [1.5, 1.5, 0]\n"
        "short, second = c.Irecv(x[:1], other), c.irecv(source=other)\nc.Send(x, other)\nc.send('object', other)\n"
        "try:\n    short.Wait()\nexcept MPI.Exception as error:\n    assert error.error_class == MPI.ERR_TRUNCATE\n"
        "else:\n    raise AssertionError\nassert second.wait() == 'object'\n"
        "assert c.improbe(other, 9) is None\nc.barrier()\n"
        "c.send('matched', other, 9)\nassert c.mprobe(other, 9).recv() == 'matched'"
    )
    done = subprocess.run([*RUN, "-n", "2", "--mpi4py", "--backend", "gloo", "python", "-c", source], timeout=100)
    assert done.returncode == 0


def test_a_program_that_sets_mpi4py_rc(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import mpi4py.rc\nmpi4py.rc.threads = False\n"
        "from mpi4py import MPI\nprint(MPI.Get_library_version().split()[0])\n"
    )
    done = run(program, 1, "--mpi4py")
    assert (done.returncode, done.stdout) == (0, "rankwise\n"), done.stderr


def test_without_the_switch_mpi4py_stays_as_it_is(tmp_path: Path) -> None:
    installed = tmp_path / "site" / "mpi4py"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("what = 'the installed one'\n")
    (installed / "util.py").write_text("what = 'a part in Python'\n")
    path = str(installed.parent)
    program = tmp_path / "program.py"
    program.write_text("import rankwise.mpi4py, mpi4py\nprint(mpi4py.what)\n")
    assert run(program, 1, PYTHONPATH=path).stdout == "the installed one\n"
    program.write_text("import mpi4py.util\nprint(mpi4py.util.what, hasattr(mpi4py, 'what'))\n")
    assert run(program, 1, "--mpi4py", PYTHONPATH=path).stdout == "a part in Python False\n"


def test_an_error_names_the_lines_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nfrom mpi4py import MPI\ncomm, x = MPI.COMM_WORLD, np.zeros(2)\n"
        "if comm.rank == 0:\n    comm.Barrier()\nelse:\n    comm.Allreduce(x, np.empty(2))\n"
    )
    done = run(program, 2, "--mpi4py")
    assert done.returncode == 1
    assert "MismatchError" in done.stderr
    assert f"barrier() at {program}:5" in done.stderr
    assert f"all_reduce(count=2, dtype=float64, op=sum) at {program}:7" in done.stderr


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from mpi4py import MPI\n"
        "for call in ('COMM_WORLD.Spawn', 'File.Open', 'Win.Create', 'COMM_WORLD.py2f', '_addressof'):\n"
        "    try:\n        eval(f'MPI.{call}')(MPI.COMM_WORLD)\n"
        "    except NotImplementedError as error:\n        print(str(error).partition(':')[0])\n"
    )
    done = run(program, 1, "--mpi4py")
    assert done.stdout.splitlines() == [
        "MPI.Intracomm.Spawn", "MPI.File.Open", "MPI.Win.Create", "MPI.Intracomm.py2f",
        "MPI._addressof (C handles)",
    ], done.stderr  # fmt: skip


def test_abort_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n    MPI.COMM_WORLD.Abort(7)\nMPI.COMM_WORLD.Barrier()\n"
    )
    done = run(program, 2, "--mpi4py")
    assert done.returncode == 7
    assert "rank 1 called MPI Abort(7)" in done.stderr
