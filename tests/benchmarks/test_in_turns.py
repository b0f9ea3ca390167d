"""benchmarks/in_turns.py runs a program on gloo, on rankwise and on no backend, and reads its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "in_turns.py"

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x, group=dist.new_group(backend="gloo"))
print(f"{sys.argv[1]} {os.environ.get('RANKWISE_TORCH_AS')}: the sum is {x.item() + dist.get_world_size() / 10} ranks")
dist.destroy_process_group()
"""


@pytest.mark.slow  # eighteen processes import torch
def test_the_figures_are_those_that_the_program_prints(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["-n", "2", "--rounds", "2", "--fake", "--figure", "ranks"]
    command = [sys.executable, str(SCRIPT), *options, str(program), "--an-argument"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1:3] == [f"round {number}: gloo 2.20, rankwise 2.20, fake 1.20" for number in (1, 2)]
    assert [line.split()[:3] for line in lines[3:]] == [
        ["gloo", "median", "2.20"],
        ["rankwise", "median", "2.20"],
        ["fake", "median", "1.20"],
    ]


@pytest.mark.slow  # three processes import torch
def test_a_program_that_fails_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no weights')\n")
    done = subprocess.run([sys.executable, str(SCRIPT), str(program)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "no weights" in done.stderr
    assert "on gloo, the program failed with exit status 1" in done.stderr
