"""The example of an event's life, and the program of the page about streams."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lines_of(*command: str) -> list[str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_seven_steps() -> None:
    lines = lines_of(str(ROOT / "examples" / "event_lifecycle.py"))
    for rank in range(2):
        begin = lines.index(f"rank {rank}")
        mine = lines[begin : lines.index("", begin)]
        steps = [found[1] for line in mine if (found := re.search(r"program  (\d)  ", line))]
        assert steps == list("1234567")
        assert sum(line.startswith("  yes  ") for line in mine) == 4
        first = next(i for i, line in enumerate(mine) if "the gradient begins" in line)
        assert sum("program  " in line for line in mine[:first]) == 7, "all was said before anything ran"


def test_the_program_of_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "overlap.md").read_text(encoding="utf-8")
    program = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Stream()" in code)
    lines = lines_of("-m", "rankwise", "run", "-n", "3", "--", sys.executable, "-c", program)
    assert lines == ["blocked by nothing so far; the sum is 6.0"] * 3
