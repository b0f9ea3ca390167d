"""docs/how-to/frameworks.md has the programs that `make test-all PART=clients` runs, in the versions that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clients.run import PROGRAMS
from clients.table import CLIENTS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "frameworks.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


def test_each_framework_has_a_program_or_tests_of_its_own() -> None:
    programs = {program.name for program in PROGRAMS.glob("*.py")} - {"checks.py"}
    assert set(SNIPPETS) == programs
    assert len(programs) == len(CLIENTS) - 1  # accelerate's tests are its own


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_program_of_the_page_is_the_beginning_of_one_that_runs(name: str) -> None:
    program = (PROGRAMS / name).read_text(encoding="utf-8")
    assert program.split('"""\n\n', 1)[1].startswith(SNIPPETS[name])
    commands = [line for line in PAGE.splitlines() if line.endswith(name) and "RANKWISE_TORCH_AS=gloo" in line]
    assert commands, f"no command of the page starts {name}"
    tested = next(test for client in CLIENTS for test in client.tests if name in test.command)
    assert ("torchrun" in commands[0]) == ("torch.distributed.run" in tested.command)
    assert ('"gloo"' in program) == tested.by_name


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_versions_are_those_of_the_page(client) -> None:  # type: ignore[no-untyped-def]
    assert f" | {client.version} | " in PAGE
