"""What recording costs a call: `mpiexec -n 1 python -m rankwise.watch benchmarks/watch_cost.py`.

The calls of one rank with itself, on MPI alone and watched; of several rounds the best.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

CALLS, ROUNDS = 500, 300


def main() -> int:
    """Print the table."""
    watched = MPI.COMM_SELF
    if not hasattr(watched, "_watched"):
        print("start it with python -m rankwise.watch", file=sys.stderr)
        return 2
    alone = MPI.Intracomm(watched)  # the same communicator, not recorded
    x, y = np.zeros(1), np.zeros(1)
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("Barrier", ()),
        ("Bcast", (x, 0)),
        ("Allreduce", (x, y)),
        ("bcast", (1,)),
        ("Isend", (x, MPI.PROC_NULL)),
    )
    print("ns per call: on MPI alone, watched, difference")
    for name, arguments in calls:
        before = after = float("inf")
        for _ in range(ROUNDS):  # in turns, so that other load meets both
            before = min(before, duration(getattr(alone, name), arguments))
            after = min(after, duration(getattr(watched, name), arguments))
        print(f"  {name:10}{before:6.0f}{after:6.0f}{after - before:6.0f}")
    return 0


def duration(method: Any, arguments: tuple[Any, ...]) -> float:
    """ns that a call takes."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        method(*arguments)
    return (time.perf_counter() - begin) / CALLS * 1e9


if __name__ == "__main__":
    sys.exit(main())
