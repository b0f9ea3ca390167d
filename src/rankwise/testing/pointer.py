"""The pointer-level test bodies: one for all collectives of the contract, and one for messages.

A body runs on every rank: it makes the inputs of a case, calls the communicator, and compares this
rank's buffers with the oracle. It returns what this rank received, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from rankwise.contract.communicator import Communicator
from rankwise.contract.operations import (
    ALL_GATHER_V,
    ALL_REDUCE,
    ALL_TO_ALL_V,
    BROADCAST,
    BY_NAME,
    GATHER_V,
    REDUCE,
    REDUCE_SCATTER_V,
    SCATTER_V,
    Call,
    Operation,
)
from rankwise.contract.types import ReduceOp
from rankwise.testing.cases import Case, numpy_dtypes
from rankwise.testing.oracle import Array, contents, difference, reduced, uneven

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


def body(comm: Communicator, case: Case) -> Array | None:
    return send_recv(comm, case) if case.operation == "send_recv" else collective(comm, case)


def collective(comm: Communicator, case: Case) -> Array | None:
    n, me = comm.world_size, comm.rank
    call, mine = _call_of(case, me, n), _sent(case, me, n)
    operation = call.operation
    send = recv = GuardedBuffer("send buffer", mine, case)
    if "recv" in operation.takes:
        recv = GuardedBuffer("recv buffer", _stale(case, operation.receives(call, me, n)), case)
    # Off root, the address of a buffer of its own that only root uses is 0.
    unused = operation.rooted if me != case.root and send is not recv else ""
    call = call._replace(send=0 if unused == "reads" else send.ptr, recv=0 if unused == "writes" else recv.ptr)
    getattr(comm, operation.name)(*call.arguments)
    comm.sync()
    writes = operation.rooted != "writes" or me == case.root
    if not writes or send is not recv:
        send.check(mine)
    return recv.check(EXPECTED[call.vector(n).operation](case, me, n), exact=case.op is None) if writes else None


def send_recv(comm: Communicator, case: Case) -> Array:
    """Each rank sends to the next one; a single rank sends to itself."""
    n, me = comm.world_size, comm.rank
    before = (me - 1) % n
    mine = contents(case, me, n)
    send, recv = GuardedBuffer("send buffer", mine, case), GuardedBuffer("recv buffer", _stale(case, mine.size), case)
    comm.send(send.ptr, send.count, case.dtype, (me + 1) % n, case.seed % 5)
    comm.recv(recv.ptr, recv.count, case.dtype, before, case.seed % 5)
    comm.sync()
    send.check(mine)
    return recv.check(contents(case, before, n))


def _call_of(case: Case, rank: int, n: int) -> Call:
    """A rank's call, without the addresses."""
    operation = BY_NAME[case.operation]
    call = Call(operation, dtype=case.dtype, op=case.op, root=case.root)
    if "send_counts" in operation.takes:
        rows = _rows(case, n)
        return call._replace(send_counts=rows[rank], recv_counts=[row[rank] for row in rows])
    return call._replace(counts=uneven(case, n)) if operation.vectors else call._replace(count=case.shape[0])


@lru_cache(1)
def _rows(case: Case, n: int) -> list[list[int]]:
    """rows[i][j]: how many elements rank i sends to rank j in an all_to_all_v."""
    return [uneven(case, n, salt=source) for source in range(n)]


def _sent(case: Case, rank: int, n: int) -> Array:
    """What a rank sends."""
    call = _call_of(case, rank, n)
    return contents(case, rank, n, (call.operation.sends(call, rank, n),))


def _everything(case: Case, n: int) -> list[Array]:
    return [_sent(case, rank, n) for rank in range(n)]


def _block(case: Case, source: int, target: int, n: int) -> Array:
    """The block for rank `target` of what rank `source` sends."""
    call = _call_of(case, source, n).vector(n)
    counts: Sequence[int] = call.counts or call.send_counts or ()
    start = [0, *accumulate(counts)][target]
    return _sent(case, source, n)[start : start + counts[target]]


def _blocks(case: Case, me: int, n: int) -> list[Array]:
    """The blocks for this rank of what all ranks send."""
    return [_block(case, rank, me, n) for rank in range(n)]


EXPECTED: dict[Operation, Callable[[Case, int, int], Array]] = {
    ALL_REDUCE: lambda case, me, n: reduced(_everything(case, n), case.dtype, _op(case)),
    REDUCE: lambda case, me, n: reduced(_everything(case, n), case.dtype, _op(case)),
    BROADCAST: lambda case, me, n: _sent(case, _root(case), n),
    ALL_GATHER_V: lambda case, me, n: np.concatenate(_everything(case, n)),
    GATHER_V: lambda case, me, n: np.concatenate(_everything(case, n)),
    SCATTER_V: lambda case, me, n: _block(case, _root(case), me, n),
    REDUCE_SCATTER_V: lambda case, me, n: reduced(_blocks(case, me, n), case.dtype, _op(case)),
    ALL_TO_ALL_V: lambda case, me, n: np.concatenate(_blocks(case, me, n)),
}
"""By operation, what this rank receives."""


def _stale(case: Case, count: int) -> Array:
    """Elements that differ from any result."""
    return np.frombuffer(b"\x5a" * (count * case.dtype.itemsize), np.uint8).view(numpy_dtypes()[case.dtype])


def _root(case: Case) -> int:
    assert case.root is not None
    return case.root


def _op(case: Case) -> ReduceOp:
    assert case.op is not None
    return case.op
