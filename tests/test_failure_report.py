"""tests/failure_report.py and tests/conftest.py: the report of a failed test, and of one that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each test has a process, which waits in `wait_in_vain` until the test or pytest ends.
TESTS = '''
import subprocess, sys
import pytest

WAITING = """
import os, time

def wait_in_vain(parent):
    print("waiting", flush=True)
    while os.getppid() == parent:
        time.sleep(0.05)

wait_in_vain(os.getppid())
"""

@pytest.fixture
def process():
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\\n"
    yield process
    process.kill()
    process.communicate()

def test_fails(process):
    print("what the test printed")
    said = subprocess.run([sys.executable, "-c", "print('a long ' * 200 + 'story')"], capture_output=True, text=True)
    assert said.returncode == 5

@pytest.mark.timeout(2, func_only=True)
def test_hangs(process):
    print("what the test printed")
    process.wait()
'''


def report(tmp_path: Path, name: str) -> str:
    """What pytest prints of this test, which fails."""
    (tmp_path / "test_made_up.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command += ["-p", "conftest", "-p", "no:cacheprovider", f"{tmp_path}/test_made_up.py::{name}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1, done
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["test_fails", "test_hangs"])
def test_output_stacks_and_load_are_shown(tmp_path: Path, name: str) -> None:
    shown = report(tmp_path, name)
    assert name in shown
    assert "what the test printed" in shown
    assert "2 cores; load average" in shown.replace(f"{len(os.sched_getaffinity(0))} cores", "2 cores")
    assert "py-spy is not installed" not in shown
    if "no stacks: " in shown:
        pytest.skip("this machine does not let a process read another one's memory, as py-spy does")
    assert "    wait_in_vain (<string>:7)\n" in shown  # the process that the test started
    if name == "test_fails":
        assert "a long story" in shown  # what a program has printed is not shortened
    else:
        assert "test_made_up.py::test_hangs takes more than 2 s" in shown
        assert "    test_hangs (test_made_up.py:" in shown
