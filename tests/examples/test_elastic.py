"""The example that loses ranks ends with the weights of a run that loses none, which it checks itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "elastic.py"


@pytest.mark.slow  # tests/elastic kills ranks in either way too
@pytest.mark.parametrize("way", [("--restarts", "50"), ("--keep-going",)], ids=["restarts", "keep-going"])
def test_the_weights_are_those_of_a_run_without_losses(way: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "rankwise", "run", "-n", "3", *way, str(SCRIPT), "--kill-every", "1"]
    done = subprocess.run([*command, "--steps", "400"], capture_output=True, text=True, timeout=220, env=os.environ)
    assert done.returncode == 0, done.stderr
    *losses, last = done.stdout.splitlines()
    for loss in losses:
        assert re.match(r"step \d+: rank \d was killed by SIGKILL.*; after \d+\.\d+ s on from step \d+", loss)
    assert re.fullmatch(r"400 steps, at last on \d ranks: the weights of a run that loses nobody", last)
