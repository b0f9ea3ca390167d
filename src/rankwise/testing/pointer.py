"""The pointer-level test bodies: one for all collectives of the contract, and one for messages.

A body runs on every rank: it makes the inputs of a case, calls the communicator, and compares this
rank's buffers with the oracle. It returns what this rank received, or None.
"""

from __future__ import annotations

import numpy as np

from rankwise.contract.communicator import Communicator
from rankwise.contract.operations import Call
from rankwise.testing.cases import Case, numpy_dtypes
from rankwise.testing.oracle import Array, check_equal, exchange

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
        check_equal(self.array, want.reshape(-1), exact, f"{self.what}: ")
        guards = np.concatenate([self._raw[: self._start], self._raw[self._stop :]])
        assert (guards == GUARD_BYTE).all(), f"{self.what}: memory outside the buffer was written to"
        return self.array


def body(comm: Communicator, case: Case) -> Array | None:
    return send_recv(comm, case) if case.operation == "send_recv" else collective(comm, case)


def collective(comm: Communicator, case: Case) -> Array | None:
    n, me = comm.world_size, comm.rank
    data = exchange(case, "pointer", n)
    row, own, want = data.row, data.sent(me), data.received(me)
    call = Call(row, dtype=case.dtype, op=case.op, root=case.root)
    if "send_counts" in row.takes:
        call = call._replace(send_counts=data.counts[me], recv_counts=[row[me] for row in data.counts])
    elif row.vectors:
        call = call._replace(counts=data.counts[me])
    else:
        call = call._replace(count=case.shape[0])
    send = recv = GuardedBuffer("send buffer", own, case)
    if "recv" in row.takes:
        recv = GuardedBuffer("recv buffer", _stale(case, row.receives(call, me, n)), case)
    # Off root, the address of a buffer of its own that only root uses is 0.
    unused = row.rooted if me != case.root and send is not recv else ""
    call = call._replace(send=0 if unused == "reads" else send.ptr, recv=0 if unused == "writes" else recv.ptr)
    getattr(comm, row.name)(*call.arguments)
    comm.sync()
    if want is None or send is not recv:
        send.check(own)
    return None if want is None else recv.check(want, exact=case.op is None)


def send_recv(comm: Communicator, case: Case) -> Array:
    """Each rank sends to the next one; a single rank sends to itself."""
    n, me = comm.world_size, comm.rank
    data, before = exchange(case, "pointer", n), (me - 1) % n
    own = data.sent(me)
    send, recv = GuardedBuffer("send buffer", own, case), GuardedBuffer("recv buffer", _stale(case, own.size), case)
    comm.send(send.ptr, send.count, case.dtype, (me + 1) % n, case.seed % 5)
    comm.recv(recv.ptr, recv.count, case.dtype, before, case.seed % 5)
    comm.sync()
    send.check(own)
    return recv.check(data.sent(before))


def _stale(case: Case, count: int) -> Array:
    """Elements that differ from any result."""
    return np.frombuffer(b"\x5a" * (count * case.dtype.itemsize), np.uint8).view(numpy_dtypes()[case.dtype])
