"""Every snippet of README.md and CONTRIBUTING.md runs.

A Python snippet whose first line is a comment with a file name becomes that file, for the commands
to use. The others run alone and on three ranks; one that starts ranks itself (rw.spawn) runs alone.
A `text` block after commands is what they print, in any order of the ranks. Commands that build or
test the project itself run too where that is possible: see OF_THE_PROJECT.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
MADE_BY_MAKE_TEST = Path(sys.prefix).resolve() == ROOT / "build" / "env"

# Commands run in the checkout. Those that would start this very test again, or replace the
# environment it runs in, are checked to be targets of the Makefile; CI runs them itself.
OF_THE_PROJECT = ("make", "pip install", ".ci/run", "pre-commit", "pytest")
RECURSIVE = ("make test", "make lint", "make dev", ".ci/run", "pre-commit")


@dataclass(frozen=True)
class Snippet:
    document: str
    line: int
    language: str
    text: str
    printed: str | None  # the `text` block that follows, if one does


def snippets(document: str, text: str) -> list[Snippet]:
    """The fenced blocks of a Markdown text, in order."""
    found: list[Snippet] = []
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start()) + 1
        if block[1] == "text":
            found[-1] = Snippet(found[-1].document, found[-1].line, found[-1].language, found[-1].text, block[2])
        else:
            found.append(Snippet(document, line, block[1], block[2], None))
    return found


SNIPPETS = [snippet for document in DOCUMENTS for snippet in snippets(document, (ROOT / document).read_text())]
PYTHON = [snippet for snippet in SNIPPETS if snippet.language == "python"]
BASH = [snippet for snippet in SNIPPETS if snippet.language == "bash"]


def name(snippet: Snippet) -> str:
    return f"{snippet.document}:{snippet.line}"


def file_name(snippet: Snippet) -> str | None:
    """'hello.py' where the snippet starts with the comment '# hello.py'."""
    first = re.match(r"# (\w+\.py)\n", snippet.text)
    return first[1] if first else None


def run(command: str, folder: Path) -> str:
    """What a command prints, run as someone types it, in this Python's environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    bash = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(bash, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{command}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_in_checkout(command: str) -> None:
    """Run a command of the project itself, as far as that can be done from inside its tests."""
    if command.startswith(RECURSIVE):
        assert shutil.which(command.split()[0]) or (ROOT / command.split()[0]).exists()
        if command.startswith("make"):
            run(command.replace("make", "make --dry-run", 1), ROOT)
    elif command == "make demo":
        if not MADE_BY_MAKE_TEST:
            pytest.skip("`make demo` is run where `make test` runs the tests")
        printed = run("make --no-print-directory demo", ROOT)
        assert "test accuracy" in printed
        assert (ROOT / "out" / "loss.png").exists()
        assert (ROOT / "out" / "confusion.png").exists()
    elif command == "pip install .":
        if not MADE_BY_MAKE_TEST:
            pytest.skip("`pip install .` is what `make test` has done before it runs the tests")
        origin = json.loads(distribution("rankwise").read_text("direct_url.json") or "{}")
        assert origin == {"dir_info": {}, "url": ROOT.as_uri()}, "not installed from this checkout as users install it"
    else:
        run(command, ROOT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the documents show."""
    for snippet in PYTHON:
        if file := file_name(snippet):
            (tmp_path / file).write_text(snippet.text)
    return tmp_path


def test_the_documents_have_snippets() -> None:
    assert len([snippet for snippet in PYTHON if snippet.document == "README.md"]) >= 2
    assert len([snippet for snippet in BASH if snippet.document == "README.md"]) >= 3
    assert {snippet.language for snippet in SNIPPETS} <= {"python", "bash", ""}, "a language that no test runs"


@pytest.mark.parametrize("snippet", [s for s in PYTHON if file_name(s) is None], ids=name)
def test_python_snippet(snippet: Snippet, folder: Path) -> None:
    (folder / "snippet.py").write_text(snippet.text)
    alone = run("python snippet.py", folder)
    assert alone.strip(), "a snippet shows something"
    if snippet.printed is not None:
        assert alone == snippet.printed
    if "rw.spawn(" not in snippet.text:
        assert run("rankwise run -n 3 snippet.py", folder).strip()


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
    printed = run(snippet.text, folder)
    if snippet.printed is not None:
        assert sorted(printed.splitlines()) == sorted(snippet.printed.splitlines())


def test_the_table_names_the_groups_operations() -> None:
    import rankwise as rw

    table = [line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\| `\w+\(", line)]
    names = {operation for line in table for operation in re.findall(r"(\w+)\(", line.split(" | ")[0])}
    assert {"barrier", "all_reduce", "irecv", "subgroup"} <= names
    assert [operation for operation in sorted(names) if not hasattr(rw.Group, operation)] == []
    assert [operation for operation in sorted(names) if not hasattr(rw, operation)] == []
