"""Every operation on every kind of array, asynchronously between two streams, on every backend.

Another schedule: `RANKWISE_STRESS_SEED=123 pytest tests/stress`; a longer one: RANKWISE_STRESS_ROUNDS=20.
The seed is in the output of a failure.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from backends import hosts_in_threads
from rankwise.backends.registry import Opener
from rankwise.testing import run_ranks
from rankwise.testing.stress_streams import run_steps

SEED = int(os.environ.get("RANKWISE_STRESS_SEED", "20240229"))
ROUNDS = int(os.environ.get("RANKWISE_STRESS_ROUNDS", "1"))
LIMIT = 60 * ROUNDS  # seconds
OPEN_MPI = {  # as root, and with more ranks than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
ROOT = Path(__file__).parents[2]

WORLDS: list[tuple[str, int]] = [("solo", 1)]
WORLDS += [(backend, n) for backend in ("threads", "shm", "gloo", "hierarchical") for n in (2, 3)]


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize(("backend", "n"), WORLDS)
def test_between_two_streams(backend: str, n: int) -> None:
    seed = SEED + n
    print(f"seed {seed}")
    opener: str | Opener = backend
    if backend == "hierarchical":
        opener = hosts_in_threads.opener((0, 1) if n == 2 else (0, 1, 1))
    elif backend == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
    rounds = ROUNDS * (10 if backend in ("threads", "hierarchical") else 1)  # these need no processes to start
    run_ranks(n, partial(run_steps, rounds=rounds, seed=seed), backend=opener, timeout=LIMIT)


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
def test_over_mpi(launcher: str) -> None:
    programs = ROOT / "build" / "mpi" / launcher / "bin"
    if not (programs / "mpiexec").exists():
        pytest.skip(f"no {launcher} in build/mpi: `make build/mpi/{launcher}/.made` puts it there")
    command = [str(programs / "mpiexec"), "-n", "2", str(programs / "python")]
    command += [
        "-m",
        "rankwise.testing.stress_streams",
        "--backend",
        "mpi",
        "--rounds",
        str(ROUNDS),
        "--seed",
        str(SEED),
    ]
    environment = {**os.environ, **OPEN_MPI}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
