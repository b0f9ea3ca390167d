"""The example of tensor parallelism: n ranks generate the tokens that one generates, which it checks itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "tensor_parallel.py"

pytest.importorskip("torch", reason="torch is not installed")


def run(n: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), str(SCRIPT), "--times", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_the_tokens_are_those_of_one_rank(n: int) -> None:
    done = run(n, "--compare", "--tokens", "8", "--rows", "2")
    assert done.returncode == 0, done.stderr
    _, one, ours, theirs = done.stdout.splitlines()
    assert one.startswith("on one rank: ")
    assert ours.startswith(f"on rankwise, {n} ranks: ")
    assert theirs.startswith(f"on gloo, {n} ranks: ")
    assert ours.endswith("the same tokens as on one rank")


@pytest.mark.slow  # three processes import torch
def test_ranks_that_do_not_divide_the_heads_are_refused() -> None:
    done = run(3)
    assert done.returncode == 1
    assert "8 heads cannot be split over 3 ranks: expected 1, 2, 4 or 8 ranks" in done.stderr
