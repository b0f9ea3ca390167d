"""Programs of benchmarks/, started as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files; its path is short enough for a socket's, which pytest's own folder is not."""
    with TemporaryDirectory(dir="/tmp", prefix="rw-") as name:
        yield Path(name)


@pytest.fixture
def start(folder: Path) -> Start:
    """start("compare.py", *words): the program with these arguments, its temporary files in `folder`."""

    def started(program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(BENCHMARKS / program), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )

    return started
