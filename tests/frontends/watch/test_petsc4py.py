"""python -m rankwise.watch with petsc4py, whose C code makes MPI calls too: Debian's package, on its Open MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import mpi_launchers
import rankwise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]

PYTHON = "/usr/bin/python3"
LOOK = "import mpi4py, sys; from petsc4py import PETSc; print(sys.implementation.cache_tag)"


@pytest.fixture(autouse=True)
def files_of_aborted_jobs() -> Iterator[None]:
    with mpi_launchers.files_of_aborted_jobs():
        yield


@pytest.fixture
def site(tmp_path: Path) -> str:
    """A PYTHONPATH for Debian's Python, with rankwise and petsc4py."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "rankwise").symlink_to(Path(rankwise.__file__).parent)
    petsc = sorted(Path("/usr/lib/petscdir").glob("petsc*/*-real/lib/python3/dist-packages"))
    path = os.pathsep.join(map(str, (folder, *petsc[-1:])))
    env = {**os.environ, **mpi_launchers.ENVIRONMENT, "PYTHONPATH": path}
    found = subprocess.run([PYTHON, "-c", LOOK], capture_output=True, text=True, env=env) if petsc else None
    if not shutil.which("mpiexec.openmpi") or found is None or found.returncode:
        pytest.skip("no petsc4py of Debian; apt install python3-petsc4py python3-mpi4py openmpi-bin")
    if found.stdout.strip() != sys.implementation.cache_tag:
        pytest.skip(f"Debian's Python is {found.stdout.strip()}, rankwise is built for {sys.implementation.cache_tag}")
    return path


@pytest.mark.parametrize(
    ("call", "stack"),
    [
        ("v.sum()", '  Python stack of rank 0:\n  File "{program}", line 9 in <module>\n'),
        ("v.norm()", "  Python stack of rank 0"),  # Python itself shows no frame in some versions
    ],
)
def test_a_program_that_deadlocks(tmp_path: Path, site: str, call: str, stack: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        dedent(f"""\
        from mpi4py import MPI
        from petsc4py import PETSc

        comm = MPI.COMM_WORLD
        v = PETSc.Vec().createMPI(30, comm=comm)
        v.set(2.0)
        comm.Barrier()
        if comm.rank == 0:
            {call}
        else:
            comm.Barrier()
        """)
    )
    words = ["mpiexec.openmpi", "--oversubscribe", "-n", "3", PYTHON, "-m", "rankwise.watch"]
    ran = subprocess.run(
        [*words, "--timeout", "3", "--abort", str(program)],
        env={**os.environ, **mpi_launchers.ENVIRONMENT, "PYTHONPATH": site},
        capture_output=True, text=True, timeout=80,
    )  # fmt: skip
    assert ran.returncode == 1
    assert f"has been in Barrier() #2 on COMM_WORLD at {program}:11 for 3 s" in ran.stderr
    assert "rank 0: in no call for 3." in ran.stderr
    assert f"its last was Barrier() #1 on COMM_WORLD at {program}:7\n" in ran.stderr
    assert stack.format(program=program) in ran.stderr
