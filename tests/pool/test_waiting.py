"""Threads that wait for tasks of a pool, each of which receives its own results."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

import rankwise as rw


@pytest.fixture(scope="module")
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(3, timeout=60) as pool:
        yield pool


def pid() -> int:
    time.sleep(0.02)
    return os.getpid()


def may_die(number: int) -> int:
    if number % 40 == 7 and not getattr(rw.local, "spared", False):
        os.kill(os.getpid(), signal.SIGKILL)
    rw.local.spared = True
    return number


def test_threads_wait_for_tasks_of_ranks_that_die(pool: rw.Pool) -> None:
    ended: list[list[int]] = []

    def work() -> None:
        results = []
        for number in range(60):
            with suppress(rw.PeerLostError):
                results.append(pool.submit(may_die, number).result(60))
        ended.append(results)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [results == sorted(set(results)) and len(results) >= 58 for results in ended] == [True] * 3


def test_several_threads_wait_for_one_task(pool: rw.Pool) -> None:
    future = pool.submit(pid)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(future.result(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [future.result()] * 3


def test_several_threads_map_at_once(pool: rw.Pool) -> None:
    ended: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: ended.append(list(pool.map(abs, range(-300, 0), chunksize=1))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ended == [list(range(300, 0, -1))] * 3


def test_a_shutdown_ends_the_wait_for_a_map() -> None:
    pool = rw.Pool(1, timeout=60)
    begun, ended = threading.Event(), list[BaseException]()

    def work() -> None:
        results = pool.map(time.sleep, [0.0, 1.0, 1.0, 1.0], chunksize=1)
        next(results)
        begun.set()
        try:
            list(results)
        except CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    pool.shutdown(cancel_futures=True)
    thread.join(60)
    assert len(ended) == 1
