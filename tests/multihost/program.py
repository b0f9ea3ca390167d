"""A rank of test_multihost: `program.py ACTION ARGUMENTS`. What it finds it prints as one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rankwise as rw

CALLS: dict[str, Callable[[rw.Group, Any], object]] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "broadcast": lambda group, x: group.broadcast(x, 1),
    "all_gather": lambda group, x: group.all_gather(x),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "all_to_all": lambda group, x: group.all_to_all(x),
    "gather": lambda group, x: group.gather(x, 3),
    "scatter": lambda group, x: group.scatter(x if group.rank == 0 else None),
}


def sent() -> int:
    """Bytes that have left this host."""
    text = subprocess.check_output(["ip", "-json", "-statistics", "link", "show", "eth0"])
    return int(json.loads(text)[0]["stats64"]["tx"]["bytes"])


def crossing(group: rw.Group, size: int) -> dict[str, int]:
    """Bytes that leave this host in each operation on `size` bytes; a second one, when all connections stand."""
    found = {}
    for name, call in CALLS.items():
        call(group, np.ones(size // 4, np.float32))
        group.barrier()
        before = sent()
        group.barrier()
        call(group, np.ones(size // 4, np.float32))
        group.barrier()
        found[name] = sent() - before
        group.barrier()
    return found


def seconds(group: rw.Group, *sizes: int) -> list[float]:
    """The shortest of several all_reduces of each size in bytes, of the slowest rank."""
    return [float(group.all_reduce(fastest(group, size), "max")) for size in sizes]


def fastest(group: rw.Group, size: int) -> float:
    x = np.ones(size // 4, np.float32)
    times = []
    for _ in range(7):
        group.barrier()
        start = time.perf_counter()
        group.all_reduce(x)
        times.append(time.perf_counter() - start)
    return min(times)


def until_failure(group: rw.Group, size: int) -> dict[str, Any]:
    """all_reduce without end; what ended it, and when after the last good one."""
    x = np.ones(size // 4, np.float32)
    good = time.monotonic()
    try:
        for turn in range(1 << 30):
            group.all_reduce(x)
            x[:] = 1.0
            good = time.monotonic()
            if turn == 2:
                print("ready", group.backend, flush=True)
    except rw.RankwiseError as error:
        return {"error": type(error).__name__, "text": str(error), "after": time.monotonic() - good}
    raise AssertionError("nothing failed")


def until_map_fails(group: rw.Group, longest: int) -> dict[str, Any]:
    """Tasks of which one takes so many seconds, longer than the timeout; what ended the map, and whom it blames."""

    def task(number: int) -> None:
        time.sleep(longest if number == 0 else 0.2)
        if number == 10:
            print("ready", group.backend, flush=True)

    start = time.monotonic()
    try:
        group.map(task, range(100_000), dst=1)
    except rw.RankwiseError as error:
        blamed = error.failure.to_blame
        return {"error": type(error).__name__, "text": str(error), "blamed": blamed, "after": time.monotonic() - start}
    raise AssertionError("nothing failed")


def main() -> None:
    actions: dict[str, Callable[..., Any]] = {
        "crossing": crossing,
        "seconds": seconds,
        "until_failure": until_failure,
        "until_map_fails": until_map_fails,
    }
    action, *arguments = sys.argv[1:]
    group = rw.init()
    print(json.dumps(actions[action](group, *map(int, arguments))), flush=True)


if __name__ == "__main__":
    main()
