"""Every snippet of README.md and CONTRIBUTING.md runs; tests/snippets.py says how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snippets import (
    OF_THE_PROJECT,
    ROOT,
    Snippet,
    check_commands,
    check_python,
    file_name,
    name,
    read,
    run_in_checkout,
    write_files,
)

DOCUMENTS = ("README.md", "CONTRIBUTING.md")
SNIPPETS = [snippet for document in DOCUMENTS for snippet in read(document)]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
BASH = [snippet for snippet in SNIPPETS if snippet.language == "bash"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the documents show."""
    write_files(PYTHON, tmp_path)
    return tmp_path


def test_the_documents_have_snippets() -> None:
    assert len([snippet for snippet in PYTHON if snippet.document == "README.md"]) >= 2
    assert len([snippet for snippet in BASH if snippet.document == "README.md"]) >= 3
    known = {"python", "bash", "console", ""}  # "console" shows what cannot be run here, or is not the same each time
    assert {snippet.language for snippet in SNIPPETS} <= known, "a language that no test runs"


@pytest.mark.parametrize("snippet", [s for s in PYTHON if file_name(s) is None], ids=name)
def test_python_snippet(snippet: Snippet, folder: Path) -> None:
    check_python(snippet, folder)


@pytest.mark.parametrize("snippet", [s for s in PYTHON if file_name(s)], ids=name)
def test_python_file_is_used_by_a_command(snippet: Snippet) -> None:
    file = file_name(snippet)
    assert file is not None
    assert any(file in commands.text for commands in BASH if commands.document == snippet.document)


def in_make_test(snippet: Snippet) -> bool:
    """Not the commands that run other tests or, as tests/tools/test_doctor.py, rankwise doctor."""
    return snippet.document != "CONTRIBUTING.md" and "rankwise doctor" not in snippet.text


@pytest.mark.parametrize(
    "snippet", [pytest.param(s, id=name(s), marks=() if in_make_test(s) else pytest.mark.slow) for s in BASH]
)
def test_commands(snippet: Snippet, folder: Path) -> None:
    commands = [line.partition("  #")[0].strip() for line in snippet.text.splitlines()]
    if any(command.startswith(OF_THE_PROJECT) for command in commands):
        for command in commands:
            run_in_checkout(command)
        return
    check_commands(snippet, folder)


def test_the_table_names_the_groups_operations() -> None:
    import rankwise as rw

    table = [
        line
        for line in (ROOT / "docs/reference/operations.md").read_text().splitlines()
        if re.match(r"\| `\w+\(", line)
    ]
    names = {operation for line in table for operation in re.findall(r"(\w+)\(", line.split(" | ")[0])}
    assert {"barrier", "all_reduce", "irecv", "subgroup"} <= names
    assert [operation for operation in sorted(names) if not hasattr(rw.Group, operation)] == []
    assert [operation for operation in sorted(names) if not hasattr(rw, operation)] == []
