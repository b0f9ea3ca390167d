"""Compares ranks that are threads with ranks that are processes, and with what the standard library has for threads.

    python3.13t benchmarks/threads.py              2 and 4 ranks
    python3.13t benchmarks/threads.py -n 2 --json FILE

Run it with a Python that has no GIL and with one that has it. Times are us per call: the median over batches, each
timed on its slowest rank. "by hand" is what a program without rankwise does: it adds arrays up between two waits for a
threading.Barrier, or sends objects through a queue.Queue for each thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Queue
from statistics import median
from typing import Any

import numpy as np

from rankwise.group.group import Group
from rankwise.testing import run_ranks

SIZES = {"8": 8, "64K": 64 << 10, "1M": 1 << 20}
SMALL = {"step": 3, "loss": 0.25, "name": "dict"}
SECONDS = 0.3  # for each cell
BATCH = 0.01

Call = Callable[[], object]


class ByHand:
    """What n threads share without rankwise."""

    def __init__(self, n: int) -> None:
        self.barrier = threading.Barrier(n)
        self.arrays: list[Any] = [None] * n
        self.queues: list[Queue[Any]] = [Queue() for _ in range(n)]

    def all_reduce(self, rank: int, x: Any) -> None:
        self.arrays[rank] = x
        self.barrier.wait()
        total = self.arrays[0] + self.arrays[1]
        for other in self.arrays[2:]:
            total += other
        self.barrier.wait()
        x[...] = total

    def round_trip(self, rank: int, x: object) -> None:
        peer = rank ^ 1
        if rank & 1:
            self.queues[peer].put(self.queues[rank].get())
        else:
            self.queues[peer].put(x)
            self.queues[rank].get()


def round_trip(group: Group, x: object) -> None:
    peer = group.rank ^ 1
    if group.rank & 1:
        group.send_object(group.recv_object(peer), peer)
    else:
        group.send_object(x, peer)
        group.recv_object(peer)


def cells(group: Group, by_hand: ByHand | None) -> dict[str, Call]:
    """The calls to measure, by name."""
    me = group.rank
    made: dict[str, Call] = {"barrier": group.barrier}
    if by_hand is not None:
        made["barrier, by hand"] = by_hand.barrier.wait
    for name, size in SIZES.items():
        x = np.zeros(size // 4, np.float32)
        made[f"all_reduce {name}"] = partial(group.all_reduce, x)
        if by_hand is not None:
            made[f"all_reduce {name}, by hand"] = partial(by_hand.all_reduce, me, x)
    objects: dict[str, object] = {"small dict": SMALL, "array of 1M": np.zeros(1 << 17)}
    for name, value in objects.items():
        made[f"round trip of {name}"] = partial(round_trip, group, value)
        if by_hand is not None:
            made[f"round trip of {name}, by hand"] = partial(by_hand.round_trip, me, value)
    return made


def measure(group: Group, by_hand: ByHand | None) -> dict[str, float]:
    """us per call, by cell."""
    results = {}
    for name, call in cells(group, by_hand).items():
        count, took = 1, 0.0
        while took < BATCH:  # as many calls as take that long
            count *= 2
            took = float(group.all_reduce(batch(group, call, count), "max"))
        batches = [batch(group, call, count) for _ in range(max(5, int(SECONDS / took)))]
        slowest = group.all_reduce(np.array(batches), "max")
        results[name] = median(slowest.tolist()) / count * 1e6
    return results


def batch(group: Group, call: Call, count: int) -> float:
    group.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", metavar="N", default="2,4", help="numbers of ranks, even (default 2,4)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    python = f"Python {platform.python_version()} {'with' if gil else 'without'} a GIL"
    print(f"{python}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}; us per call")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for n in map(int, options.n.split(",")):
        threads = run_ranks(partial(measure, by_hand=ByHand(n)), n, backend="threads")[0]
        processes = run_ranks(partial(measure, by_hand=None), n, backend="shm")[0]
        figures[str(n)] = {"threads": threads, "processes": processes}
        print(f"\n{n} ranks{'':28}threads  processes")
        for name, us in threads.items():
            other = f"{processes[name]:11.2f}" if name in processes else ""
            print(f"{name:34}{us:9.2f}{other}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"python": python, "us": figures}, file, indent=1)


if __name__ == "__main__":
    main()
