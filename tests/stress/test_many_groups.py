"""What gloo's own shared memory was taken back for: many groups and threads at once, also across pretended hosts.

Another schedule: `RANKWISE_STRESS_SEED=123 pytest tests/stress`; a longer one: RANKWISE_STRESS_ROUNDS=20.
The seed is in the output of a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEED = int(os.environ.get("RANKWISE_STRESS_SEED", "20240229"))
ROUNDS = int(os.environ.get("RANKWISE_STRESS_ROUNDS", "0"))
PROGRAM = Path(__file__).with_name("group_schedule.py")

pytest.importorskip("torch", reason="torch is not installed")  # it connects hosts, and its groups are used


@pytest.mark.parametrize(
    ("way", "hosts", "ranks", "threads", "rounds"),
    [
        ("own", 2, 2, 3, 1),
        pytest.param("gloo", 2, 2, 3, 1, marks=pytest.mark.slow),  # on rankwise, by RANKWISE_TORCH_AS
        pytest.param("rankwise", 2, 2, 8, 4, marks=pytest.mark.slow),
        *(
            pytest.param(way, *world, 4, marks=pytest.mark.slow)
            for way in ("own", "gloo")
            for world in ((2, 2, 8), (1, 4, 8), (3, 2, 4))
        ),
    ],
)
@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_many_groups_and_threads(way: str, hosts: int, ranks: int, threads: int, rounds: int) -> None:
    schedule = map(str, (hosts, ranks, threads, ROUNDS or rounds, SEED))
    environ = os.environ | {"RANKWISE_TORCH_AS": "gloo", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(PROGRAM), way, *schedule]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    assert done.returncode == 0
    assert f"seed {SEED}" in done.stdout
