"""The examples in C and Fortran give the same results alone, on several ranks, and next to Python ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from compilers import compiled, run, run_mixed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# What the odd ranks do in Python; numbers, dtypes and the order of the calls are those of the example.
HEAT = """
import numpy as np, rankwise as rw
group = rw.init()
cells, last = np.zeros(1002), group.world_size - 1
for step in range(2000):
    works = [group.isend(cells[1:2].copy(), group.rank - 1, tag=0)]
    works += [group.isend(cells[1000:1001].copy(), group.rank + 1, tag=1)] if group.rank < last else []
    group.recv(cells[0:1], group.rank - 1, tag=1)
    if group.rank < last:
        group.recv(cells[1001:1002], group.rank + 1, tag=0)
    rw.wait_all(works)
    change = 0.25 * (cells[:-2] - 2 * cells[1:-1] + cells[2:])
    before, cells[1:-1] = cells[1:-1].copy(), cells[1:-1] + change
heat = np.zeros(1)
for cell in cells[1:-1]:
    heat += cell
group.all_reduce(heat)
group.all_reduce(np.abs(cells[1:-1] - before).max(keepdims=True), "max")
"""
POWER = """
import numpy as np, rankwise as rw
group = rw.init()
n = 8 * group.world_size
rows = 1 / (8 * group.rank + np.arange(1, 9)[:, None] + np.arange(n)[None, :])
x = np.ones(n)
for step in range(20):
    x = group.all_gather(rows @ x).reshape(n)
    x /= np.linalg.norm(x)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.mark.parametrize(
    ("name", "script", "alone", "four"),
    [
        ("native/heat.c", HEAT, "heat 2473.6055748749, largest change in the last step 1.210e-02\n", None),
        ("native/power.F90", POWER, "largest eigenvalue 1.6959389969\n", "largest eigenvalue 1.9984348115\n"),
    ],
)
def test_an_example(name: str, script: str, alone: str, four: str | None, folder: Path) -> None:
    program = compiled(EXAMPLES / name, folder)
    single = subprocess.run([program], capture_output=True, text=True, timeout=100)
    assert (single.returncode, single.stdout.splitlines(True)[0]) == (0, alone), single.stderr
    for done in (run(4, program), run_mixed(4, program, script)):
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines(True)[0] == (four or alone)
