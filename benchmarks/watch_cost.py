"""What recording costs a call: `mpiexec -n 1 python -m rankwise.watch benchmarks/watch_cost.py`.

The calls of one rank with itself, on MPI alone and watched; of several rounds the best.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

CALLS, ROUNDS = 5_000, 30


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
        before, after = best(getattr(alone, name), arguments), best(getattr(watched, name), arguments)
        print(f"  {name:10}{before:6.0f}{after:6.0f}{after - before:6.0f}")
    return 0


def best(method: Any, arguments: tuple[Any, ...]) -> float:
    """ns that a call takes."""
    found = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            method(*arguments)
        found = min(found, time.perf_counter() - begin)
    return found / CALLS * 1e9


if __name__ == "__main__":
    sys.exit(main())
