"""docs/how-to/examples.md has a line for every file of examples/, and tests run each of these files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "examples.md").read_text(encoding="utf-8")
SUFFIXES = (".py", ".tcl", ".c", ".F90")
EXAMPLES = ROOT / "examples"
FILES = sorted(str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*") if file.suffix in SUFFIXES)
TESTS = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__)]


def test_the_page_names_every_example_once() -> None:
    named = re.findall(r"^\| \[`([\w/]+\.\w+)`\]\(\.\./\.\./examples/([\w/]+\.\w+)\) \|", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in named) == FILES
    assert all(name == target for name, target in named)


@pytest.mark.parametrize("name", FILES)
def test_a_test_runs_the_example(name: str) -> None:
    assert any(f'"{name}"' in test and "subprocess" in test for test in TESTS), f"no test starts {name}"
