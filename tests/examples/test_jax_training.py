"""The training with JAX: the losses of NumPy, on any number of ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("jax", reason="there is no JAX; pip install jax")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "jax_training.py"


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_the_losses_are_those_of_numpy(n: int) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), str(SCRIPT), "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss 2.3658 at the first step, ")
    assert "the losses are those of NumPy: largest difference" in done.stdout
