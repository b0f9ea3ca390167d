"""Eight threads of every rank at once: on groups of their own, on one that they share, with streams and events.

Another schedule: `RANKWISE_STRESS_SEED=123 pytest tests/stress`. The seed is in the output of a failure.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import rankwise as rw
from rankwise import _native
from rankwise.group.group import Group
from rankwise.testing import run_ranks
from stress.schedule import run_schedule

SEED = int(os.environ.get("RANKWISE_STRESS_SEED", "20240229"))
THREADS = 8
SOON = 100.0  # seconds within which anything must end


def together(bodies: list[Callable[[], None]]) -> None:
    """Run these at once, each in a thread, and raise what one of them raised."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result(SOON)


def alike(shared: Group, rounds: int, seed: int) -> None:
    """Calls on a group that other threads use too. They are the same in all threads, so any order of them is right."""
    n, me = shared.world_size, shared.rank
    for turn in range(rounds):
        assert shared.all_reduce(np.full(50, me)).tolist() == [n * (n - 1) // 2] * 50
        if turn % 3 == 0:
            works = [shared.all_reduce(np.full(50, me), async_op=True) for _ in range(2)]
            assert all(x[-1] == n * (n - 1) // 2 for x in rw.wait_all(works, SOON))
        # Messages are the thread's own by their tag.
        sending = shared.isend(np.full(turn, seed + turn), (me + 1) % n, tag=seed)
        got = shared.recv((turn,), (me - 1) % n, tag=seed, dtype=np.int64)
        assert (got == seed + turn).all()
        sending.wait(SOON)


def overlapped(own: Group, rounds: int, seed: int) -> None:
    """Buckets on a stream and the group's stream, behind each other, with events that come and go."""
    rng, n = random.Random(seed), own.world_size
    with rw.overlap.Stream() as compute:
        for turn in range(rounds):
            buckets = [np.empty(rng.randrange(1, 3000)) for _ in range(3)]
            for bucket in buckets:
                compute.submit(bucket.fill, own.rank + turn)
                own.stream.wait_event(compute.record_event())
                own.all_reduce(bucket, async_op=True)
            compute.wait_stream(own.stream)
            sums = [compute.submit(lambda bucket=bucket: (bucket.min(), bucket.max())) for bucket in buckets]
            want = n * (n - 1) / 2 + n * turn
            assert all(pair == (want, want) for pair in rw.wait_all(sums, SOON))
            if rng.random() < 0.2:
                own.barrier()


def eight_threads(group: Group, rounds: int, seed: int) -> None:
    shared = group.dup()
    own = [group.dup() for _ in range(5)]
    together(
        [partial(run_schedule, own[i], 5 * rounds, seed + i) for i in range(3)]  # type: ignore[list-item]
        + [partial(overlapped, own[i], rounds, seed + i) for i in (3, 4)]
        + [partial(alike, shared, rounds, i) for i in (5, 6)]
        + [partial(alike, group, rounds, 7)]
    )
    for part in (shared, *own):
        part.close()


@pytest.mark.parametrize(
    ("backend", "n"),
    [
        ("threads", 2),
        pytest.param("threads", 3, marks=pytest.mark.slow),
        pytest.param("shm", 2, marks=pytest.mark.slow),
        pytest.param("shm", 4, marks=pytest.mark.slow),
    ],
)
def test_eight_threads_a_rank(backend: str, n: int) -> None:
    print(f"seed {SEED}")
    run_ranks(partial(eight_threads, rounds=40, seed=SEED), n, backend=backend, timeout=SOON)


def test_one_group_closed_under_eight_threads() -> None:
    """Each call either gives the right result or raises that the group was closed; none hangs or crashes."""

    def rank(group: Group) -> None:
        part = group.dup()
        turns = threading.Barrier(THREADS + 1)

        def use() -> None:
            turns.wait(SOON)
            try:
                for _ in range(10_000):
                    assert part.all_reduce(np.ones(3))[0] == part.world_size
                    part.all_reduce(np.ones(3), async_op=True).wait(SOON)
                    part.stream.record_event()
            except (rw.ClosedError, rw.PeerLostError):
                return
            raise AssertionError("nobody closed the group")

        def close() -> None:
            turns.wait(SOON)
            for _ in range(20):
                group.barrier()
            part.close(0.1)

        together([use] * THREADS + [close])

    run_ranks(rank, 2, timeout=SOON)


def test_threads_that_share_a_work() -> None:
    """Whoever waits, asks or cancels first: each message is received once, and every thread sees the same."""

    def rank(group: Group) -> None:
        peer = group.rank ^ 1
        for turn in range(40):
            x = np.zeros(1 + 4000 * (turn % 2))
            receiving = group.irecv(x, peer, tag=turn)
            sending = group.isend(np.full(x.shape, float(turn)), peer, tag=turn)

            def wait(work: rw.Work[np.ndarray] = receiving, turn: int = turn) -> None:
                assert (work.wait(SOON) == turn).all()
                assert work.done()

            def ask(work: rw.Work[np.ndarray] = receiving) -> None:
                while not work.done():
                    pass

            together([wait, wait, ask, partial(sending.wait, SOON)])

    run_ranks(rank, 2, backend="threads", timeout=SOON)


def test_objects_that_change_while_they_are_checked() -> None:
    """The check of what is sent meets any state of it. Pickle itself, which comes next, does not promise that."""
    changing: dict[str, list[object]] = {"a": [1, 2], "b": [[3]]}
    over = threading.Event()

    def change() -> None:
        for turn in range(100_000):
            if over.is_set():
                return
            changing["a"].append(turn)
            changing[str(turn % 7)] = [[turn]] * (turn % 5)
            if len(changing["a"]) > 20:
                changing["a"].clear()
                changing.pop("3", None)

    def check() -> None:
        try:
            assert all(_native.is_basic(changing) for _ in range(2_000))
        finally:
            over.set()

    together([change, check])
