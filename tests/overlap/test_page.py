"""The programs of docs/how-to/overlap.md, gradients.md and registered-memory.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankwise.group.group import Group
from rankwise.testing import run_ranks

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = {
    name: (FOLDER / name).read_text(encoding="utf-8") for name in ("overlap.md", "gradients.md", "registered-memory.md")
}
PROGRAMS = {name: re.findall(r"```python\n(.*?)```", page, re.DOTALL) for name, page in PAGES.items()}


def test_each_page_has_programs() -> None:
    assert all(PROGRAMS.values())


@pytest.mark.parametrize(("name", "number"), [(name, i) for name in PROGRAMS for i in range(len(PROGRAMS[name]))])
def test_a_program_of_a_page(name: str, number: int) -> None:
    """With `rw.init()` giving the test's ranks."""
    program = PROGRAMS[name][number]
    if "import torch" in program:
        pytest.importorskip("torch")
    code = program.replace("rw.init()", "given").replace("rw.registered()", "rw.registered(given)")
    code = code.replace("torch.nn.Linear(4, 2))", "torch.nn.Linear(4, 2), given)")

    def ranks(group: Group) -> None:
        names: dict[str, Any] = {"given": group}
        exec(code, names)
        assert "used" not in names or names["used"].wait() == 3.0  # the sum of both ranks' gradients

    run_ranks(ranks, 2, backend="shm")
