"""What the functions that a pool calls, and the program that calls it, may do without harm to the pool."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

import hostile
import rankwise as rw

RANKS = 2


@pytest.fixture(scope="module")
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(RANKS, timeout=60) as pool:
        yield pool


def test_whatever_the_methods_of_an_error_or_a_result_raise_the_rank_stays(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    for kind in hostile.KINDS:
        with pytest.raises(rw.RankwiseError, match=r"rank \d raised Full: disk is full"):
            pool.submit(hostile.fails, hostile.Full, kind).result(60)
        with pytest.raises(rw.RankwiseError, match=r"rank \d raised Unshowable, which cannot be shown") as caught:
            pool.run(hostile.fails, hostile.Unshowable, kind)
        assert "raise error(kind)" in str(caught.value.__cause__)
        with pytest.raises(TypeError, match="the result of fn, Full, cannot be sent back: "):
            pool.submit(hostile.gives, kind).result(60)
    with pytest.raises(hostile.Frozen, match="disk is full"):
        pool.submit(hostile.fails_frozen).result(60)
    with pytest.raises(TypeError, match="cannot be sent to other processes: RuntimeError"):
        pool.submit(id, hostile.Full(RuntimeError))
    assert pool.run(os.getpid) == pids


def raises_a_group() -> None:
    raise ExceptionGroup("both disks", [hostile.Full(RuntimeError), ValueError("bad")])  # noqa: F821


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has exception groups from 3.11 on")
def test_a_group_of_errors_is_named(pool: rw.Pool) -> None:
    with pytest.raises(rw.RankwiseError, match=r"rank \d raised ExceptionGroup: both disks \(2 sub-exceptions\)"):
        pool.submit(raises_a_group).result(60)


def forks(kind: str) -> int:
    """The exit status of a child that leaves the task in this way."""
    pid = os.fork()
    if pid == 0:
        if kind == "exit":
            sys.exit(5)
        if kind == "raise":
            raise ValueError("in the child")
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def total() -> int:
    return int(rw.init().all_reduce(1))


@pytest.mark.filterwarnings("ignore:threads=True", "ignore:This process")
@pytest.mark.parametrize("threads", [False, True])
def test_a_child_that_a_call_forks_ends_as_the_call_does(threads: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with rw.Pool(RANKS, timeout=60, threads=threads) as pool:
        for kind, status in (("exit", 5), ("raise", 1), ("return", 0)):
            assert pool.submit(forks, kind).result(60) == status
            assert pool.run(forks, kind) == [status] * RANKS
            assert pool.run(total) == [RANKS] * RANKS
    assert "ValueError: in the child" in capfd.readouterr().err
