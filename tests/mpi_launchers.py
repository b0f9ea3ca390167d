"""Open MPI and MPICH as the tests use them, each with its mpiexec and Python in an environment in build/mpi."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from leftovers import MPI_FILES

ROOT = Path(__file__).resolve().parents[1]
# make test has MPICH only, which starts ranks in less time; make test-all has both.
LAUNCHERS = (pytest.param("openmpi", marks=pytest.mark.slow), "mpich")
ENVIRONMENT = {
    # Open MPI: as root, and with more ranks than cores.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # In a container or chroot without /sys the libraries of both say so on standard error.
    "UCX_LOG_LEVEL": "fatal",
    "HWLOC_HIDE_ERRORS": "2",
}


def programs(launcher: str) -> Path:
    """Where the programs of one MPI's environment are. The test is skipped if they are not there."""
    folder = ROOT / "build" / "mpi" / launcher / "bin"
    if not (folder / "mpiexec").exists():
        pytest.skip(f"no {launcher} in build/mpi: `make build/mpi/{launcher}/.made` puts it there")
    return folder


def run(
    programs: Path, n: int, *arguments: str, timeout: float, options: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments on n ranks.

    timeout: seconds. options: of mpiexec. variables: added to the environment.
    """
    return subprocess.run(
        [str(programs / "mpiexec"), *options, "-n", str(n), str(programs / "python"), *arguments],
        env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@contextmanager
def files_of_aborted_jobs() -> Iterator[None]:
    """Afterwards the shared memory is removed that MPI leaves behind when a job is aborted meanwhile."""

    def files() -> set[Path]:
        return {path for pattern in MPI_FILES for path in Path("/dev/shm").glob(pattern)}

    before = files()
    yield
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            used += maps.read_text()
    for path in files() - before:
        if str(path) not in used:
            path.unlink(missing_ok=True)
