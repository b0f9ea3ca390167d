"""mpi4py.futures: its executors over new processes, over the other ranks, and over the ranks of a communicator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "rankwise", "run"]

EXECUTORS = """
import os
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor, as_completed, get_comm_workers

def square(x):
    return x * x

def fail(x):
    raise ValueError(x)

def settings(name):
    import __main__
    return __main__.noted, os.environ["NOTED"], os.getcwd(), name

def note(value):
    import __main__
    __main__.noted = value

def ranks():
    comm = get_comm_workers()
    return comm.rank, comm.allreduce(comm.rank + 1)

if __name__ == "__main__":
    options = {"env": {"NOTED": "yes"}, "wdir": "/", "path": ["/nowhere"]}
    with MPIPoolExecutor(2, initializer=note, initargs=[3], **options) as executor:
        assert executor.num_workers == 2
        assert list(executor.map(square, range(7), chunksize=3)) == [x * x for x in range(7)]
        assert list(executor.starmap(pow, [(2, 3), (3, 2)])) == [8, 9]
        assert sorted(executor.map(square, range(20), unordered=True, buffersize=3)) == [x * x for x in range(20)]
        endless = executor.map(square, iter(int, 1), buffersize=4)
        assert [next(endless) for _ in range(9)] == [0] * 9
        endless.close()
        assert executor.submit(settings, "a").result() == (3, "yes", "/", "a")
        each = [executor.submit(ranks) for _ in range(2)]
        assert sorted(future.result() for future in as_completed(each)) == [(0, 3), (1, 3)]
        for results in (executor.submit(fail, 7).result, executor.map(fail, [7], unordered=True).__next__):
            try:
                results()
            except ValueError as error:
                assert str(error) == "7"
            else:
                raise AssertionError("it did not fail")
    assert executor.num_workers == 0
    try:
        executor.submit(square, 1)
    except RuntimeError as error:
        print(error)
    for wrong in ({"max_workers": 0}, {"initializer": 3}, {"python_exe": "python"}):
        try:
            MPIPoolExecutor(**wrong)
        except (ValueError, TypeError, NotImplementedError) as error:
            print(type(error).__name__)
    with MPIPoolExecutor(2) as another:
        print(another.submit(square, 12).result())
"""
SAID = "cannot schedule new futures after shutdown\nValueError\nTypeError\nNotImplementedError\n144\n"

COMMUNICATOR = """
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

def square(x):
    return x * x

comm = MPI.COMM_WORLD
for root in (0, comm.size - 1):
    with MPICommExecutor(comm, root=root) as executor:
        assert (executor is None) == (comm.rank != root)
        if executor is not None:
            print(list(executor.map(square, range(4))), executor.num_workers)
    assert comm.allreduce(1) == comm.size
try:
    with MPICommExecutor(comm) as executor:
        if executor is not None:
            executor.submit(square, "a").result()
except TypeError as error:
    print("TypeError")
"""


TROUBLE = """
import os
import signal
import __main__
from mpi4py.futures import BrokenExecutor, MPICommExecutor, MPIPoolExecutor

def note(value):
    import sys
    sys.noted = value

def noted():
    import sys
    return sys.noted

def refuse():
    raise OSError("not here")

def dies_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return noted()

executor = MPIPoolExecutor(1, initializer=refuse)
for _ in range(2):
    try:
        executor.submit(noted)
    except BrokenExecutor as error:
        print(error)
with MPIPoolExecutor(1, initializer=note, initargs=[5]) as executor:
    print(executor.submit(dies_once, "died").result())
with MPIPoolExecutor(1, initializer=note, initargs=[6]) as executor:
    print(executor.submit(noted).result())
with MPICommExecutor() as executor:
    print(executor.submit(abs, -3).result())
try:
    MPICommExecutor(max_workers=0)
except ValueError as error:
    print(error)
"""


def run(n: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*RUN, "-n", str(n), "--mpi4py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ})


@pytest.mark.parametrize("n", [1, 3])
def test_executors(tmp_path: Path, n: int) -> None:
    """On one rank the workers are new processes, on three the other ranks."""
    program = tmp_path / "program.py"
    program.write_text(EXECUTORS)
    ran = run(n, "python", "-m", "mpi4py.futures", str(program))
    assert (ran.returncode, ran.stdout) == (0, SAID), ran.stderr


def test_without_the_module_the_workers_are_new_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXECUTORS)
    ran = run(1, str(program))
    assert (ran.returncode, ran.stdout) == (0, SAID), ran.stderr


@pytest.mark.parametrize("n", [1, 3])
def test_the_ranks_of_a_communicator(tmp_path: Path, n: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(COMMUNICATOR)
    ran = run(n, str(program))
    workers = max(1, n - 1)
    expected = f"[0, 1, 4, 9] {workers}\n" * 2 + "TypeError\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")


def test_trouble_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An initializer that raises, a worker that dies, and an executor of a communicator of one rank."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(TROUBLE)
    ran = run(1, str(program))
    broken = "the initializer raised OSError('not here')\n"
    expected = broken * 2 + "5\n6\n3\nmax_workers must be greater than 0\n"
    assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr


def test_an_executor_of_a_communicator_whose_ranks_serve_already() -> None:
    program = "from mpi4py.futures import *\nwith MPICommExecutor() as e: print(*e.map(abs, [-1, 2]), e.num_workers)"
    ran = run(3, "python", "-m", "mpi4py.futures", "-c", program)
    assert (ran.returncode, ran.stdout) == (0, "1 2 2\n"), ran.stderr


def test_programs_that_are_a_module_or_a_command(tmp_path: Path) -> None:
    show = (
        "import sys; from mpi4py.futures import MPIPoolExecutor as E; print(E().submit(max, 3, 4).result(), sys.argv)"
    )
    assert run(2, "python", "-m", "mpi4py.futures", "-c", show, "a").stdout == "4 ['-c', 'a']\n"
    ran = run(2, "python", "-m", "mpi4py.futures", "-m", "timeit", "-n", "1", "-r", "1", "pass")
    assert "1 loop, best of 1" in ran.stdout
    nothing = run(2, "python", "-m", "mpi4py.futures")
    assert nothing.returncode == 1
    assert nothing.stderr.count("usage: python -m mpi4py.futures") == 1
    helped = run(2, "python", "-m", "mpi4py.futures", "--help")
    assert (helped.returncode, helped.stdout.count("usage:")) == (0, 1)
