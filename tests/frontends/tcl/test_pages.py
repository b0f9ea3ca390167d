"""Every Tcl block of the pages in docs/spec runs unchanged and gives what its page says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("in_python")

PROGRAM = Path(__file__).with_name("run_pages.py")
BLOCKS = {"barrier": 11, "gather": 21, "reduce_scatter": 20, "scatter": 28}  # as counted in the pages

Outcomes = list[tuple[str, int, int, str]]


def outcomes(*start: str) -> Outcomes:
    done = subprocess.run([*start, sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def wrong(found: Outcomes) -> list[str]:
    return [f"{page}.md:{line}: {outcome}" for page, line, _, outcome in found if outcome.startswith("WRONG")]


def test_all_blocks_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    found = outcomes()
    with capsys.disabled():
        print("\nThe Tcl blocks of docs/spec, as rankwise tclsh ran them:")
        for page, line, lines, outcome in found:
            print(f"  distributed_{page}.md:{line:<4} {lines:>3} lines  {outcome}")
    assert wrong(found) == []
    assert {page: sum(block[0] == page for block in found) for page in BLOCKS} == BLOCKS
    assert sum(outcome.startswith("notation") for *_, outcome in found) == 8


def test_all_blocks_on_four_ranks() -> None:
    found = outcomes(sys.executable, "-m", "rankwise", "run", "-n", "4")
    assert wrong(found) == []
    alone = outcomes()
    assert sorted(found) == sorted(alone * 4)
