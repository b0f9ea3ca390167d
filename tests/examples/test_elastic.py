"""The examples that lose ranks end with the numbers of a run that loses none, which they check themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(n: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=220, env=os.environ)


@pytest.mark.slow  # tests/elastic kills ranks in either way too
@pytest.mark.parametrize("way", [("--restarts", "50"), ("--keep-going",)], ids=["restarts", "keep-going"])
def test_digits_while_ranks_are_killed(way: tuple[str, ...]) -> None:
    pytest.importorskip("sklearn")
    done = run(3, *way, str(EXAMPLES / "elastic.py"), "--epochs", "15", "--step-ms", "5", "--kill-every", "1")
    assert done.returncode == 0, done.stderr
    *costs, steps, same, accuracy = done.stdout.splitlines()
    for cost in costs:
        assert re.match(r"step \d+: rank \d was killed by SIGKILL.*; after \d+\.\d+ s on from step \d+", cost)
    assert steps.startswith("345 steps")
    assert same.startswith("matches the one-rank run")
    found = re.search(r"test accuracy (\S+) %", accuracy)
    assert found is not None
    assert float(found[1]) > 95


@pytest.mark.slow
def test_ddp_while_ranks_are_killed() -> None:
    pytest.importorskip("torch")
    words = (str(EXAMPLES / "elastic_ddp.py"), "--steps", "20")
    undisturbed, disturbed = run(2, *words), run(2, "--restarts", "50", *words, "--kill-every", "2")
    assert disturbed.returncode == 0, disturbed.stderr
    assert disturbed.stdout.splitlines()[-1] == undisturbed.stdout.splitlines()[-1]
