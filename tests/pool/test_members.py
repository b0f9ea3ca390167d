"""`rw.Pool(group=group)`: rank 0 calls, and the other ranks of a job serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpi_launchers
import rankwise as rw
from rankwise.testing import run_ranks

PROGRAM = """\
import sys
import numpy as np
import rankwise as rw

def load(scale):
    rw.local.part = np.full(1 << 16, scale * (rw.init().rank + 1))

def total():
    return rw.init().all_reduce(rw.local.part.copy())

group = rw.init()
with rw.Pool(group=group) as pool:
    if pool is not None:
        pool.run(load, 10)
        print([x[0] for x in pool.run(total)], sum(pool.map(abs, range(-100, 0), chunksize=7)), flush=True)
        print(pool.n, pool.submit(np.ones, 1 << 18).result().sum(), flush=True)
total = group.all_reduce(1)
if group.rank == 0:
    print("afterwards", total, flush=True)
"""
EXPECTED = ["2 262144.0", "[30, 30] 5050", "afterwards 3"]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.replace("np.int64(30)", "30").splitlines())


def test_under_rankwise_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "3", str(tmp_path / "program.py")]
    assert lines(subprocess.run(command, capture_output=True, text=True, timeout=100)) == EXPECTED


@pytest.mark.parametrize("launcher", mpi_launchers.LAUNCHERS)
@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_under_mpiexec(tmp_path: Path, launcher: str, backend: str) -> None:
    programs = mpi_launchers.programs(launcher)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mpi_launchers.run(programs, 3, str(tmp_path / "program.py"), timeout=100, RANKWISE_BACKEND=backend)
    assert lines(done) == EXPECTED


def fails_on(rank: int) -> None:
    group = rw.init()
    if group.rank == rank:
        raise LookupError("on purpose")
    group.barrier()


def total() -> int:
    return rw.init().all_reduce(1)


def keep(value: int) -> None:
    rw.local.kept = value + rw.init().rank


def kept() -> int:
    value: int = rw.local.kept
    return value


def test_calls_tasks_and_errors() -> None:
    def body(group: rw.Group) -> object:
        with rw.Pool(group=group, timeout=30) as pool:
            if pool is None:
                return rw.init() is group
            pool.run(keep, 5)
            with pytest.raises(LookupError, match="on purpose") as caught:
                pool.run(fails_on, 1)
            assert "rank 1:\nTraceback" in str(caught.value.__cause__)
            assert pool.run(total) == [2, 2]
            with pytest.raises(ZeroDivisionError):
                pool.submit(divmod, 1, 0).result()
            np.testing.assert_array_equal(pool.submit(np.arange, 100000).result(), np.arange(100000))
            late = [pool.submit(abs, number) for number in range(20)]
            assert pool.run(kept) == [5, 6]
            assert [future.result() for future in late] == list(range(20))
        with pytest.raises(rw.ClosedError, match="has been shut down"):
            pool.run(total)
        return group.world_size

    assert run_ranks(body, 3) == [3, True, True]


def test_only_rank_0_calls() -> None:
    def body(group: rw.Group) -> tuple[str, bool]:
        pool = rw.Pool(group=group)
        said = ""
        if group.rank == 1:
            with pytest.raises(rw.ClosedError, match="this rank serves the pool of rank 0") as caught:
                pool.submit(total)
            said = str(caught.value)
        with pool as entered:
            return said, entered is pool

    assert [entered for _, entered in run_ranks(body, 2)] == [True, False]


def test_a_rank_that_is_stopped_holds_up_only_its_own_task() -> None:
    def body(group: rw.Group) -> None:
        with rw.Pool(group=group, timeout=30) as pool:
            if pool is not None:
                stopped = pool.submit(os.getpid).result()  # the first free rank, as for the next task
                os.kill(stopped, signal.SIGSTOP)
                late = pool.submit(np.sum, np.ones(1 << 20))
                try:
                    assert pool.submit(os.getpid).result(50) != stopped
                    assert not late.done()
                finally:
                    os.kill(stopped, signal.SIGCONT)
                assert late.result() == 1 << 20

    run_ranks(body, 3, backend="shm")


def test_a_group_of_one_rank_has_nobody_to_call() -> None:
    with pytest.raises(rw.testing.RanksFailed, match="ValueError: group: it has one rank"):
        run_ranks(lambda group: rw.Pool(group=group), 1)


def test_the_pool_ends_with_a_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nimport rankwise as rw\ngroup = rw.init()\n"
        "with rw.Pool(group=group) as pool:\n"
        "    if pool is not None:\n"
        "        try: pool.submit(os._exit, 5).result()\n"
        "        except rw.PeerLostError as error: print('lost', flush=True)\n"
        "        try: pool.run(abs, -1)\n"
        "        except rw.PeerLostError as error: print('ended', flush=True)\n"
    )
    command = [sys.executable, "-m", "rankwise", "run", "--keep-going", "-n", "3", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ})
    assert done.stdout.splitlines() == ["lost", "ended"], done.stderr
