"""`rankwise.Pool` with threads=True: objects by reference, rw.local, tasks, errors, interrupts, the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from typing import NoReturn

import pytest

import rankwise as rw
from leftovers import held_here, holds_more_than

RANKS = 3

pytestmark = [
    pytest.mark.filterwarnings("ignore:threads=True"),  # this Python may have a GIL
    # A rank may be interrupted in a callback of Python's own, whose exceptions Python only reports.
    pytest.mark.filterwarnings("ignore:.*<function WeakSet.__init__:pytest.PytestUnraisableExceptionWarning"),
]


class OwnError(Exception):
    pass


@pytest.fixture
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(RANKS, timeout=60, threads=True) as pool:
        yield pool


def total(x: int = 1) -> int:
    return int(rw.init().all_reduce(x))


def same(x: object) -> object:
    return x


def rank_here() -> int:
    return rw.init().rank


def loops() -> NoReturn:
    while True:
        pass


def test_calls_and_tasks_pass_the_objects_themselves(pool: rw.Pool) -> None:
    lock = threading.Lock()
    assert all(got is lock for got in pool.run(same, lock))
    assert pool.submit(same, x=lock).result(60) is lock
    assert next(pool.map(same, [lock])) is lock
    assert pool.run(rank_here) == [0, 1, 2]
    assert pool.run(total, x=2) == [6] * RANKS


def ident_after_a_while(_: int) -> int:
    time.sleep(0.02)
    return threading.get_ident()


def test_tasks_as_an_executor_has_them(pool: rw.Pool) -> None:
    futures = {pool.submit(pow, number, 2): number for number in range(20)}
    assert {futures[future]: future.result() for future in as_completed(futures, 60)} == {n: n * n for n in range(20)}
    assert list(pool.map(pow, range(10), range(10))) == [n**n for n in range(10)]
    assert list(pool.map(abs, range(-10, 0), chunksize=3)) == list(range(10, 0, -1))
    assert len(set(pool.map(ident_after_a_while, range(40)))) == RANKS


def test_a_rank_keeps_its_namespace_also_after_an_error(pool: rw.Pool) -> None:
    def keep(value: object) -> None:
        rw.local.kept = value, rw.init().rank

    def kept() -> tuple[object, int]:
        return rw.local.kept  # type: ignore[no-any-return]

    pool.run(keep, "data")
    with pytest.raises(OwnError):
        pool.run(fails_on_1, total)
    assert pool.run(kept) == [("data", rank) for rank in range(RANKS)]
    with pytest.raises(AttributeError, match=r"rw.local has no attribute 'kept'"):
        kept()


def fails_on_1(others: Callable[[], object]) -> None:
    if rw.init().rank == 1:
        raise OwnError
    others()


def waits_in_a_part() -> None:
    rw.init().dup().barrier()


@pytest.mark.parametrize("others", [total, waits_in_a_part, loops])
def test_a_failed_call_and_then_a_good_one(pool: rw.Pool, others: Callable[[], object]) -> None:
    for _ in range(2):
        with pytest.raises(OwnError) as caught:
            pool.run(fails_on_1, others)
        assert caught.traceback[-1].name == "fails_on_1"
        assert pool.run(total) == [3] * RANKS


def test_a_failure_that_a_function_hides_is_not_left_to_the_next_call(pool: rw.Pool) -> None:
    def hides() -> None:
        group = rw.init()
        if group.rank == 0:
            group.abort("on purpose")
        try:
            group.barrier()
        except rw.PeerLostError:
            return

    pool.run(hides)
    assert pool.run(total) == [3] * RANKS


def test_a_message_that_does_not_come_leaves_the_group_to_the_next_call(pool: rw.Pool) -> None:
    def waits() -> None:
        rw.local.group = rw.init()
        with pytest.raises(rw.CollectiveTimeout):
            rw.local.group.recv_any(timeout=0.01)

    pool.run(waits)
    assert pool.run(lambda: rw.local.group is rw.init()) == [True] * RANKS


def test_errors_of_tasks(pool: rw.Pool) -> None:
    error = OwnError("text")

    def fails() -> NoReturn:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise error from cause

    with pytest.raises(OwnError) as caught:
        pool.submit(fails).result(60)
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    with pytest.raises(rw.RankwiseError, match=r"rank \d raised SystemExit: 3"):
        pool.submit(sys.exit, 3).result(60)
    assert pool.run(total) == [3] * RANKS


def test_a_last_collective_without_a_partner_is_an_error(pool: rw.Pool) -> None:
    def fn() -> None:
        group = rw.init()
        time.sleep(0.05)
        if group.rank == 1:
            group.broadcast(1.0, src=1)

    with pytest.raises(rw.MismatchError, match="after different calls"):
        pool.run(fn)
    assert pool.run(total) == [3] * RANKS


@pytest.mark.parametrize("others", [total, waits_in_a_part, loops])
def test_an_interrupt_ends_the_call_and_keeps_the_ranks(pool: rw.Pool, others: Callable[[], object]) -> None:
    def fn() -> None:
        if rw.init().rank == 1:
            signal.pthread_kill(main, signal.SIGINT)
            loops()
        others()

    main = threading.get_ident()
    idents = pool.run(threading.get_ident)
    with pytest.raises(KeyboardInterrupt):
        pool.run(fn)
    assert pool.run(total) == [3] * RANKS
    assert pool.run(threading.get_ident) == idents


def test_after_an_interrupt_a_debugger_can_follow_the_program() -> None:
    """Up to Python 3.12 its first step lasts forever while Python believes that a thread has an exception to raise."""
    program = (
        "import _thread, sys, rankwise as rw\n"
        "def loops():\n"
        "    if rw.init().rank == 1: _thread.interrupt_main()\n"
        "    while True: pass\n"
        "with rw.Pool(2, threads=True) as pool:\n"
        "    try: pool.run(loops)\n"
        "    except KeyboardInterrupt: print('interrupted')\n"
        "    sys.settrace(lambda frame, event, arg: None)\n"
        "    print(pool.run(lambda: rw.all_reduce(1)))\n"
    )
    command = [sys.executable, "-W", "ignore:threads=True", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n[2, 2]\n", "", 0)


def test_a_rank_that_cannot_be_interrupted_delays_only_later_calls(pool: rw.Pool) -> None:
    def waits(who: int) -> None:
        if rw.init().rank == who:
            released.wait(60)  # no Python code runs meanwhile

    main, released = threading.get_ident(), threading.Event()
    for _ in range(2):  # the second time the others wait for the rank to join them
        timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            pool.run(waits, 0)
        timer.join()
    released.set()
    assert pool.run(total) == [3] * RANKS


def test_an_interrupt_ends_the_task_that_is_waited_for(pool: rw.Pool) -> None:
    def fn() -> None:
        assert waited_for.wait(60)
        signal.pthread_kill(main, signal.SIGINT)
        loops()

    main, waited_for = threading.get_ident(), threading.Event()
    task = pool.submit(fn)
    threading.Timer(1.0, waited_for.set).start()
    with pytest.raises(KeyboardInterrupt):
        task.result(60)
    with pytest.raises(rw.RankwiseError, match="raised KeyboardInterrupt"):
        task.result(60)
    assert pool.run(total) == [3] * RANKS


def test_threads_may_call_at_once(pool: rw.Pool) -> None:
    found: list[object] = []
    callers = [threading.Thread(target=lambda: found.append(pool.run(total))) for _ in range(4)]
    callers += [threading.Thread(target=lambda: found.extend(pool.map(abs, [-1] * 50))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found.count([3] * RANKS) == 4
    assert found.count(1) == 100


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="threads=True: the ranks of a group are there already"):
        rw.Pool(group=rw.init("solo"), threads=True)
    rw.close()
    with pytest.raises(ValueError, match="n=0"):
        rw.Pool(0, threads=True)
    with rw.Pool(1, threads=True) as pool, pytest.raises(TypeError, match="fn=3: expected a function"):
        pool.run(3)  # type: ignore[arg-type]


def test_shutdown() -> None:
    pool = rw.Pool(2, timeout=60, threads=True)
    futures = [pool.submit(time.sleep, 0.02) for _ in range(6)]
    pool.shutdown()
    pool.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(rw.ClosedError, match="the pool has been shut down; make a new one"):
        pool.run(total)
    assert repr(pool) == "<Pool of 2 ranks, shut down>"


def test_shutdown_without_waiting_and_with_tasks_left() -> None:
    pool = rw.Pool(1, timeout=60, threads=True)
    begun, go = threading.Event(), threading.Event()

    def waits() -> bool:
        begun.set()
        return go.wait(60)

    first, *others = [pool.submit(waits) for _ in range(4)]
    assert begun.wait(60)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in others)
    go.set()
    assert first.result(60) is True


def test_an_interrupt_of_the_block_ends_the_tasks() -> None:
    pool = rw.Pool(2, timeout=60, threads=True)
    task = pool.submit(loops)
    while not task.running():
        time.sleep(0.001)
    pool.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(rw.ClosedError, match="the pool has been shut down"):
        task.result(0)


@pytest.mark.parametrize("end", ["", "pool.submit(loops)", "pool.submit(time.sleep, 100)", "pool.shutdown(wait=False)"])
def test_the_end_of_the_program_is_silent(end: str) -> None:
    program = (
        "import time, rankwise as rw\n"
        "def loops():\n"
        "    while True: pass\n"
        "pool = rw.Pool(2, threads=True)\n"
        "print(pool.run(lambda: rw.all_reduce(1)))\n"
    )
    command = [sys.executable, "-W", "ignore:threads=True", "-c", program + end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr, done.returncode) == ("[2, 2]\n", "", 0)


def test_no_descriptor_or_thread_remains() -> None:
    with rw.Pool(2, timeout=60, threads=True) as first:
        first.run(total)
    before = held_here()
    for _ in range(2):
        with rw.Pool(2, timeout=60, threads=True) as pool:
            with pytest.raises(OwnError):
                pool.run(fails_on_1, total)
            pool.submit(total).cancel()
        assert set(threading.enumerate()) <= before[1]
    pool = rw.Pool(2, threads=True)
    pool.run(total)
    del pool  # nobody has it any more
    end = time.monotonic() + 20
    while holds_more_than(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not holds_more_than(before)
