"""tests/parts.py runs the parts by make, and ends with their times, the failures, and what was not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = Path(__file__).with_name("parts.py")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A make that runs nothing: its model lacks a program, its faults fail."""
    program = tmp_path / "make"
    program.write_text("""#!/bin/sh
echo "running $2"
case $2 in
    test-model) echo "not tested: the model: there is no spin";;
    test-faults) exit 2;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def parts(*words: str) -> tuple[int, str, list[str]]:
    """Exit status, what the parts printed, and the last lines."""
    done = subprocess.run([sys.executable, str(PARTS), *words], capture_output=True, text=True, timeout=150)
    assert done.stderr == ""
    printed, _, end = done.stdout.rpartition(" minutes\n")
    return done.returncode, printed, end.splitlines()


@pytest.mark.usefixtures("make")
def test_the_summary_lists_times_and_skipped_tests() -> None:
    code, printed, end = parts("test")
    assert code == 0
    assert "running test-native" in printed
    assert [line.split()[0] for line in end[:-1]] == ["test-native", "test-model", "test-python"]
    assert all(line.endswith(" s  passed") for line in end[:-1])
    assert end[-1] == "not tested: the model: there is no spin"


@pytest.mark.usefixtures("make")
def test_a_failing_part_does_not_stop_the_others_and_is_named_last() -> None:
    code, printed, end = parts("all")
    assert code == 1
    assert "running test-torch-suite" in printed
    assert end[-1] == "failed: test-faults; make test-faults runs one of them alone"
