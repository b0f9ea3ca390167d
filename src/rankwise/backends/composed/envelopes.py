"""The ranks compare their calls by envelopes, which also hold the data of small collectives.

An *envelope* is what a rank sends to all others: a digest of its call, then room for an inline payload. All envelopes
of a group have one length, whatever is called, since some engines crash if lengths differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from rankwise._native import reduce_local
from rankwise.backends.composed.calls import ITEMSIZE
from rankwise.contract.types import DType, ReduceOp

DIGEST = 8  # bytes

_copy = ctypes.memmove


class Different(Exception):
    """The ranks' calls differ."""


class Envelopes:
    """One rank's envelope, and memory for all ranks' envelopes.

    The methods named like collectives do them in one exchange, if the data fits into the envelopes.
    They take the arguments of an adapter's moves, and raise Different before they write anything.

    inline: the most bytes of a payload, a multiple of 8. mover: makes a function that exchanges them, from the
    address of this rank's envelope, the address for all envelopes, and the size of one.
    """

    def __init__(
        self, rank: int, world_size: int, inline: int, mover: Callable[[int, int, int], Callable[[], object]]
    ) -> None:
        self.digest = 0  # of this rank's call
        self._rank, self._n = rank, world_size
        size = DIGEST + inline
        self._mine, self._all = np.zeros(size // 8, np.int64), np.zeros((world_size, size // 8), np.int64)
        mine, everybody = (int(array.ctypes.data) for array in (self._mine, self._all))
        self._head = memoryview(self._mine)  # type: ignore[arg-type]  # NumPy's arrays are buffers
        self._digests = memoryview(self._all[:, 0])  # type: ignore[arg-type]
        self._payload = mine + DIGEST
        self._payloads = [everybody + DIGEST + number * size for number in range(world_size)]
        self._move = mover(mine, everybody, size)

    def exchange(self, ptr: int = 0, size: int = 0) -> list[int]:
        """Send a payload of `size` bytes. Returns where all ranks' payloads are, by rank, until the next exchange."""
        self._head[0] = self.digest
        if size:
            _copy(self._payload, ptr, size)
        self._move()
        if self._digests.tolist().count(self.digest) != self._n:
            raise Different
        return self._payloads

    def barrier(self) -> None:
        self.exchange()

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        reduce_local(ptr, self.exchange(ptr, count * ITEMSIZE[dtype]), count, dtype, op, self._n)

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        if self._rank == root:
            self.exchange(ptr, size)
        else:
            _copy(ptr, self.exchange()[root], size)

    def reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        payloads = self.exchange(ptr, count * ITEMSIZE[dtype])
        if self._rank == root:
            reduce_local(ptr, payloads, count, dtype, op, self._n)

    def all_gather(self, send: int, recv: int, size: int) -> None:
        for at in self.exchange(send, size):
            _copy(recv, at, size)
            recv += size

    def gather(self, send: int, recv: int, size: int, root: int) -> None:
        if self._rank == root:
            self.all_gather(send, recv, size)
        else:
            self.exchange(send, size)

    def scatter(self, send: int, recv: int, size: int, root: int) -> None:
        payloads = self.exchange(send, size * self._n) if self._rank == root else self.exchange()
        _copy(recv, payloads[root] + self._rank * size, size)

    def reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size = count * ITEMSIZE[dtype]
        blocks = [at + self._rank * size for at in self.exchange(send, size * self._n)]
        reduce_local(recv, blocks, count, dtype, op, self._n)

    def all_to_all(self, send: int, recv: int, size: int) -> None:
        for at in self.exchange(send, size * self._n):
            _copy(recv, at + self._rank * size, size)
            recv += size
