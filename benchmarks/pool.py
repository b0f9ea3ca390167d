"""What a task of a pool costs: `rankwise.Pool` and multiprocessing's, in turns.

    python benchmarks/pool.py [-n 2] [--rounds 5] [--tasks 10000]

The tasks are calls of `abs`. The table, in Markdown, has medians in milliseconds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.pool import Pool
from typing import Any

import numpy as np

import rankwise as rw

SUBMITTED, BACK_AND_FORTH, LARGE = 256, 100, 100 << 20


def rows(
    map_all: Callable[..., Any], submit: Callable[..., Any], result: Callable[[Any], Any], tasks: int
) -> dict[str, Callable[[], object]]:
    """By name, what is measured: with a pool's functions of these kinds."""
    array = np.ones(LARGE // 8)
    return {
        f"map of {tasks} tasks": lambda: map_all(abs, range(tasks), None),
        "the same, chunksize=100": lambda: map_all(abs, range(tasks), 100),
        "the same, chunksize=1": lambda: map_all(abs, range(tasks), 1),
        f"{SUBMITTED} submits, then the results": lambda: [
            result(future) for future in [submit(abs, number) for number in range(SUBMITTED)]
        ],
        f"{BACK_AND_FORTH} times a submit and its result": lambda: [
            result(submit(abs, number)) for number in range(BACK_AND_FORTH)
        ],
        "an argument of 100 MiB": lambda: result(submit(np.size, array)),
        "a result of 100 MiB": lambda: result(submit(np.ones, LARGE // 8)),
    }


def of_multiprocessing(pool: Pool, tasks: int) -> dict[str, Callable[[], object]]:
    return rows(pool.map, lambda fn, *args: pool.apply_async(fn, args), lambda found: found.get(), tasks)


def of_rankwise(pool: rw.Pool, tasks: int) -> dict[str, Callable[[], object]]:
    def map_all(fn: Callable[..., Any], given: range, chunksize: int | None) -> list[Any]:
        return list(pool.map(fn, given, chunksize=chunksize))

    return rows(map_all, pool.submit, lambda found: found.result(), tasks)


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=10_000)
    args = parser.parse_args()
    with multiprocessing.Pool(args.ranks) as other, rw.Pool(args.ranks) as own:
        peer, ours = of_multiprocessing(other, args.tasks), of_rankwise(own, args.tasks)
        print(f"| {args.ranks} ranks | rankwise, ms | multiprocessing, ms | ratio |\n|---|---|---|---|")
        for name in ours:
            times = [(timed(ours[name]), timed(peer[name])) for _ in range(args.rounds + 1)][1:]
            first, second = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(own_time / peer_time for own_time, peer_time in times)
            print(f"| {name} | {first:.2f} | {second:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
