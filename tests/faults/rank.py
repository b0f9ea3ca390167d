"""What a rank of a trial runs: `rank.py FIFO SEED PLACE ARGS`. The places are where a fault may find it."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rankwise as rw
from rankwise.testing.stress import run_schedule

BIG = (64 << 20) // 4  # float32 of 64 MiB


class Rank:
    """This rank: its number, its own randomness and its way to report."""

    def __init__(self, fifo: str, seed: str) -> None:
        self.number = int(os.environ["RANKWISE_RANK"])
        self.n = int(os.environ["RANKWISE_WORLD_SIZE"])
        self.common = random.Random(seed)  # the same on every rank
        self.own = random.Random(f"{seed}/{self.number}")
        self._fifo = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)

    def report(self, what: str, **facts: Any) -> None:
        line = {"what": what, "rank": self.number, "at": time.monotonic(), "pid": os.getpid(), **facts}
        os.write(self._fifo, json.dumps(line).encode() + b"\n")  # in one piece, as it is less than PIPE_BUF

    def report_error(self, error: BaseException, what: str = "error") -> None:
        at = time.monotonic()
        while isinstance(error, RuntimeError) and error.__cause__ is not None:
            error = error.__cause__  # the schedule says at which step
        facts = {name: getattr(error, name, None) for name in ("rank", "how", "operation", "sequence", "missing")}
        self.report(what, at=at, type=type(error).__name__, text=str(error)[:2500], lost=facts.pop("rank"), **facts)


def all_reduce(rank: Rank, group: rw.Group) -> None:
    x = np.zeros(BIG, np.float32)
    while True:
        group.all_reduce(x)


def barrier(rank: Rank, group: rw.Group) -> None:
    while True:
        if rank.own.random() < 0.3:
            time.sleep(rank.own.uniform(0, 0.002))
        group.barrier()


def send_and_recv(rank: Rank, group: rw.Group) -> None:
    """Messages run round the ring, some larger than what is under way at once."""
    x = np.zeros(1)
    while True:
        x = np.zeros(rank.common.choice((1, 1000, 200_000)))
        if group.rank == 0:
            time.sleep(rank.own.uniform(0, 0.01))
            group.send(x, 1)
            group.recv(x, group.world_size - 1)
        else:
            group.recv(x, group.rank - 1)
            group.send(x, (group.rank + 1) % group.world_size)


def asleep(rank: Rank, group: rw.Group) -> None:
    """All but one sleep on a futex, in a collective or in recv; the one naps in Python."""
    while True:
        awake = rank.common.randrange(group.world_size)
        by_message = rank.common.random() < 0.5
        if group.rank == awake:
            time.sleep(rank.own.uniform(0.02, 0.06))
            for other in range(group.world_size) if by_message else ():
                if other != awake:
                    group.send(1, other)
        elif by_message:
            group.recv((), awake, dtype=np.int64)
        group.all_reduce(np.ones(3))


def in_python(rank: Rank, group: rw.Group) -> None:
    """Mostly in Python code, a few milliseconds at a time."""
    while True:
        end = time.monotonic() + rank.own.uniform(0, 0.02)
        while time.monotonic() < end:
            sum(range(100))
        group.all_reduce(np.ones(100))


def works(rank: Rank, group: rw.Group) -> None:
    """Operations and messages under way on the group's own thread, and waited for later."""
    x = np.zeros((4, 100_000))
    while True:
        under_way = [group.all_reduce(row, async_op=True) for row in x]
        under_way.append(group.isend(x[0, :10].copy(), (group.rank + 1) % group.world_size))
        under_way.append(group.irecv((10,), (group.rank - 1) % group.world_size))
        rw.wait_all(under_way)


def anything(rank: Rank, group: rw.Group) -> None:
    run_schedule(group, 1 << 40, rank.common.randrange(1 << 30))


def init(rank: Rank, group: rw.Group) -> None:
    barrier(rank, group)


def parts(rank: Rank, group: rw.Group) -> None:
    """Two groups of half the ranks each; the failure of one is none of the other's."""
    half = group.split(group.rank % 2)
    assert half is not None
    try:
        while True:
            half.all_reduce(np.ones(1000))
    except rw.PeerLostError as error:
        rank.report_error(error)
        raise


PLACES: dict[str, Callable[..., object]] = {
    place.__name__: place for place in (all_reduce, barrier, send_and_recv, asleep, in_python, works, anything, init)
}


def main() -> None:
    fifo, seed, place, args = sys.argv[1:]
    rank = Rank(fifo, seed)
    rank.report("started")
    group = None
    try:
        if place == "init":
            time.sleep(rank.own.uniform(0, 0.03))
        group = rw.init()
        rank.report("ready")
        PLACES[place](rank, group, *json.loads(args))
    except (rw.RankwiseError, KeyboardInterrupt, RuntimeError) as error:
        rank.report_error(error)
        if group is not None:
            try:
                group.barrier()
            except rw.RankwiseError as again:
                rank.report_error(again, "again")
    rank.report("end")


if __name__ == "__main__":
    main()
