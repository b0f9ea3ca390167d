"""Arrays that the ranks of a host share are registered memory, which is freed with their last view on any rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.contract.errors import PeerLostError, UnsupportedError
from rankwise.group.group import Group
from rankwise.testing import RanksFailed, run_ranks

FORCED = "all_reduce=registered,reduce_scatter=registered,all_to_all=registered"
SIZE = 8 << 20
both = pytest.mark.parametrize("backend", ["threads", "shm"])

PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import rankwise as rw
from test_shared_blocks import in_place
in_place(rw.init())
"""


def registered(group: Group, array: Any) -> bool:
    comm: Any = group.comm
    return bool(comm._comm.in_segment(array.ctypes.data, array.nbytes))


def arrays(group: Group) -> int:
    """How many arrays of SIZE bytes have memory in the segment now."""
    comm: Any = group.comm
    return round(os.fstat(comm._comm.segment.fd).st_blocks * 512 / SIZE)


def in_place(group: Group) -> None:
    """Every algorithm is forced to work in registered memory."""
    n, me = group.world_size, group.rank
    x, out = group.shared_zeros((n, n, 5000))[me], group.shared_zeros((n, n, 5000))[me]
    x[:] = me
    group.all_to_all(x, out=out)
    assert (out == np.arange(n)[:, None]).all()
    group.all_reduce(x)
    assert (x == sum(range(n))).all()
    table = group.share(np.arange(n * 5000.0).reshape(n, 5000) if me == 1 else None, 1)
    group.reduce_scatter(table, out=out[:1])
    assert (out[0] == n * table[me]).all()
    with pytest.raises(UnsupportedError, match="registered buffers"):
        group.all_reduce(np.ones(5000))


@pytest.mark.parametrize("n", [2, 3])
def test_collectives_of_threads_work_in_place(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_ALGORITHM", FORCED)
    run_ranks(in_place, n, backend="threads")


def test_collectives_of_processes_work_in_place(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "-n", "3", str(program)],
        env=os.environ | {"RANKWISE_ALGORITHM": FORCED}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@both
@pytest.mark.parametrize("n", [2, 3])
def test_a_view_that_one_rank_has_dropped(backend: str, n: int) -> None:
    def ranks(group: Group) -> None:
        before = arrays(group)
        x = group.shared_zeros((n, SIZE // n), np.uint8)
        assert registered(group, x)
        mine = group.empty(SIZE // n, np.uint8) if group.rank == 0 else x[group.rank]
        del x
        group.barrier()
        for _ in range(5):
            mine[:] = group.rank + 1
            assert (group.all_reduce(mine) == sum(range(n + 1))).all()
        work = group.all_reduce(mine, async_op=True)
        del mine
        assert (work.wait() == sum(range(n + 1)) * n).all()
        del work
        group.barrier()
        assert arrays(group) <= before + 1  # freed, but for the buffer that rank 0 keeps for the next group.empty
        group.barrier()

    run_ranks(ranks, n, backend=backend)


@both
def test_it_is_freed_with_the_last_view(backend: str) -> None:
    def ranks(group: Group) -> None:
        given = np.ones(SIZE, np.uint8) if group.rank == 0 else None
        before = arrays(group)
        for last in range(2):
            part = group.dup()
            table, field = part.share(given), part.shared_zeros(SIZE, np.uint8)
            part.barrier()
            part.close()
            if group.rank != last:
                del table, field
                group.barrier()
            else:
                group.barrier()
                assert arrays(group) == before + 2
                view = table[SIZE // 2 :]
                del table, field
                assert arrays(group) == before + 1
                assert view.all()
                del view
                assert arrays(group) == before
            group.barrier()

    run_ranks(ranks, 2, backend=backend)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        before = arrays(group)
        table = group.share(torch.ones(SIZE, dtype=torch.uint8))
        field = group.shared_zeros(SIZE, torch.uint8)
        group.barrier()
        assert arrays(group) == before + 2
        group.barrier()
        assert registered(group, field.numpy())
        assert not registered(group, table.numpy())  # a private mapping
        table += group.rank
        assert (table == 1 + group.rank).all()
        del table, field
        group.barrier()
        assert arrays(group) == before
        group.barrier()

    run_ranks(ranks, 2, backend="threads")


@pytest.mark.parametrize(("dropped", "recovers"), [("after", False), ("after", True), ("before", True)])
def test_a_rank_that_dies_holding_it(dropped: str, recovers: bool) -> None:
    def ranks(group: Group) -> None:
        before = arrays(group)
        field = group.shared_zeros(SIZE, np.uint8)
        field[group.rank] = 1
        group.barrier()
        assert arrays(group) == before + 1
        if dropped == "before" and group.rank != 1:
            del field
        group.all_gather_object(None)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError):
            group.barrier()
        survivors = group.shrink() if recovers else None
        if dropped == "after":
            assert field[:3].tolist() == [1, 1, 1]
            del field
        if survivors is not None:
            survivors.barrier()
        end = time.monotonic() + 20
        while arrays(group) > before and time.monotonic() < end:
            time.sleep(0.01)
        assert arrays(group) == before

    with pytest.raises(RanksFailed) as caught:
        run_ranks(ranks, 3, backend="shm")
    assert set(caught.value.failures) == {1}, caught.value
