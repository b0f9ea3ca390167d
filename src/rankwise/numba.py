"""Communication inside functions that Numba compiles.

    import numba, numpy as np, rankwise as rw
    from rankwise.numba import all_reduce

    @numba.njit(nogil=True)
    def norm(handle, x):
        total = np.array([(x * x).sum()])
        all_reduce(handle, total)
        return np.sqrt(total[0])

    norm(rw.init().handle, np.ones(1000))

The first argument is the `handle` of a group. Arrays must be contiguous in C's order, and writable if an operation
writes them, which is checked when the caller is compiled; results are stored in the arrays that are passed. An `op` is
a string that is written in the code, or a `rw.ReduceOp`. What goes wrong raises the exceptions of a group's methods.
docs/how-to/compiled.md says when this pays.
"""

from __future__ import annotations

from rankwise.frontends.numba.collectives import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    barrier,
    broadcast,
    gather,
    gather_v,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_v,
    scatter,
    scatter_v,
    send,
    wait,
)
from rankwise.frontends.numba.library import rank, world_size

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "broadcast",
    "gather",
    "gather_v",
    "irecv",
    "isend",
    "rank",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "scatter_v",
    "send",
    "wait",
    "world_size",
]
