"""docs/reference/tcl.md: the reference matches the command table, examples print what they claim, commands run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.topics import TOPICS
from rankwise.frontends.tcl.training_commands import TRAINING

pytestmark = pytest.mark.usefixtures("in_python")

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "reference" / "tcl.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(tcl|bash)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
TCL = [text for language, text in BLOCKS if language == "tcl"]


def outputs(text: str) -> list[str]:
    return [line.removeprefix("# Output: ") for line in text.splitlines() if line.startswith("# Output: ")]


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return import_module("tcl_reference")


def test_the_reference_matches_the_command_table(maker: ModuleType) -> None:
    first = "## Parameters of many commands"
    written = TEXT.partition(f"\n{first}\n")[2]
    assert f"{first}\n" + written.rstrip() == maker.reference(COMMANDS).rstrip(), (
        "python docs/tcl_reference.py prints it anew"
    )
    assert sorted(name for _, names in TOPICS.values() for name in names) == sorted(COMMANDS)


def test_every_command_has_an_example_with_its_output() -> None:
    for command in COMMANDS.values():
        assert command.example
        assert f"torch::{command.name}" in command.example
        assert outputs(command.example) or command.name in ("help", "tensor_delete")


@pytest.mark.parametrize("text", TCL, ids=lambda text: text.splitlines()[0][:60])
def test_example(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from rankwise.frontends.tcl.interpreter import Interpreter

    if set(re.findall(r"torch::(\w+)", text)) & {command.name for command in TRAINING}:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    interpreter = Interpreter()
    interpreter.eval(text)
    interpreter.close()
    printed = capfd.readouterr().out.splitlines()
    if "torch::help" not in text:
        assert printed == outputs(text)
    else:
        assert printed[0] == COMMANDS["distributed_gather"].what


@pytest.mark.slow  # test_tclsh.py and test_stock.py start scripts in these ways too
@pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no tclsh")
def test_the_shell_commands(tmp_path: Path) -> None:
    hello = next(text for text in TCL if text.startswith("# hello.tcl\n"))
    (tmp_path / "hello.tcl").write_text(hello)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
    assert len(commands) == 5
    for command in commands:
        bash = ["bash", "-euo", "pipefail", "-c", command]
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(bash, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), command
        found = re.search(r"run -n (\d)", command)
        n = int(found[1]) if found else 1
        total = float(n * (n - 1) // 2)
        if "libtorchtcl" in command:
            assert done.stdout == "0\n"
        else:
            lines = [f"rank {rank} of {n}: {total} {total}" for rank in range(n)]
            assert sorted(done.stdout.splitlines()) == lines
