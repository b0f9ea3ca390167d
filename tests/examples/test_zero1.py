"""The example of a sharded optimizer: the same parameters as without, to the last bit, which it checks itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "zero1.py"

pytest.importorskip("sklearn")


@pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_the_sharded_run_is_the_unsharded_run(n: int) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), str(SCRIPT), "--epochs", "4", "--hidden", "33"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ)
    assert done.returncode == 0, done.stderr
    whole, shards, same, accuracy = done.stdout.splitlines()
    all_bytes = int(re.findall(r"(\d+) bytes each", whole)[0])
    kept = [int(size) for size in re.findall(r"\d+", shards)]
    assert len(kept) == n
    assert sum(kept) == all_bytes
    assert max(kept) - min(kept) <= 16
    assert same == "both runs have the same parameters, bit for bit"
    found = re.search(r"test accuracy (\S+) %", accuracy)
    assert found is not None
    assert float(found[1]) > 90
