"""python -m rankwise.testing.conformance."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rankwise.testing.conformance import main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise.testing.conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("backend", [pytest.param("threads", marks=pytest.mark.slow), "shm"])
def test_the_table(backend: str) -> None:
    ran = run("--backend", backend, "-n", "2", "--operation", "all_reduce", "--operation", "gather")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    mean = next(line for line in lines if line.startswith("all_reduce mean"))
    assert mean.split()[2:6] == ["ok"] * 4
    assert "-" in mean.split()
    assert sum(line.startswith("gather") for line in lines) == 2
    assert re.fullmatch(r"\d+ cases, 0 scenarios, 0 failures", lines[-1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "smh"], "smh"),
        (["-n", "0"], "-n 0: expected at least 1 rank"),
        (["--backend", "solo", "-n", "2"], "-n 2: expected 1 rank"),
        (["--operation", "allreduce"], "allreduce"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
