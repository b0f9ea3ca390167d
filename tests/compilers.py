"""Compiles programs against librankwise, as users do, and runs them as ranks, alone or next to Python ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise

COMPILERS = {".c": ("cc", "gcc"), ".F90": ("gfortran", "gfortran")}
"""By the suffix of a source: the compiler, and the package to install."""

STANDARD = {".c": "-std=c99", ".F90": "-std=f2008"}


def compiler_for(suffix: str) -> str:
    """The compiler, or the test is skipped."""
    command, package = COMPILERS[suffix]
    if shutil.which(command) is None:
        pytest.skip(f"there is no {command}; apt install {package}")
    return command


def compiled(source: Path, folder: Path, *options: str) -> Path:
    """The program that is made of a source."""
    compiler = compiler_for(source.suffix)
    program = folder / source.stem
    lib = Path(rankwise.get_library()).parent
    strict = [STANDARD[source.suffix], "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    where = [f"-I{rankwise.get_include()}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    command = [compiler, *strict, *options, *where, str(source), "-o", str(program), "-lrankwise", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
    assert done.returncode == 0, done.stderr
    return program


def run(n: int, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as n ranks; the words of the command may use $RANKWISE_RANK if it is a shell's."""
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--timeout", "30", "--", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **variables})


def run_mixed(n: int, program: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the even ranks, and a Python script as the odd ones."""
    file = program.parent / "script.py"
    file.write_text(script)
    words = " ".join(arguments)
    branch = f"if [ $((RANKWISE_RANK % 2)) = 0 ]; then exec {program} {words}; else exec {sys.executable} {file}; fi"
    return run(n, "sh", "-c", branch)
