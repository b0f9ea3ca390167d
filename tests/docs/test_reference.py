"""The reference lists every public name, command, environment variable and error, and what the library answers."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankwise as rw
from rankwise.group.group import Group
from rankwise.system.settings import Settings
from rankwise.tools.cli import COMMANDS
from snippets import ROOT, Snippet, file_name, read, write_files

REFERENCE = ROOT / "docs" / "reference"
MODULES = ("autograd", "elastic", "overlap", "testing", "trace")


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def documented() -> set[str]:
    """The names for which the reference has a directive, with the members of classes that list them."""
    found: set[str] = set()
    for path in REFERENCE.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        for kind, name, options in re.findall(r"^\.\. (?:auto|py:)(\w+):: (\S+)\n((?:   :.*\n)*)", text, re.M):
            found.add(name)
            if kind == "class" and ":members:" in options:
                found |= {f"{name}.{member}" for member in members(resolved(name))}
    return found


def resolved(path: str) -> Any:
    """The object that a dotted path names."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(resolved(module), name)


def members(kind: type) -> list[str]:
    """The public methods and properties of a class that have a docstring of their own."""
    return [name for name, value in vars(kind).items() if not name.startswith("_") and inspect.getdoc(value)]


def public() -> set[str]:
    """The public names, but not the functions of the module that are methods of the default group."""
    names = {f"rankwise.{name}" for name in rw.__all__ if name not in MODULES and not hasattr(Group, name)}
    names |= {f"rankwise.{module}.{name}" for module in MODULES for name in getattr(rw, module).__all__}
    methods = {name for kind in Group.__mro__[:-1] for name in vars(kind) if not name.startswith("_")}
    names |= {f"rankwise.Group.{name}" for name in methods}
    return names | {f"rankwise.Mesh.{name}" for name in members(rw.Mesh)}


def test_every_public_name_has_a_directive() -> None:
    assert {"rankwise.Group.all_reduce", "rankwise.Group.split", "rankwise.init"} <= public()
    assert sorted(public() - documented()) == []


def test_every_directive_names_something() -> None:
    of_instances = {"rankwise.Group.successor"}
    for name in documented() - of_instances:
        if not name.startswith("rankwise.torch"):  # it imports torch, which takes seconds; `make docs` looks it up
            resolved(name)


def test_every_operation_is_on_the_page_of_operations() -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", page("operations.md")))))
    operations = {name for name in rw.__all__ if hasattr(Group, name)}
    assert sorted(operations - words) == ["close"]


def test_every_command_is_on_the_page_of_commands() -> None:
    shown = re.findall(r"^```\{command-help\} (.+)$", page("commands.md"), re.M)
    assert sorted(shown) == sorted(["rankwise", *COMMANDS, "python -m rankwise.testing.conformance"])


def test_every_variable_is_described_once() -> None:
    shown = re.findall(r"^(RANKWISE_\w+)$", page("variables.md"), re.M)
    known = re.findall(r"^(RANKWISE_\w+) ", inspect.cleandoc(Settings.__doc__ or ""), re.M)
    read_in_code = re.findall(r'"(RANKWISE_\w+)"', inspect.getsource(sys.modules[Settings.__module__]))
    assert set(read_in_code) <= set(known)
    assert sorted(shown) == sorted(known)


def test_every_error_has_a_section() -> None:
    errors = {name for name in rw.__all__ if inspect.isclass(getattr(rw, name)) and name.endswith(("Error", "Timeout"))}
    assert errors | {"BackendUnavailable"} == set(re.findall(r"^## (\w+)$", page("errors.md"), re.M))


ERRORS = read("docs/reference/errors.md")
TRANSCRIPTS = [s for s in ERRORS if s.language == "console" and s.text.startswith("$ ")]


def comparable(line: str) -> str:
    """A line of a failed job without what differs each time: folders, pids, the host, durations, who was first, and
    whether the others had ended too by then.
    """
    line = re.sub(r"[^ \"]*/(\w+\.py)", r"\1", line)
    line = re.sub(r"\(pid \d+( on \S+)?\)", "(pid)", line)
    return re.sub(r"for \d+\.\d s|seen by rank \d|^rankwise: rank \d|; [^;]* w(as|ere) ended$", "", line)


def test_three_errors_have_programs() -> None:
    assert len(TRANSCRIPTS) == 3


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda s: s.text.split()[5])
def test_a_program_fails_as_the_page_shows(transcript: Snippet, tmp_path: Path) -> None:
    write_files((s for s in ERRORS if s.language == "python" and file_name(s)), tmp_path)
    command, *shown = transcript.text.splitlines()
    words = command.removeprefix("$ rankwise ").split()
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", *words], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0
    # The lines about the trace and about equal tracebacks depend on the moment.
    expected = [comparable(line) for line in shown if not re.match("rankwise: the (same|last)", line)]
    printed = [comparable(line) for line in done.stderr.splitlines()]
    assert [line for line in expected if line not in printed] == [], done.stderr


def test_the_extension_marks_up_a_docstring() -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed; `make docs` installs it")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        extension = importlib.import_module("rankwise_docs")
    finally:
        sys.path.pop(0)
    assert set(extension.variables()) >= {"RANKWISE_BACKEND", "RANKWISE_TCL_PYTHON"}

    def function(x: int, tag: Any) -> None: ...

    lines = ["The sum of *xs.", "", "Order: any, as `*tag`.", "", "    a = 1", ""]
    lines += ["Args:", "    x: a number.", "    tag: its tag.", "", "Example:", "    >>> tag * 1"]
    extension.readable(None, "function", "function", function, None, lines)
    assert lines == [
        *("The sum of \\*xs.", "", "**Order**: any, as `*tag`.", "", "::", "", "    a = 1", ""),
        *(":type x: int", ":param x: a number.", ":param tag: its tag.", ""),
        *(".. rubric:: Example", "", ">>> tag * 1", ""),
    ]
