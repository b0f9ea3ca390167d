"""A rank whose interpreter ends while another rank has requested its Python stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Rank 0 waits in vain and requests rank 1's stack. Rank 1 is still making it when its main thread ends.
PROGRAM = """
import time
import rankwise as rw
from rankwise.contract import stacks

class Lingering:  # keeps the interpreter in its shutdown for a second
    def __del__(self, sleep=time.sleep):
        sleep(1)

lingering = Lingering()
requested = []

def endless():
    requested.append(True)
    while True:  # until this thread must stop, because the interpreter has begun its shutdown
        pass

group = rw.init()
if group.rank == 1:
    stacks.all_threads = endless
    while not requested:
        time.sleep(0.01)
    print("ends normally", flush=True)
else:
    group.barrier()
"""


@pytest.mark.slow
def test_it_ends_normally(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--timeout", "1", "--trace", "none"]
    done = subprocess.run([*command, tmp_path / "program.py"], capture_output=True, text=True, timeout=100)
    assert done.stdout == "ends normally\n"
    assert "Fatal Python error" not in done.stderr
    assert done.returncode == 1
    assert "SIGABRT" not in done.stderr.splitlines()[-1]
