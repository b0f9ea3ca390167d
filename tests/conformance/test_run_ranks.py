"""run_ranks itself: results by rank, failures with their tracebacks, nobody left waiting, pools reused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hostile
import rankwise as rw
from rankwise import Group
from rankwise.testing import RanksFailed, close_pools, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "shm"])


@both
def test_results_come_by_rank(backend: str) -> None:
    assert run_ranks(lambda group: (group.rank, group.world_size), 3, backend=backend) == [(0, 3), (1, 3), (2, 3)]
    sums = run_ranks(lambda group: group.all_reduce(np.arange(3) * group.rank), 4, backend=backend)
    assert [x.tolist() for x in sums] == [[0, 6, 12]] * 4


def scaled(group: Group, factor: float, *, add: int = 0) -> float:
    return factor * group.rank + add


@both
def test_the_order_of_arguments_is_that_of_spawn(backend: str) -> None:
    assert run_ranks(lambda group: group.rank, 2, backend=backend) == [0, 1]
    assert run_ranks(scaled, 2, 2.5, add=1, backend=backend) == [1.0, 3.5]


@both
def test_init_returns_the_ranks_own_group(backend: str) -> None:
    def calls_init(group: Group) -> tuple[bool, str, int, int]:
        same = rw.init() is group and rw.init(backend, timeout=30) is group
        nested = run_ranks(lambda inner: rw.init() is inner and rw.all_reduce(1) == 1, 1, backend="solo")
        assert nested == [True]
        return same, group.backend, rw.all_reduce(1), rw.init().rank

    assert run_ranks(calls_init, 3, backend=backend) == [(True, backend, 3, rank) for rank in range(3)]


def test_init_in_a_thread_follows_shrink_and_never_gives_another_group() -> None:
    def closes(group: Group) -> None:
        with pytest.raises(ValueError, match="backend='shm': the default group already uses 'threads'"):
            rw.init("shm")
        smaller = group.shrink()
        assert rw.init() is smaller
        assert rw.all_reduce(1) == 2
        rw.close()
        with pytest.raises(rw.ClosedError, match="this thread is a rank whose group is closed"):
            rw.init()

    run_ranks(closes, 2)
    with rw.init("solo") as group:
        assert group.world_size == 1
        run_ranks(lambda ours: rw.all_reduce(1), 2)
        assert rw.init() is group


@both
def test_a_failing_rank_is_reported_without_waiting(backend: str) -> None:
    def fails_on_rank_1(group: Group) -> None:
        if group.rank == 1:
            raise LookupError("lost my keys")
        group.barrier()

    begin = time.monotonic()
    with pytest.raises(RanksFailed, match="lost my keys") as caught:
        run_ranks(fails_on_rank_1, 3, backend=backend, timeout=30)
    assert time.monotonic() - begin < 28
    assert set(caught.value.failures) == {0, 1, 2}
    assert "fails_on_rank_1" in caught.value.failures[1], "the traceback is missing"
    assert "PeerLostError" in caught.value.failures[0]
    assert str(caught.value).count("Traceback") == 1, "the traceback of the cause is not the only one"
    assert run_ranks(lambda group: group.all_reduce(1), 3, backend=backend) == [3, 3, 3], (
        "no fresh group after a failure"
    )


@both
def test_a_hang_ends_at_the_timeout(backend: str) -> None:
    def rank_0_stays_away(group: Group) -> None:
        if group.rank != 0:
            group.barrier()

    run_ranks(lambda group: None, 2, backend=backend)  # the processes have started
    begin = time.monotonic()
    with pytest.raises(RanksFailed, match=r"CollectiveTimeout|PeerLostError"):
        run_ranks(rank_0_stays_away, 2, backend=backend, timeout=1)
    assert time.monotonic() - begin < 25


def test_threads_are_threads_of_this_process() -> None:
    here = run_ranks(lambda group: (os.getpid(), threading.get_ident()), 3)
    assert {pid for pid, _ in here} == {os.getpid()}
    assert len({ident for _, ident in here}) == 3


def test_processes_are_kept_for_the_next_call_and_replaced_after_a_failure() -> None:
    def pid(group: Group) -> int:
        return os.getpid()

    first = run_ranks(pid, 2, backend="shm")
    assert len({os.getpid(), *first}) == 3
    assert run_ranks(pid, 2, backend="shm") == first
    with pytest.raises(RanksFailed, match="ZeroDivisionError"):
        run_ranks(lambda group: 1 // group.rank, 2, backend="shm")
    assert not set(first) & set(run_ranks(pid, 2, backend="shm"))


def test_calls_out_of_step_replace_the_processes() -> None:
    def pid_and_a_group_that_failed(group: Group) -> int:
        if group.rank == 0:
            group.comm.abort("on purpose")  # type: ignore[attr-defined]
        return os.getpid()

    first = run_ranks(pid_and_a_group_that_failed, 2, backend="shm")
    assert run_ranks(lambda group: group.all_reduce(1), 2, backend="shm") == [2, 2]
    assert not set(first) & set(run_ranks(lambda group: os.getpid(), 2, backend="shm"))


def test_a_dead_process_is_named_and_the_others_raise() -> None:
    def dies(group: Group) -> None:
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(np.ones(1000))

    begin = time.monotonic()
    with pytest.raises(RanksFailed, match="signal 9") as caught:
        run_ranks(dies, 3, backend="shm", timeout=30)
    assert time.monotonic() - begin < 28
    assert "PeerLostError" in caught.value.failures[0]


def test_an_unpicklable_result_is_an_error_of_its_rank() -> None:
    with pytest.raises(RanksFailed, match="pickle"):
        run_ranks(lambda group: threading.Lock() if group.rank else 0, 2, backend="shm")


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_whatever_the_methods_of_an_error_or_a_result_raise(backend: str) -> None:
    for kind in hostile.KINDS:
        with pytest.raises(RanksFailed, match=r"in fails(\n.*)*Unshowable"):
            run_ranks(lambda group, kind=kind: hostile.fails(hostile.Unshowable, kind), 1, backend=backend)
    if backend == "shm":
        with pytest.raises(RanksFailed, match="SystemExit"):
            run_ranks(lambda group: hostile.gives(hostile.Full, SystemExit), 1, backend=backend)


def test_functions_of_a_program_without_a_file() -> None:
    """As in a notebook: the main module has no file."""
    call = "print(run_ranks(lambda g: g.all_reduce(1), 2, backend='shm'), rw.spawn(lambda: rw.init().rank, 2))"
    program = f"import rankwise as rw; from rankwise.testing import run_ranks; {call}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[2, 2] [0, 1]\n", "")


def test_ranks_end_when_their_caller_is_killed() -> None:
    call = "print(*run_ranks(lambda g: os.getpid(), 2, backend='shm'), flush=True); time.sleep(60)"
    program = f"import os, time; from rankwise.testing import run_ranks; {call}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        caller.kill()
    assert len(pids) == 2
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < end, "ranks outlive the process that started them"
        time.sleep(0.02)


def test_closed_pools_leave_no_process() -> None:
    pids = run_ranks(lambda group: os.getpid(), 2, backend="shm")
    close_pools()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("n", "backend", "words"),
    [
        (0, "threads", "n=0: expected at least 1"),
        (-1, "shm", "n=-1"),
        (2, "solo", "n=2: expected 1"),
        (2, "smh", "'smh'"),
    ],
)
def test_bad_arguments(n: int, backend: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run_ranks(lambda group: None, n, backend=backend)
