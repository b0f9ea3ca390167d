"""The programs of docs/how-to/overlap.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankwise.group.group import Group
from rankwise.testing import run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "overlap.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_programs() -> None:
    assert len(PROGRAMS) >= 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_of_the_page(number: int) -> None:
    """With `rw.init()` giving the test's ranks."""
    if "import torch" in PROGRAMS[number]:
        pytest.importorskip("torch")
    code = PROGRAMS[number].replace("rw.init()", "given").replace("rw.registered()", "rw.registered(given)")
    code = code.replace("torch.nn.Linear(4, 2))", "torch.nn.Linear(4, 2), given)")

    def ranks(group: Group) -> None:
        names: dict[str, Any] = {"given": group}
        exec(code, names)

    run_ranks(2, ranks, backend="shm")
