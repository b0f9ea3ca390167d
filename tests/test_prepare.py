"""prepare.sh finds what a machine lacks, names the commands that install it, and recreates environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = Path(__file__).resolve().parents[1] / "prepare.sh"
USED = ("sh", "uname", "ls", "mktemp", "rm")  # the programs that prepare.sh needs in any case


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The PATH of a machine with nothing on it, and of a user who is not root."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in USED:
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    add(programs, "id", "echo 1000")
    return programs


def add(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    (programs / name).chmod(0o755)


def python_without(programs: Path, *words: str) -> None:
    """A python3 that fails where its program names one of these words."""
    add(programs, "python3", f'case "$*" in {"|".join(f"*{word}*" for word in words)}) exit 1;; esac\n{real_python()}')


def real_python() -> str:
    return f'exec {sys.executable} "$@"'


def prepare(programs: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(programs), **variables}
    return subprocess.run([str(PREPARE), *words], env=environment, capture_output=True, text=True, timeout=60)


def test_a_bare_machine_gets_one_command_for_each_system(machine: Path) -> None:
    done = prepare(machine, "build")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "Missing: Python, a C++ compiler.",
        "  Debian, Ubuntu:  sudo apt-get install python3 python3-venv python3-dev g++",
        "  Fedora:          sudo dnf install python3-devel gcc-c++",
    ]
    assert "run make again" in done.stderr


def test_venv_and_headers_are_looked_for(machine: Path) -> None:
    python_without(machine, "ensurepip", "Python.h")
    add(machine, "c++", "exit 0")
    done = prepare(machine, "build")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "Missing: Python's venv, Python's headers."
    assert "-venv" in lines[1]
    assert "-dev" in lines[1]


def test_a_complete_machine_gets_no_output(machine: Path) -> None:
    add(machine, "python3", real_python())
    add(machine, "c++", "exit 0")
    done = prepare(machine, "build", MAKE_VERSION="4.3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MAKE_VERSION": "3.81"}, "it needs GNU make 4.0 or later, and this is 3.81"),
        ({"PYTHON": "python3.99"}, "there is no python3.99"),
        ({"CXX": "g++-99"}, "there is no g++-99, which CXX names"),
        ({"CXX": "old-c++"}, "old-c++ has no C++20"),
        ({"PYTHON": "old-python"}, "it needs Python 3.10 or later, and this is Python 3.9"),
        ({"PYTHON": "small-python"}, "it needs a 64-bit Linux"),
    ],
)
def test_tools_that_are_too_old_are_refused_by_name(machine: Path, variables: dict[str, str], said: str) -> None:
    add(machine, "python3", real_python())
    add(machine, "c++", "exit 0")
    add(machine, "old-c++", "exit 1")
    add(machine, "old-python", 'case "$1" in -V) echo Python 3.9;; *) exit 1;; esac')
    add(machine, "small-python", f'case "$*" in *maxsize*) exit 1;; esac\n{real_python()}')
    done = prepare(machine, "build", **variables)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"rankwise cannot be built here: {said}")
    assert done.stderr.count("\n") == 1


def test_missing_test_tools_are_named_and_do_not_stop_the_tests(machine: Path) -> None:
    add(machine, "python3", real_python())
    add(machine, "c++", "exit 1")
    done = prepare(machine, "tests")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "git, tclsh, ip and tc, unshare, musl-gcc, the model checker spin, eu-stack, the compiler's thread sanitizer"
        in done.stdout
    )
    assert " git tcl iproute2 util-linux musl-tools spin elfutils g++" in done.stdout


@pytest.mark.slow  # makes an environment, with pip
def test_a_half_made_environment_is_made_again(machine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    add(folder / "bin", "python", "exit 1")  # as one without pip
    add(machine, "python3", real_python())
    assert prepare(machine, "environment", str(folder)).returncode == 0
    subprocess.run([folder / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True)
    (folder / "kept").touch()
    again = prepare(machine, "environment", str(folder))
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert (folder / "kept").exists()


def test_a_folder_that_is_not_an_environment_is_left_alone(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    done = prepare(machine, "environment", str(tmp_path / "mine"))
    assert done.returncode == 1
    assert "is no environment of Python" in done.stderr
    assert os.listdir(tmp_path / "mine") == ["letter"]
