"""The example of ghost cells on a grid of ranks: it compares itself with the serial computation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "heat.py"


@pytest.mark.parametrize(
    ("n", "grid"), [(1, "1 x 1"), (4, "2 x 2"), *(pytest.param(n, f"{n} x 1", marks=pytest.mark.slow) for n in (2, 3))]
)
def test_every_number_of_ranks_gives_the_serial_result(n: int, grid: str) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), str(SCRIPT), "--steps", "40", "--rows", "31"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.returncode == 0, done.stderr
    *picture, steps, result = done.stdout.splitlines()
    assert len(picture) == 14
    assert "%" in done.stdout  # somewhere it is warm
    assert steps == f"40 steps on a grid of {grid} ranks"
    assert result.startswith("mean 2.561491, checksum ")
    assert result.endswith(": as on one rank, bit for bit")
