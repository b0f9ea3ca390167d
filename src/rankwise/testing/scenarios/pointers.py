"""The pointer level of the contract: barrier, sync, per-rank counts with zeros, refused arguments."""

from __future__ import annotations

import time

import numpy as np

from rankwise.contract.types import DType, ReduceOp
from rankwise.group.group import Group
from rankwise.testing.checks import refuses


def barrier_waits_for_all(group: Group) -> None:
    """No rank leaves a barrier before the last has entered it. The ranks share a host, hence a clock."""
    for late in range(group.world_size):
        if group.rank == late:
            time.sleep(0.02)
        arrived = time.monotonic()
        group.comm.barrier()
        left = time.monotonic()
        assert group.all_reduce(arrived, "max") <= group.all_reduce(left, "min")


def barrier_completes_messages(group: Group) -> None:
    comm = group.comm
    own, got = np.full(999, comm.rank, np.int32), np.empty(999, np.int32)
    before = (comm.rank - 1) % comm.world_size
    comm.recv(got.ctypes.data, got.size, DType.I32, before)
    comm.send(own.ctypes.data, own.size, DType.I32, (comm.rank + 1) % comm.world_size)
    comm.barrier()
    assert (got == before).all()


def all_counts_zero(group: Group) -> None:
    """Counts of zero are allowed, and the addresses are not used."""
    comm, zeros = group.comm, [0] * group.world_size
    comm.all_reduce(0, 0, DType.F32, ReduceOp.SUM)
    comm.broadcast(0, 0, DType.F32, comm.world_size - 1)
    comm.all_gather(0, 0, 0, DType.I64)
    comm.all_to_all(0, 0, 0, DType.I64)
    comm.all_gather_v(0, 0, zeros, DType.F32)
    comm.gather_v(0, 0, zeros, DType.F32, 0)
    comm.scatter_v(0, 0, zeros, DType.F32, 0)
    comm.reduce_scatter_v(0, 0, zeros, DType.F32, ReduceOp.MAX)
    comm.all_to_all_v(0, 0, zeros, zeros, DType.F32)
    comm.sync()


def one_rank_has_it_all(group: Group) -> None:
    """One rank has all elements, each rank once; the other ranks' counts and addresses are 0."""
    comm = group.comm
    data = np.arange(5000, dtype=np.float32)
    for owner in range(comm.world_size):
        counts = [data.size if rank == owner else 0 for rank in range(comm.world_size)]
        send = data.ctypes.data if comm.rank == owner else 0
        got = np.zeros_like(data)
        comm.all_gather_v(send, got.ctypes.data, counts, DType.F32)
        comm.sync()
        assert (got == data).all()
        got[:] = 0
        comm.scatter_v(data.ctypes.data if comm.rank == 0 else 0, got.ctypes.data, counts, DType.F32, 0)
        comm.sync()
        assert (got == (data if comm.rank == owner else 0)).all()
        got[:] = 0
        comm.reduce_scatter_v(data.ctypes.data, got.ctypes.data, counts, DType.F32, ReduceOp.MAX)
        comm.sync()
        assert (got == (data if comm.rank == owner else 0)).all()


def results_after_sync(group: Group) -> None:
    """Queued operations take effect in their order."""
    comm = group.comm
    x = np.ones(3000, np.float64)
    for _ in range(5):
        comm.all_reduce(x.ctypes.data, x.size, DType.F64, ReduceOp.SUM)
    comm.broadcast(x.ctypes.data, x.size, DType.F64, 0)
    comm.sync()
    assert (x == float(comm.world_size) ** 5).all()


def refused_arguments(group: Group) -> None:
    comm, n = group.comm, group.world_size
    x = np.ones(4 * n)
    y = np.zeros(4 * n)
    p, q, f64 = x.ctypes.data, y.ctypes.data, DType.F64
    for root in (-1, n):
        refuses(ValueError, comm.broadcast, p, 4, f64, root, words=("root", str(root)))
        refuses(ValueError, comm.reduce, p, 4, f64, ReduceOp.SUM, root, words=("root", str(root)))
        refuses(ValueError, comm.gather, p, q, 4, f64, root, words=("root", str(root)))
        refuses(ValueError, comm.scatter, p, q, 4, f64, root, words=("root", str(root)))
        refuses(ValueError, comm.send, p, 4, f64, root, words=("dest", str(root)))
    refuses(ValueError, comm.recv, q, 4, f64, n, words=("src", str(n)))
    refuses(ValueError, comm.all_gather_v, p, q, [1] * (n + 1), f64, words=("counts", str(n + 1)))
    refuses(ValueError, comm.all_to_all_v, p, q, [1] * n, [], f64, words=("recv_counts", "0"))
    refuses((TypeError, ValueError), comm.all_reduce, p, -1, f64, ReduceOp.SUM)
    assert (x == 1).all()
    assert (y == 0).all()
