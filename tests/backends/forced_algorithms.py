"""Every algorithm of a backend, forced, on both sides of every threshold, against NumPy."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from rankwise.backends import tuning
from rankwise.backends.composed.communicator import ComposedCommunicator
from rankwise.contract.errors import UnsupportedError
from rankwise.group.group import Group

THRESHOLDS = (
    0, tuning.INLINE["mpi"], tuning.INLINE_DEFAULT, tuning.GATHERED_DEFAULT, tuning.GATHERED["gloo"],
    tuning.PAIRWISE, tuning.ONE_LANE, tuning.PIPELINED, tuning.DIRECT,
)  # fmt: skip
DTYPES = (np.int64, np.float32, np.float16)


def sizes(n: int) -> list[int]:
    """Elements of 8 bytes around each threshold: of one rank's array, of all ranks' together, or of all others'."""
    parts = (1, n, n - 1)
    edges = {edge // part for edge in THRESHOLDS for part in parts} | {tuning.whole(n)}
    around = {edge // 8 + step for edge in edges for step in (-1, 0, 1)}
    return sorted(count for count in around if count >= 0)


@lru_cache(maxsize=1)  # ranks that are threads share it, and so do the algorithms, which follow each other
def given(n: int, count: int, dtype: Any) -> tuple[list[Any], Any]:
    """The array of every rank, and their sum."""
    arrays = [(np.arange(count) % 13 + rank).astype(dtype) for rank in range(n)]
    return arrays, sum(arrays)


def check_one(group: Group, operation: str, count: int, dtype: Any) -> None:
    """One call; AssertionError where it is wrong. The sums are small enough to be exact in each type."""
    n, me = group.world_size, group.rank
    everybody, total = given(n, count, dtype)
    x = everybody[me].copy()  # some operations put their result there
    match operation:
        case "all_reduce":
            assert (group.all_reduce(x) == total).all()
        case "reduce":
            got = group.reduce(x, n - 1)
            assert got is None if me != n - 1 else (got == total).all()
        case "gather":
            gathered = group.gather(x, n - 1)
            assert gathered is None if me != n - 1 else (gathered == np.array(everybody)).all()
        case "scatter":
            assert (group.scatter(x if me == n - 1 else None, n - 1) == np.array_split(everybody[-1], n)[me]).all()
        case "all_to_all":
            parts = [np.array_split(each, n)[me] for each in everybody]
            assert (group.all_to_all(x) == np.concatenate(parts)).all()
        case "broadcast":
            assert (group.broadcast(x, n - 1) == everybody[-1]).all()
        case "all_gather":
            assert (group.all_gather(x) == np.array(everybody)).all()
        case "all_gather_v":
            mine = x[: count // 2] if me == 0 else x
            assert (group.all_gather_v(mine) == np.concatenate([everybody[0][: count // 2], *everybody[1:]])).all()
        case "reduce_scatter":
            assert (group.reduce_scatter(x) == np.array_split(total, n)[me]).all()
        case _:
            raise NotImplementedError(operation)


def check_all(group: Group) -> dict[str, int]:
    """All of them: how many calls each algorithm made. One that cannot run says so on every rank, and does no harm."""
    comm: Any = getattr(group.comm, "_inner", group.comm)  # gloo's is traced
    assert isinstance(comm, ComposedCommunicator)
    ran: dict[str, int] = {}
    for operation, algorithms in tuning.ALGORITHMS[comm.backend].items():
        for number, count in enumerate(sizes(group.world_size)):
            for algorithm in algorithms:
                comm.force({operation: algorithm})
                with suppress(UnsupportedError):  # the same on every rank, else the next call would not match
                    check_one(group, operation, count, DTYPES[number % len(DTYPES)])
                    ran[f"{operation}={algorithm}"] = ran.get(f"{operation}={algorithm}", 0) + 1
                comm.force({})
    assert group.all_reduce(1) == group.world_size
    return ran


def expected(backend: str) -> set[str]:
    """What `check_all` must have run."""
    return {f"{op}={algorithm}" for op, names in tuning.ALGORITHMS[backend].items() for algorithm in names}
