"""The `rankwise` command itself: help, version, unknown words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import in_process
import rankwise


def test_help_names_every_command_and_shows_examples(capfd: pytest.CaptureFixture[str]) -> None:
    from rankwise.tools.cli import COMMANDS

    for words in ([], ["--help"]):
        done = in_process.rankwise(capfd, *words)
        assert done.returncode == 0
        assert "examples:" in done.stdout
        for name, (_, what) in COMMANDS.items():
            assert name in done.stdout
            assert what in done.stdout


@pytest.mark.parametrize("name", ["run", "doctor"])
def test_help_of_a_command_shows_examples(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = in_process.rankwise(capfd, name, "--help")
    assert done.returncode == 0
    assert f"rankwise {name}" in done.stdout.split("examples:")[1]


@pytest.mark.parametrize("words", [["--version"], ["status", "--json"]])
def test_a_closed_output_pipe_is_not_an_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "rankwise", *words], stdout=out, stderr=subprocess.PIPE, text=True, timeout=150
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("words", [["fly"], ["--fly"], ["fly", "-n", "2"]])
def test_an_unknown_word_is_an_error_of_one_line(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    done = in_process.rankwise(capfd, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("rankwise: error: ")
    assert "fly" in done.stderr


def test_the_command_that_was_probably_meant(capfd: pytest.CaptureFixture[str]) -> None:
    done = in_process.rankwise(capfd, "runn", "-n", "2", "x.py")
    assert done.stderr == "rankwise: error: unknown command 'runn': did you mean run? (see rankwise --help)\n"


@pytest.mark.parametrize("module", ["rankwise", "rankwise.tools"])
def test_version(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (0, f"rankwise {rankwise.__version__}\n")


def test_the_launcher_imports_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; from rankwise.tools.cli import main; code = main(['run', '-n', '1', '--backend', 'shm', 'true']); "
        "sys.exit(code or sorted({'numpy', 'torch', 'ml_dtypes', 'cloudpickle'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
