"""Every Tcl block of the pages in docs/spec runs unchanged and gives what its page says."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("in_python")

PROGRAM = Path(__file__).with_name("run_pages.py")
TRAINING = 2  # blocks that need torch
BLOCKS = {"barrier": 11, "gather": 21, "reduce_scatter": 20, "scatter": 28}  # as counted in the pages

Outcomes = list[tuple[str, int, int, str]]


def outcomes(*start: str, training: bool) -> Outcomes:
    words = [*start, sys.executable, str(PROGRAM), *([] if training else ["--no-training"])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def wrong(found: Outcomes) -> list[str]:
    return [f"{page}.md:{line}: {outcome}" for page, line, _, outcome in found if outcome.startswith("WRONG")]


@pytest.mark.slow
def test_all_blocks_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    torch = find_spec("torch") is not None
    found = outcomes(training=torch)
    with capsys.disabled():
        print("\nThe Tcl blocks of docs/spec, as rankwise tclsh ran them:")
        for page, line, lines, outcome in found:
            print(f"  distributed_{page}.md:{line:<4} {lines:>3} lines  {outcome}")
        if not torch:
            print(f"  the {TRAINING} that train did not run: there is no torch")
    assert wrong(found) == []
    assert len(found) == sum(BLOCKS.values()) - (0 if torch else TRAINING)
    if torch:
        assert {page: sum(block[0] == page for block in found) for page in BLOCKS} == BLOCKS
    assert sum(outcome.startswith("notation") for *_, outcome in found) == 8


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_blocks_on_four_ranks(training: bool) -> None:
    if training:
        pytest.importorskip("torch")
    found = outcomes(sys.executable, "-m", "rankwise", "run", "-n", "4", training=training)
    assert wrong(found) == []
    alone = outcomes(training=training)
    assert sorted(found) == sorted(alone * 4)
