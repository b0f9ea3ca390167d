"""The example of a server: it answers every request, also those after the loss of a rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "serve.py"

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.slow  # three processes import torch
def test_it_answers_all_requests() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if "8 tokens" in line]
    assert [answer.partition(":")[0] for answer in answers] == [f"request {number}" for number in range(4)]
    assert "request 2: rank 1 was killed by SIGKILL" in done.stdout
