"""The pointer-level test bodies, one per operation of the contract.

A body runs on every rank: it makes the inputs of a case, calls the communicator, and compares this
rank's buffers with the oracle. It returns what this rank received, or None.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankwise.contract.communicator import Communicator
from rankwise.contract.types import ReduceOp
from rankwise.testing.cases import Case, numpy_dtypes
from rankwise.testing.oracle import Array, block, contents, difference, reduced, uneven

GUARD = 64  # bytes before and after every buffer, which no operation may touch
GUARD_BYTE = 0xA5


class GuardedBuffer:
    """A buffer between guard bytes, at an address that is aligned for its elements but not for more."""

    def __init__(self, what: str, values: Array, case: Case) -> None:
        self.what = what
        itemsize = values.dtype.itemsize
        self._start = GUARD + itemsize * (case.seed % 8)
        self._raw = np.full(self._start + values.nbytes + GUARD, GUARD_BYTE, np.uint8)
        self._stop = self._start + values.nbytes
        self.array = self._raw[self._start : self._stop].view(values.dtype)
        self.array[:] = values.reshape(-1)
        self.ptr = int(self._raw.ctypes.data) + self._start
        self.count = values.size

    def check(self, want: Array, exact: bool = True) -> Array:
        """Raise AssertionError if the buffer differs from `want` or the guards were written to."""
        wrong = difference(self.array, want.reshape(-1), exact)
        assert wrong is None, f"{self.what}: {wrong}"
        guards = np.concatenate([self._raw[: self._start], self._raw[self._stop :]])
        assert (guards == GUARD_BYTE).all(), f"{self.what}: memory outside the buffer was written to"
        return self.array


def all_reduce(comm: Communicator, case: Case) -> Array:
    inputs = _inputs(comm, case)
    buffer = GuardedBuffer("buffer", inputs[comm.rank], case)
    comm.all_reduce(buffer.ptr, buffer.count, case.dtype, _op(case))
    comm.sync()
    return buffer.check(reduced(inputs, case.dtype, _op(case)), exact=False)


def broadcast(comm: Communicator, case: Case) -> Array:
    root = _root(case)
    buffer = GuardedBuffer("buffer", contents(case, comm.rank, comm.world_size), case)
    comm.broadcast(buffer.ptr, buffer.count, case.dtype, root)
    comm.sync()
    return buffer.check(contents(case, root, comm.world_size))


def reduce(comm: Communicator, case: Case) -> Array | None:
    root = _root(case)
    inputs = _inputs(comm, case)
    buffer = GuardedBuffer("buffer", inputs[comm.rank], case)
    comm.reduce(buffer.ptr, buffer.count, case.dtype, _op(case), root)
    comm.sync()
    if comm.rank == root:
        return buffer.check(reduced(inputs, case.dtype, _op(case)), exact=False)
    buffer.check(inputs[comm.rank])
    return None


def all_gather(comm: Communicator, case: Case) -> Array:
    inputs = _inputs(comm, case)
    send, recv = _buffers(case, inputs[comm.rank], inputs[0].size * comm.world_size)
    comm.all_gather(send.ptr, recv.ptr, send.count, case.dtype)
    comm.sync()
    send.check(inputs[comm.rank])
    return recv.check(np.concatenate(inputs))


def gather(comm: Communicator, case: Case) -> Array | None:
    root = _root(case)
    inputs = _inputs(comm, case)
    send, recv = _buffers(case, inputs[comm.rank], inputs[0].size * comm.world_size)
    comm.gather(send.ptr, recv.ptr if comm.rank == root else 0, send.count, case.dtype, root)
    comm.sync()
    send.check(inputs[comm.rank])
    return recv.check(np.concatenate(inputs)) if comm.rank == root else None


def scatter(comm: Communicator, case: Case) -> Array:
    root, count = _root(case), case.shape[0]
    whole = contents(case, root, comm.world_size, (count * comm.world_size,))
    send, recv = _buffers(case, whole, count)
    comm.scatter(send.ptr if comm.rank == root else 0, recv.ptr, count, case.dtype, root)
    comm.sync()
    send.check(whole)
    return recv.check(block(case, root, comm.world_size, [count] * comm.world_size, comm.rank))


def reduce_scatter(comm: Communicator, case: Case) -> Array:
    count, n = case.shape[0], comm.world_size
    mine = contents(case, comm.rank, n, (count * n,))
    send, recv = _buffers(case, mine, count)
    comm.reduce_scatter(send.ptr, recv.ptr, count, case.dtype, _op(case))
    comm.sync()
    send.check(mine)
    return recv.check(_reduced_block(comm, case, [count] * n), exact=False)


def all_to_all(comm: Communicator, case: Case) -> Array:
    count, n, me = case.shape[0], comm.world_size, comm.rank
    mine = contents(case, me, n, (count * n,))
    send, recv = _buffers(case, mine, count * n)
    comm.all_to_all(send.ptr, recv.ptr, count, case.dtype)
    comm.sync()
    send.check(mine)
    return recv.check(np.concatenate([block(case, rank, n, [count] * n, me) for rank in range(n)]))


def all_gather_v(comm: Communicator, case: Case) -> Array:
    counts = uneven(case, comm.world_size)
    inputs = [contents(case, rank, comm.world_size, (count,)) for rank, count in enumerate(counts)]
    send, recv = _buffers(case, inputs[comm.rank], sum(counts))
    comm.all_gather_v(send.ptr, recv.ptr, counts, case.dtype)
    comm.sync()
    send.check(inputs[comm.rank])
    return recv.check(np.concatenate(inputs))


def gather_v(comm: Communicator, case: Case) -> Array | None:
    root, counts = _root(case), uneven(case, comm.world_size)
    inputs = [contents(case, rank, comm.world_size, (count,)) for rank, count in enumerate(counts)]
    send, recv = _buffers(case, inputs[comm.rank], sum(counts))
    comm.gather_v(send.ptr, recv.ptr if comm.rank == root else 0, counts, case.dtype, root)
    comm.sync()
    send.check(inputs[comm.rank])
    return recv.check(np.concatenate(inputs)) if comm.rank == root else None


def scatter_v(comm: Communicator, case: Case) -> Array:
    root, counts = _root(case), uneven(case, comm.world_size)
    whole = contents(case, root, comm.world_size, (sum(counts),))
    send, recv = _buffers(case, whole, counts[comm.rank])
    comm.scatter_v(send.ptr if comm.rank == root else 0, recv.ptr, counts, case.dtype, root)
    comm.sync()
    send.check(whole)
    return recv.check(block(case, root, comm.world_size, counts, comm.rank))


def reduce_scatter_v(comm: Communicator, case: Case) -> Array:
    counts = uneven(case, comm.world_size)
    mine = contents(case, comm.rank, comm.world_size, (sum(counts),))
    send, recv = _buffers(case, mine, counts[comm.rank])
    comm.reduce_scatter_v(send.ptr, recv.ptr, counts, case.dtype, _op(case))
    comm.sync()
    send.check(mine)
    return recv.check(_reduced_block(comm, case, counts), exact=False)


def all_to_all_v(comm: Communicator, case: Case) -> Array:
    n, me = comm.world_size, comm.rank
    counts = [uneven(case, n, salt=rank) for rank in range(n)]  # counts[i][j]: from rank i to rank j
    mine = contents(case, me, n, (sum(counts[me]),))
    received = [row[me] for row in counts]
    send, recv = _buffers(case, mine, sum(received))
    comm.all_to_all_v(send.ptr, recv.ptr, counts[me], received, case.dtype)
    comm.sync()
    send.check(mine)
    return recv.check(np.concatenate([block(case, rank, n, row, me) for rank, row in enumerate(counts)]))


def send_recv(comm: Communicator, case: Case) -> Array:
    """Each rank sends to the next one; a single rank sends to itself."""
    n, me = comm.world_size, comm.rank
    before = (me - 1) % n
    mine = contents(case, me, n)
    send, recv = _buffers(case, mine, mine.size)
    comm.send(send.ptr, send.count, case.dtype, (me + 1) % n, case.seed % 5)
    comm.recv(recv.ptr, recv.count, case.dtype, before, case.seed % 5)
    comm.sync()
    send.check(mine)
    return recv.check(contents(case, before, n))


BODIES: dict[str, Callable[[Communicator, Case], Array | None]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "all_gather_v": all_gather_v,
    "gather_v": gather_v,
    "scatter_v": scatter_v,
    "reduce_scatter_v": reduce_scatter_v,
    "all_to_all_v": all_to_all_v,
    "send_recv": send_recv,
}


def _inputs(comm: Communicator, case: Case) -> list[Array]:
    return [contents(case, rank, comm.world_size) for rank in range(comm.world_size)]


def _reduced_block(comm: Communicator, case: Case, counts: list[int]) -> Array:
    """This rank's block of the reduction of inputs of sum(counts) elements."""
    blocks = [block(case, rank, comm.world_size, counts, comm.rank) for rank in range(comm.world_size)]
    return reduced(blocks, case.dtype, _op(case))


def _buffers(case: Case, values: Array, receive: int) -> tuple[GuardedBuffer, GuardedBuffer]:
    """A send buffer with `values`, and a receive buffer of `receive` elements that differ from any result."""
    stale = np.frombuffer(b"\x5a" * (receive * case.dtype.itemsize), np.uint8)
    kind = numpy_dtypes()[case.dtype]
    return GuardedBuffer("send buffer", values, case), GuardedBuffer("recv buffer", stale.view(kind), case)


def _root(case: Case) -> int:
    assert case.root is not None
    return case.root


def _op(case: Case) -> ReduceOp:
    assert case.op is not None
    return case.op
