"""`rankwise run --registered`: NumPy's arrays lie in registered memory, and a fork says that it shares them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHERE = """
import asyncio
import numpy as np
import rankwise as rw
before = np.ones(1000)
group = rw.init()
inside = lambda x: group.comm._comm.in_segment(x.__array_interface__["data"][0], x.nbytes)
async def task():
    return np.zeros(1000)
made = [np.ones(1000), np.arange(600.0) + 1, np.concatenate([before, before]), asyncio.run(task())]
print(inside(before), [inside(x) for x in made], inside(np.ones(10)), float(group.all_reduce(made[0])[0]))
group.close()
print(np.ones(5000).sum())
"""

FORK = """
import os, warnings
import numpy as np
import rankwise as rw
group = rw.init()
x = np.ones(5000)
for _ in range(2):
    if not (pid := os.fork()):
        x[0] += 1
        y = np.full(5000, 2.0)  # ordinary memory
        del x
        os._exit(int(y.sum()) != 10000)
    print("child", os.waitpid(pid, 0)[1])
print("shared", x[0], group.all_reduce(x)[1])
"""


def run(program: str, folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", *options, str(file)]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=100, check=False
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "variables", "registered"),
    [(["--registered"], {}, True), ([], {"RANKWISE_REGISTERED": "1"}, True), ([], {}, False)],
)
def test_arrays_after_init(tmp_path: Path, options: list[str], variables: dict[str, str], registered: bool) -> None:
    done = run(WHERE, tmp_path, *options, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["5000.0"] * 2 + [f"False {[registered] * 4} False 2.0"] * 2


def test_another_backend_has_ordinary_arrays(tmp_path: Path) -> None:
    program = "import numpy as np, rankwise as rw\nprint(rw.init('solo').all_reduce(np.ones(1000)).sum())"
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = os.environ | {"RANKWISE_REGISTERED": "1"}
    done = subprocess.run(
        [sys.executable, file], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000.0\n", "")


def test_a_fork_shares_the_arrays_and_warns_once(tmp_path: Path) -> None:
    done = run(FORK, tmp_path, "--registered")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["child 0"] * 4 + ["shared 3.0 2.0"] * 2
    assert done.stderr.count("RuntimeWarning: a fork of a program whose arrays are in registered memory") == 2
    assert "program.py:8: RuntimeWarning" in done.stderr
