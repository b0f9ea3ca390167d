"""Everyday tasks, each in ten lines at most, with what the guides show and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ONE_TABLE = """
import numpy as np
import rankwise as rw
group = rw.init()
table = group.share(np.arange(100_000.0) if group.rank == 0 else None)
rows = np.array_split(table, group.world_size)[group.rank]
print(group.all_reduce(rows.sum()))
"""

FARM = """
import rankwise as rw
def solve(task):
    return sum(range(task))
group = rw.init()
results = group.map(solve, range(40) if group.rank == 0 else None)
if group.rank == 0:
    print(sum(results))
"""

SAME_HOST = """
import rankwise as rw
group = rw.init()
local = group.split_local()
print(f"local rank {local.rank} of {local.world_size}, sum {local.all_reduce(group.rank)}")
"""

NOTEBOOK = """
import numpy as np
import rankwise as rw
def load(rows):
    group = rw.init()
    rw.local.part = np.array_split(np.arange(rows), group.world_size)[group.rank]
def total():
    return int(rw.init().all_reduce(rw.local.part.sum()))
pool = rw.Pool(3)
pool.run(load, 1000)
print(pool.run(total))
"""

RUN = ["-m", "rankwise", "run", "-n", "3"]
TASKS = {
    "one large table per host": (ONE_TABLE, RUN, ["4999950000.0"] * 3),
    "a task farm": (FARM, RUN, ["9880"]),
    "the ranks of this host": (SAME_HOST, RUN, [f"local rank {rank} of 3, sum 3" for rank in range(3)]),
    "cells whose data stays on the ranks": (NOTEBOOK, [], ["[499500, 499500, 499500]"]),
}


@pytest.mark.parametrize("task", TASKS)
def test_ten_lines_do_it(task: str, tmp_path: Path) -> None:
    program, launcher, printed = TASKS[task]
    assert len(program.strip().splitlines()) <= 10
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run([sys.executable, *launcher, file], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == printed
