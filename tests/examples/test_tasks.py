"""The example of a master and workers: it compares itself with one rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "tasks.py"


@pytest.mark.parametrize("n", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_every_task_is_done_once(n: int) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), str(SCRIPT), "--lines", "15", "--limit", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.returncode == 0, done.stderr
    *picture, result = done.stdout.splitlines()
    assert len(picture) == 15
    assert picture == picture[::-1]  # the set is symmetric
    shares = {int(rank): int(count) for rank, count in re.findall(r"rank (\d+): (\d+)", result)}
    assert sum(shares.values()) == 15
    assert set(shares) <= (set(range(1, n)) if n > 1 else {0})
    assert result.endswith("; the picture is the one that one rank computes")
