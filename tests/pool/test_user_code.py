"""What the functions that a pool calls, and the program that calls it, may do without harm to the pool."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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
            pool.submit(hostile.gives, hostile.Full, kind).result(60)
    with pytest.raises(hostile.Frozen, match="disk is full"):
        pool.submit(hostile.fails_frozen).result(60)
    with pytest.raises(TypeError, match="cannot be sent to other processes: RuntimeError"):
        pool.submit(id, hostile.Full(RuntimeError))
    assert pool.run(os.getpid) == pids


def test_whatever_comes_of_unpickling_an_error_or_a_result_the_ranks_stay(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    for kind in hostile.KINDS:
        for error in (hostile.Torn, hostile.Changed):
            unwatched = pool.submit(hostile.fails, error, kind)  # the pool's own thread receives it
            while not unwatched.done():
                time.sleep(0.001)
            for call in (unwatched.result, lambda: pool.run(hostile.fails, error, kind)):  # noqa: B023
                with pytest.raises(rw.RankwiseError, match=rf"rank \d raised {error.__name__}: disk is full") as caught:
                    call()
                assert "raise error(kind)" in str(caught.value.__cause__)
        with pytest.raises(TypeError, match=rf"the result of rank \d cannot be unpickled .*: {kind.__name__}: torn"):
            pool.submit(hostile.gives, hostile.Torn, kind).result(60)
        with pytest.raises(KeyboardInterrupt if kind is KeyboardInterrupt else TypeError, match="torn"):
            pool.run(hostile.gives, hostile.Torn, kind)
    assert pool.run(os.getpid) == pids


@pytest.mark.parametrize("threads", [False, True])
def test_a_function_that_raises_stop_iteration_does_not_end_a_map_early(threads: bool) -> None:
    with rw.Pool(1, timeout=60, threads=threads) as pool, pytest.raises(RuntimeError, match="raised StopIteration"):
        list(pool.map(next, [iter([1]), iter([]), iter([2])], chunksize=3))


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


class TooLate(Exception):
    pass


def waits_or_gives(mark: str, x: int) -> int:
    """Says that it has begun by a file of this name, and waits until it is interrupted, if x is 0."""
    if x == 0:
        open(f"{mark}.{rw.init().rank}", "w").close()
        while True:
            time.sleep(0.01)
    return 2 * x


@pytest.mark.filterwarnings("ignore:threads=True")
@pytest.mark.parametrize("threads", [False, True])
def test_the_results_of_a_call_that_a_signal_handler_ends_are_no_later_calls(threads: bool, tmp_path: Path) -> None:
    def handler(signum: int, frame: object) -> None:
        raise TooLate

    def end() -> None:
        while not all((tmp_path / f"begun.{rank}").exists() for rank in range(RANKS)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    mark = str(tmp_path / "begun")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with rw.Pool(RANKS, timeout=60, threads=threads) as pool:
            pids = pool.run(os.getpid)
            threading.Thread(target=end).start()
            with pytest.raises(TooLate):
                pool.run(waits_or_gives, mark, 0)
            for x in (1, 2, 3):
                assert pool.run(waits_or_gives, mark, x) == [2 * x] * RANKS
                assert pool.submit(waits_or_gives, mark, x).result(60) == 2 * x
            assert pool.run(os.getpid) == pids
    finally:
        signal.signal(signal.SIGUSR1, before)


def length(x: np.ndarray) -> int:
    return len(x)


def test_a_large_argument_for_a_rank_that_is_stopped_keeps_nobody_waiting() -> None:
    x = np.zeros(1 << 21)
    with rw.Pool(RANKS, timeout=60) as pool:
        first, second = pool.run(os.getpid)
        os.kill(first, signal.SIGSTOP)
        try:
            late, soon = pool.submit(length, x), pool.submit(length, x)
            assert soon.result(60) == len(x)
            assert [pool.submit(length, x).result(60) for _ in range(3)] == [len(x)] * 3
            assert not late.done()
        finally:
            os.kill(first, signal.SIGCONT)
        assert late.result(60) == len(x)
        assert pool.run(os.getpid) == [first, second]
