"""torchrun ... -m rankwise.watch: unchanged programs on gloo get errors for hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)


def watched(folder: Path, n: int, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program on n watched ranks of torchrun. `dist` is torch.distributed, with gloo; `x` a tensor."""
    program = folder / "program.py"
    start = (
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank, x = dist.get_rank(), torch.ones(4)\n"
    )
    program.write_text(start + dedent(code) + "dist.destroy_process_group()\n")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return subprocess.run(
        [sys.executable, *command, "-m", "rankwise.watch", *options, str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.slow
def test_calls_that_match(tmp_path: Path) -> None:
    code = """
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.all_reduce(x, async_op=True).wait()
    pair = dist.new_group([1, 2])
    if rank == 1:
        dist.broadcast(x, src=1, group=pair)
    if rank == 2:
        dist.broadcast(x, group_src=0, group=pair)
    dist.destroy_process_group(pair)
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1, 2]
    if rank == 0:
        dist.send(x, 1)
    if rank == 1:
        dist.recv(x, group_src=0)
    dist.destroy_process_group()
    dist.init_process_group('gloo', init_method=f'file://{__file__}.store', rank=rank, world_size=3)
    dist.barrier()
    """
    ran = watched(tmp_path, 3, code)
    assert ran.returncode == 0, ran.stderr
    assert "rankwise" not in ran.stderr


def test_mismatch(tmp_path: Path) -> None:
    code = """
    if rank == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)
    """
    ran = watched(tmp_path, 2, code)
    assert ran.returncode != 0
    report = (
        "rankwise.watch: the ranks' calls do not match: call #1 on the default group\n"
        f"  rank 0: all_reduce(count=4, dtype=float32, op=SUM) at {tmp_path}/program.py:8\n"
        f"  rank 1: broadcast(count=4, dtype=float32, root=0) at {tmp_path}/program.py:6   <-- other operation\n"
    )
    assert report in ran.stderr


@pytest.mark.slow
def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    code = """
    if rank == 1:
        time.sleep(120)
    dist.all_reduce(x)
    """
    ran = watched(tmp_path, 2, code, "--timeout", "8", "--abort")
    assert ran.returncode != 0
    assert re.search(r"rank 0 has been in all_reduce\(.*\) #1 on the default group at .*/program.py:7 for", ran.stderr)
    assert re.search(
        r"  rank 1: in no call for .* s; its last was init_process_group\(\) at .*/program.py:2\n", ran.stderr
    )
    assert re.search(rf'stack of rank 1:\n  File "{tmp_path}/program.py", line 6, in <module>\n', ran.stderr)
