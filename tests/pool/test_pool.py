"""`rankwise.Pool`: calls on all ranks, tasks, what the ranks keep, errors, lost ranks, and the end."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, as_completed, wait
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import rankwise as rw
from pool_calls import keep, kept, total

RANKS = 3


@pytest.fixture(scope="module")
def shared() -> Iterator[rw.Pool]:
    with rw.Pool(RANKS, timeout=60) as pool:
        yield pool


@pytest.fixture
def pool(shared: rw.Pool) -> rw.Pool:
    """A pool whose ranks have an empty rw.local."""
    shared.run(forget)
    return shared


def forget() -> None:
    for name in dir(rw.local):
        delattr(rw.local, name)


def rank_here() -> int:
    return int(os.environ["RANKWISE_RANK"])


def pid() -> int:
    time.sleep(0.02)
    return os.getpid()


# ---- calls and tasks ----


def test_run_calls_every_rank_at_once_in_one_group(pool: rw.Pool) -> None:
    assert pool.run(total, 2.0) == [6.0] * RANKS
    assert pool.run(total, x=1.0) == [3.0] * RANKS
    assert pool.run(rank_here) == [0, 1, 2]


def test_a_rank_keeps_its_namespace(pool: rw.Pool) -> None:
    assert pool.run(keep, "data") == [None] * RANKS
    assert pool.run(kept) == [("data", rank) for rank in range(RANKS)]


def missing() -> object:
    return rw.local.nothing


def test_a_missing_name_of_the_namespace_says_why(pool: rw.Pool) -> None:
    with pytest.raises(AttributeError, match=r"^rw.local has no attribute 'nothing' on this rank"):
        pool.run(missing)
    with pytest.raises(AttributeError, match=r"rw.local has no attribute 'nothing'"):
        del rw.local.nothing


def test_each_thread_that_is_a_rank_has_a_namespace() -> None:
    def both(group: rw.Group) -> object:
        rw.local.mine = group.rank
        group.barrier()
        return rw.local.mine

    assert rw.testing.run_ranks(both, 2) == [0, 1]


def test_tasks_as_an_executor_has_them(pool: rw.Pool) -> None:
    assert pool.submit(divmod, 7, 2).result(60) == (3, 1)
    futures = {pool.submit(pow, number, 2): number for number in range(20)}
    assert {futures[future]: future.result() for future in as_completed(futures, 60)} == {n: n * n for n in range(20)}
    assert list(pool.map(pow, range(10), range(10))) == [n**n for n in range(10)]
    assert list(pool.map(abs, range(-10, 0), chunksize=3)) == list(range(10, 0, -1))
    assert list(pool.map(abs, [])) == []


def test_a_map_makes_four_tasks_for_each_rank(pool: rw.Pool) -> None:
    before = next(pool._dealer.numbers)
    assert list(pool.map(abs, (-number for number in range(999)))) == list(range(999))
    assert next(pool._dealer.numbers) - before - 1 == 4 * RANKS


def test_without_cloudpickle_local_functions_are_refused_and_others_run(
    pool: rw.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    for call in (lambda: pool.run(lambda: 1), lambda: pool.map(lambda x: x, [1])):
        with pytest.raises(TypeError, match=r"pip install 'rankwise\[notebook\]'"):
            call()
    assert pool.run(rank_here) == [0, 1, 2]
    assert list(pool.map(total_of, [1, 2])) == [1, 2]


def total_of(x: int) -> int:
    return x


def test_tasks_run_on_all_ranks(pool: rw.Pool) -> None:
    assert len(set(pool.map(lambda _: pid(), range(40)))) == RANKS


def test_calls_are_made_in_their_order(pool: rw.Pool) -> None:
    before = [pool.submit(pid) for _ in range(4 * RANKS)]
    after: list[object] = []
    caller = threading.Thread(target=lambda: after.append(pool.run(total)))
    caller.start()
    assert pool.run(total) == [3.0] * RANKS
    assert all(future.done() for future in before)
    caller.join(60)
    assert after == [[3.0] * RANKS]


def test_threads_may_call_at_once(pool: rw.Pool) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(pool.run(total))) for _ in range(4)]
    for thread in threads:
        thread.start()
    found += pool.map(abs, range(-20, 0))
    for thread in threads:
        thread.join(60)
    assert found.count([3.0] * RANKS) == 4


def large(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(seed, seed + (1 << 18), dtype=np.float64), "y": np.ones((0, 3)), "z": np.arange(5)[::2]}


def doubled(data: dict[str, np.ndarray]) -> np.ndarray:
    data["x"] *= 2  # what arrives can be written
    return data["x"]


def test_large_arrays_there_and_back(pool: rw.Pool) -> None:
    for data in [*pool.run(large, 3), pool.submit(large, 3).result(60)]:
        np.testing.assert_equal(data, large(3))
        data["x"] += 1
    np.testing.assert_equal(pool.submit(doubled, large(1)).result(60), 2 * large(1)["x"])


def many(n: int) -> list[np.ndarray]:
    return [np.full(20, number) for number in range(n)]


def test_many_arrays(pool: rw.Pool) -> None:
    np.testing.assert_equal(pool.submit(many, 2000).result(60), many(2000))


def test_closures(pool: rw.Pool) -> None:
    pytest.importorskip("cloudpickle")
    x = np.arange(1000)
    assert pool.run(lambda: int(x.sum())) == [499500] * RANKS


def test_a_cancelled_task_does_not_run(pool: rw.Pool) -> None:
    blocking = [pool.submit(time.sleep, 1) for _ in range(RANKS)]
    late = pool.submit(keep, 1)
    assert late.cancel()
    with pytest.raises(CancelledError):
        late.result()
    assert [future.result(60) for future in blocking] == [None] * RANKS
    assert pool.run(kept) == [None] * RANKS


def test_the_timeout_of_map(pool: rw.Pool) -> None:
    results = pool.map(time.sleep, [1.0] * 2, timeout=0.05)
    with pytest.raises(TimeoutError):
        next(results)


# ---- errors ----


class OwnError(Exception):
    def __init__(self, what: object, number: int) -> None:
        super().__init__(what, number)
        self.number = number


def fails_on(rank: int) -> None:
    group = rw.init()
    if group.rank == rank:
        raise OwnError("it is the one", 42)
    group.barrier()


def test_an_error_is_raised_with_its_traceback_and_loses_nothing(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    pool.run(keep, 5)
    with pytest.raises(OwnError, match="it is the one") as caught:
        pool.run(fails_on, 1)
    assert caught.value.number == 42
    text = str(caught.value.__cause__)
    assert "rank 1:\nTraceback" in text
    assert 'raise OwnError("it is the one", 42)' in text
    assert "serving.py" not in text
    assert pool.run(total) == [3.0] * RANKS
    assert pool.run(kept) == [(5, rank) for rank in range(RANKS)]
    assert pool.run(os.getpid) == pids


def test_the_error_of_a_task(pool: rw.Pool) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        pool.submit(divmod, 1, 0).result(60)
    assert "ZeroDivisionError" in str(caught.value.__cause__)
    assert pool.run(total) == [3.0] * RANKS


def fails_while_another_waits_elsewhere() -> None:
    group = rw.init()
    if group.rank == 0:
        raise OwnError("rank 0", 0)
    time.sleep(100)


def test_ranks_that_do_not_learn_of_an_error_are_interrupted(pool: rw.Pool) -> None:
    with pytest.raises(OwnError):
        pool.run(fails_while_another_waits_elsewhere)
    assert pool.run(total) == [3.0] * RANKS


def fails_while_another_waits_for_no_interrupt() -> None:
    if rw.init().rank == 0:
        raise OwnError("rank 0", 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as code in C may wait
    time.sleep(1000)


def test_ranks_that_no_interrupt_reaches_are_replaced() -> None:
    with rw.Pool(2, timeout=2) as pool:
        before = pool.run(pid)
        with pytest.raises(OwnError):
            pool.run(fails_while_another_waits_for_no_interrupt)
        after = pool.run(pid)
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert pool.run(total) == [2.0] * 2


def hides_a_failure() -> str:
    group = rw.init()
    try:
        group.all_reduce(np.ones(2 + group.rank))
    except rw.MismatchError:
        return "caught"
    return ""


def test_the_next_call_has_a_group_that_works(pool: rw.Pool) -> None:
    assert pool.run(hides_a_failure) == ["caught"] * RANKS
    assert pool.run(total) == [3.0] * RANKS


def one_more_broadcast() -> None:
    group = rw.init()
    group.barrier()
    time.sleep(0.1)
    if group.rank == 1:
        group.broadcast(np.ones(3), src=1)


def test_a_last_collective_without_a_partner_is_an_error() -> None:
    with rw.Pool(2, timeout=60) as pool:
        with pytest.raises(rw.MismatchError, match=r"rank 0 after barrier #1, rank 1 after broadcast #2"):
            pool.run(one_more_broadcast)
        assert pool.run(total) == [2.0] * 2


def test_what_ends_a_program_ends_only_the_call(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    with pytest.raises(rw.RankwiseError, match=r"rank \d raised SystemExit: 3"):
        pool.run(sys.exit, 3)
    assert pool.run(os.getpid) == pids


def gives_a_lock() -> object:
    return threading.Lock()


def raises_what_cannot_travel() -> None:
    raise OwnError(threading.Lock(), 1)


def test_what_cannot_travel(pool: rw.Pool) -> None:
    with pytest.raises(TypeError, match="the result of fn, lock, cannot be sent back"):
        pool.run(gives_a_lock)
    with pytest.raises(rw.RankwiseError, match=r"rank \d raised .*OwnError"):
        pool.run(raises_what_cannot_travel)
    with pytest.raises(TypeError, match="cannot be sent to other processes"):
        pool.submit(id, threading.Lock())
    assert pool.run(total) == [3.0] * RANKS


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: rw.Pool(0), ValueError, "n=0: expected a number of ranks of at least 1"),
        (lambda: rw.Pool(1025), ValueError, "n=1025: expected at most 1024 ranks"),
        (lambda: rw.Pool(cast("int", "2")), TypeError, "n='2': expected a number of ranks"),
        (lambda: rw.Pool(), TypeError, "expected a number of new ranks, or a group"),
        (lambda: rw.Pool(2, timeout=0), ValueError, "timeout=0: expected a number of seconds above 0"),
    ],
)
def test_bad_arguments(call: Callable[[], object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_bad_calls(pool: rw.Pool) -> None:
    with pytest.raises(TypeError, match="fn=3: expected a function"):
        pool.run(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fn=3: expected a function"):
        pool.map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunksize=0: expected at least 1"):
        pool.map(abs, [1], chunksize=0)
    with pytest.raises(TypeError, match="chunksize='1': expected an int, got str"):
        pool.map(abs, [1], chunksize="1")  # type: ignore[arg-type]


# ---- lost ranks ----


def dies_on(rank: int, how: str) -> None:
    group = rw.init()
    if group.rank == rank:
        exec(how)
    group.barrier()


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os._exit(3)", "exited with status 3"),
        ("os._exit(0)", "exited with status 0"),
    ],
)
def test_a_lost_rank_is_named_and_replaced(
    pool: rw.Pool, deed: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pool.run(keep, 7)
    pids = pool.run(os.getpid)
    with pytest.raises(rw.PeerLostError, match=f"rank 1 {how}") as caught:
        pool.run(dies_on, 1, deed)
    assert (caught.value.rank, caught.value.how) == (1, how)
    assert pool.run(total) == [3.0] * RANKS
    assert pool.run(kept) == [(7, 0), None, (7, 2)]
    now = pool.run(os.getpid)
    assert [now[0], now[2]] == [pids[0], pids[2]]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rankwise: ")]
    assert len(lines) == 1
    assert f"rank 1 (pid {pids[1]}) {how}" in lines[0]
    assert lines[0].endswith("; another process takes its place, with an empty rw.local")


def test_a_rank_that_dies_as_a_call_begins_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with rw.Pool(2) as pool:
        pids, noticed, lost = pool.run(pid), threading.Event(), pool._dealer.lost

        def late(rank: int, error: rw.PeerLostError) -> None:
            noticed.set()
            time.sleep(0.5)  # meanwhile the dealer begins a call
            lost(rank, error)

        monkeypatch.setattr(pool._dealer, "lost", late)
        os.kill(pids[1], signal.SIGKILL)
        assert noticed.wait(30)
        with pytest.raises(rw.PeerLostError, match="rank 1 was killed by SIGKILL"):
            pool.run(total)
        assert pool.run(total) == [2.0] * 2


def test_a_rank_that_dies_between_calls_is_replaced(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    os.kill(pids[2], signal.SIGKILL)
    with suppress(rw.PeerLostError):  # the call may begin before the loss is noticed
        pool.run(total)
    assert pool.run(total) == [3.0] * RANKS
    assert pids[2] not in pool.run(os.getpid)


def test_all_ranks_die(pool: rw.Pool) -> None:
    with pytest.raises(rw.PeerLostError):
        pool.run(os._exit, 4)
    assert pool.run(total) == [3.0] * RANKS


def dies_the_first_time(mark: Path) -> str:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_a_task_whose_rank_dies_is_done_again(pool: rw.Pool, tmp_path: Path) -> None:
    results = pool.map(lambda mark: dies_the_first_time(mark), [tmp_path / "a", tmp_path / "b"])
    assert list(results) == ["done"] * 2
    assert pool.run(total) == [3.0] * RANKS


def test_a_task_that_kills_every_rank_fails(pool: rw.Pool) -> None:
    with pytest.raises(rw.PeerLostError, match="exited with status 5"):
        pool.submit(os._exit, 5).result(60)
    assert pool.submit(abs, -1).result(60) == 1


def test_ranks_that_cannot_start_end_the_pool(monkeypatch: pytest.MonkeyPatch, capfd: object) -> None:
    monkeypatch.setenv("RANKWISE_ALGORITHM", "nonsense=none")
    with rw.Pool(2, timeout=60) as pool:
        with pytest.raises(rw.PeerLostError, match="exited with status 1"):
            pool.run(total)
        with pytest.raises(rw.PeerLostError, match="exited with status 1"):
            pool.submit(total)


# A program of its own: a pool of another test may just get a new rank, which is of the real version.
OTHER_VERSION = """
import rankwise as rw
from rankwise.pool import processes

print(processes.version)
processes.version = "0.0.9"  # as if another one had been installed since this process has loaded its own
with rw.Pool(2, timeout=60) as pool:
    try:
        pool.run(print)
    except rw.RankwiseError as error:
        print(error)
"""


def test_ranks_of_another_version_end_the_pool() -> None:
    done = subprocess.run([sys.executable, "-c", OTHER_VERSION], capture_output=True, text=True, timeout=100)
    version, said = done.stdout.splitlines()
    said = re.sub(r"^rank [01] ", "rank r ", said)
    ours = f"rank r of the pool runs rankwise {version}, and this program still runs rankwise 0.0.9"
    assert said == f"{ours}, which it loaded before; start the program again", done.stderr


# ---- output ----


def prints(end: str) -> None:
    print("out", rank_here(), end=end)
    print("err", rank_here(), file=sys.stderr)


@pytest.mark.parametrize("end", ["\n", ""])
def test_output_is_there_when_the_call_returns(pool: rw.Pool, capsys: pytest.CaptureFixture[str], end: str) -> None:
    capsys.readouterr()
    for _ in range(5):
        pool.run(prints, end)
        out, err = capsys.readouterr()
        assert sorted(out.strip().splitlines()) == [f"out {rank}" for rank in range(RANKS)]
        assert sorted(err.splitlines()) == [f"err {rank}" for rank in range(RANKS)]
        pool.submit(prints, end).result(60)
        out, err = capsys.readouterr()
        assert out.strip().startswith("out ")
        assert err.startswith("err ")


# ---- the end ----


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: list[int]) -> bool:
    end = time.monotonic() + 20
    while any(map(lives, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(lives, pids))


def test_shutdown_waits_for_the_tasks_and_ends_the_ranks() -> None:
    pool = rw.Pool(2, timeout=60)
    pids = pool.run(os.getpid)
    futures = [pool.submit(pid) for _ in range(6)]
    pool.shutdown()
    pool.shutdown()
    assert {future.result(0) for future in futures} <= set(pids)
    assert not any(map(lives, pids))
    for call in (lambda: pool.run(total), lambda: pool.submit(total), lambda: pool.map(abs, [1])):
        with pytest.raises(rw.ClosedError, match="the pool has been shut down; make a new one"):
            call()
    assert repr(pool) == "<Pool of 2 ranks, shut down>"


def test_shutdown_without_waiting() -> None:
    pool = rw.Pool(1, timeout=60)
    pids = pool.run(os.getpid)
    first, *others = [pool.submit(time.sleep, 0.5) for _ in range(4)]
    while not first.running():
        time.sleep(0.001)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in others)
    assert wait(others, 60).not_done == set()
    assert first.result(60) is None
    assert all_gone(pids)


def test_an_interrupt_of_the_block_ends_the_tasks() -> None:
    pool = rw.Pool(2, timeout=60)
    pids = pool.run(os.getpid)
    task = pool.submit(time.sleep, 1000)
    while not task.running():
        time.sleep(0.001)
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not any(map(lives, pids))
    with pytest.raises(rw.ClosedError, match="the pool has been shut down"):
        task.result(0)


def test_a_pool_that_nobody_has_any_more_ends() -> None:
    pool = rw.Pool(2, timeout=60)
    pids = pool.run(os.getpid)
    del pool
    gc.collect()
    assert all_gone(pids)


PROGRAM = """\
import os, sys, time
import rankwise as rw
pool = rw.Pool(2)
print(*pool.run(os.getpid), flush=True)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("pool.submit(time.sleep, 100); time.sleep(0.2)", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -9),
        ("os._exit(0)", 0),
        ("import os\nif os.fork() == 0: sys.exit(0)\nos.wait(); assert pool.run(abs, -1) == [1, 1]", 0),
    ],
)
def test_the_end_of_the_program_is_silent_and_leaves_no_process(end: str, code: int) -> None:
    fork = "ignore:This process:DeprecationWarning"  # from Python 3.12 on
    command = [sys.executable, "-W", fork, "-c", PROGRAM + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (code, "")
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all_gone(pids)


def test_no_descriptor_or_thread_remains() -> None:
    def held() -> tuple[list[str], set[threading.Thread]]:
        return sorted(os.listdir("/proc/self/fd")), set(threading.enumerate())

    with rw.Pool(2, timeout=60) as first:
        first.run(total)
    gc.collect()  # what earlier tests have left is not freed meanwhile
    before = held()
    for _ in range(2):
        with rw.Pool(2, timeout=60) as pool:
            with pytest.raises(OwnError):
                pool.run(fails_on, 1)
            with pytest.raises(rw.PeerLostError):
                pool.run(dies_on, 1, "os._exit(1)")
            pool.submit(total).cancel()
    end = time.monotonic() + 20
    while held() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert held() == before
