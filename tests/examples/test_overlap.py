"""The overlap example: a line of times for each model, and a timeline of what ran when. The times themselves are
for the reader: here they only have to be there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "overlap.py"
SMALL = ["--layers", "4", "--width", "64", "--bucket-mib", "0.03", "--steps", "2"]


def overlap(folder: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", str(SCRIPT), "--out", str(folder), *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def rows(lines: list[str]) -> list[str]:
    """The names in the table, each with three times."""
    found = [re.match(r"(\S+: .+?)\s+[\d.]+\s+[\d.]+\s+[\d.]+\s", line) for line in lines]
    return [match[1] for match in found if match]


def test_the_table_and_the_timeline(tmp_path: Path) -> None:
    lines = overlap(tmp_path, "--no-torch")
    assert rows(lines) == ["sleeping: GradientReducer", "computing: GradientReducer"]
    assert str(tmp_path / "overlap.json") in lines[-1]
    events = json.loads((tmp_path / "overlap.json").read_text())["traceEvents"]
    kinds = [f"{kind}, {way}" for kind in ("sleeping", "computing") for way in ("after", "behind")]
    lanes = [f"rank {rank} {lane}" for rank in (0, 1) for lane in ("compute", "communication")]
    assert {(event["pid"], event["tid"]) for event in events} == {(kind, lane) for kind in kinds for lane in lanes}
    for kind in kinds:
        for rank in (0, 1):
            mine = [event for event in events if event["pid"] == kind and event["tid"].startswith(f"rank {rank} ")]
            reduced = [event for event in mine if "all_reduce" in event["name"]]
            computed = [event for event in mine if event["name"].startswith("layer")]
            assert (len(reduced), len(computed)) == (4, 4)
            ends = max(event["ts"] + event["dur"] for event in computed)
            if kind.endswith("after"):
                assert min(event["ts"] for event in reduced) >= ends


@pytest.mark.slow
def test_beside_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = ["GradientReducer", "data_parallel", "torch DDP on gloo"]
    assert rows(overlap(tmp_path)) == [f"{kind}: {name}" for kind in ("sleeping", "computing") for name in names]
