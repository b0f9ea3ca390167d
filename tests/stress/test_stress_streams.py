"""Every operation on every kind of array, asynchronously between two streams, on every backend.

Another schedule: `RANKWISE_STRESS_SEED=123 pytest tests/stress`; a longer one: RANKWISE_STRESS_ROUNDS=20.
The seed is in the output of a failure.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

import mpi_launchers
from backends import hosts_in_threads
from rankwise.backends.registry import Opener
from rankwise.testing import run_ranks
from stress import stream_steps

SEED = int(os.environ.get("RANKWISE_STRESS_SEED", "20240229"))
ROUNDS = int(os.environ.get("RANKWISE_STRESS_ROUNDS", "1"))
LIMIT = 60 * ROUNDS  # seconds

WORLDS = [("solo", 1), *((backend, n) for backend in ("threads", "shm", "gloo", "hierarchical") for n in (2, 3))]
QUICK = [("solo", 1), ("shm", 2)]  # make test-all runs the others too


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize(
    ("backend", "n"), [pytest.param(*world, marks=() if world in QUICK else pytest.mark.slow) for world in WORLDS]
)
def test_between_two_streams(backend: str, n: int) -> None:
    seed = SEED + n
    print(f"seed {seed}")
    opener: str | Opener = backend
    if backend == "hierarchical":
        opener = hosts_in_threads.opener((0, 1) if n == 2 else (0, 1, 1))
    elif backend == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
    rounds = ROUNDS * (10 if backend in ("threads", "hierarchical") else 1)  # these need no processes to start
    run_ranks(partial(stream_steps.run_steps, rounds=rounds, seed=seed), n, backend=opener, timeout=LIMIT)


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.slow
@pytest.mark.parametrize("launcher", mpi_launchers.LAUNCHERS)
def test_over_mpi(launcher: str) -> None:
    program = (stream_steps.__file__, "mpi", str(ROUNDS), str(SEED))
    ended = mpi_launchers.run(mpi_launchers.programs(launcher), 2, *program, timeout=LIMIT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
