"""tests/steady.py finds the tests that a change adds, and runs them many times on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import steady
from leftovers import started_processes

TWO = """import os
import pytest

SHARED = 3


def test_one():
    assert SHARED == 3


@pytest.mark.slow
@pytest.mark.parametrize("x", [1, 2])
def test_two(x):
    two = 2
    assert x < SHARED
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the file TWO, as tests/test_two.py."""
    for name in ("tests", "native/tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tests/test_two.py").write_text(TWO)
    (tmp_path / "native/tests/heap_test.cpp").write_text("int main() {}\n")
    (tmp_path / "native/tests/check.hpp").write_text("#pragma once\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        author = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(steady, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "tests"),
    [
        ("x < SHARED", "x < SHARED + 1", ["tests/test_two.py::test_two"]),
        ("[1, 2]", "[1, 2, 2]", ["tests/test_two.py::test_two"]),  # a decorator is part of its test
        ("    two = 2\n", "", ["tests/test_two.py::test_two"]),  # lines that go are a change too
        ("@pytest.mark.slow\n", "", ["tests/test_two.py::test_two"]),  # as a mark that goes
        ("import os\n", "import sys\n", []),
        ("SHARED = 3", "SHARED = 3.0", ["tests/test_two.py"]),  # which any of the tests may use
        ("SHARED == 3\n", "SHARED == 3\n\n\ndef test_new():\n    assert True\n", ["tests/test_two.py::test_new"]),
    ],
)
def test_the_tests_of_a_change(checkout: Path, old: str, new: str, tests: list[str]) -> None:
    assert steady.changed_tests("HEAD") == []
    (checkout / "tests/test_two.py").write_text(TWO.replace(old, new))
    assert steady.changed_tests("HEAD") == tests


def test_new_files_and_native_tests(checkout: Path) -> None:
    (checkout / "tests/test_three.py").write_text("def test_three():\n    assert True\n")
    (checkout / "tests/shared.py").write_text("THREE = 3\n")
    (checkout / "native/tests/heap_test.cpp").write_text("int main() { return 0; }\n")
    (checkout / "native/tests/check.hpp").write_text("#pragma once\n#include <vector>\n")
    assert steady.changed_tests("HEAD") == ["native/tests/heap_test.cpp", "tests/test_three.py::test_three"]


@pytest.mark.parametrize(("limit", "passed"), [(9, True), (3, False)])
def test_each_test_runs_many_times(tmp_path: Path, limit: int, passed: bool, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    file = tmp_path / "test_made_up.py"
    file.write_text(
        f"def test_made_up():\n    with open({str(log)!r}, 'a+') as log:\n"
        f"        log.write('.')\n        assert log.tell() < {limit}\n"
    )
    assert steady.run_python([str(file)], 5) is passed
    assert log.read_text() == "....."
    assert ("5 passed" if passed else "3 failed, 2 passed") in capfd.readouterr().out


def test_slow_tests_are_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_made_up.py"
    file.write_text("import pytest\n\n@pytest.mark.slow\ndef test_made_up():\n    assert False\n")
    assert steady.run_python([str(file)], 5)
    assert "not tested: every one of these tests is marked slow" in capfd.readouterr().out


def test_the_cores_are_busy_meanwhile() -> None:
    before = started_processes()
    with steady.busy_cores():
        loops = {pid for pid, command in started_processes().items() if "getppid" in command} - set(before)
        assert len(loops) == len(os.sched_getaffinity(0))
    assert not loops & set(started_processes())


def test_the_loops_end_with_a_killed_parent() -> None:
    """Else the check for processes that were left behind, at the end of this file, would find them."""
    program = "import steady, os, signal\nwith steady.busy_cores():\n    os.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
