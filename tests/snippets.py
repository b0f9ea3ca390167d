"""Runs the snippets of Markdown documents.

A `python` block whose first line is a comment with a file name becomes that file, for the commands
to use. The others run on three ranks; one that starts ranks itself (rw.spawn), or opens the backend solo, runs alone. A
`bash` block runs. A `text` block after either is what it prints, in any order of the ranks. Commands that build or test
the project itself run too where that is possible: see OF_THE_PROJECT.

Blocks in other languages do not run: `console` is for what needs two hosts, a GPU or an administrator, or prints
something else each time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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
    for block in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, block.start()) + 1
        if block[1] == "text" and found:
            found[-1] = Snippet(found[-1].document, found[-1].line, found[-1].language, found[-1].text, block[2])
        else:
            found.append(Snippet(document, line, block[1], block[2], None))
    return found


def read(document: str) -> list[Snippet]:
    """The snippets of a document, which is named by its path in the checkout."""
    return snippets(document, (ROOT / document).read_text(encoding="utf-8"))


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
        assert origin["url"].startswith((ROOT / "build/native/rankwise-").as_uri()), "not this checkout's wheel"
    else:
        run(command, ROOT)


def write_files(shown: Iterable[Snippet], folder: Path) -> None:
    """Write those of the snippets that have a file name."""
    for snippet in shown:
        if file := file_name(snippet):
            (folder / file).write_text(snippet.text)


def check_python(snippet: Snippet, folder: Path) -> None:
    """Run a Python snippet on three ranks, or alone where that is the case, and compare what it prints."""
    (folder / "snippet.py").write_text(snippet.text)
    alone = "rw.spawn(" in snippet.text or 'rw.init("solo")' in snippet.text
    compare(snippet, run("python snippet.py" if alone else "rankwise run -n 3 snippet.py", folder))


def check_commands(snippet: Snippet, folder: Path) -> None:
    """Run commands together, and compare what they print."""
    compare(snippet, run(snippet.text, folder))


def compare(snippet: Snippet, printed: str) -> None:
    """With the page's `text` block, if there is one; the lines may come in any order of the ranks."""
    if snippet.printed is not None:
        assert sorted(printed.splitlines()) == sorted(snippet.printed.splitlines())
