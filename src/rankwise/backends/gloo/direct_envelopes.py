"""The envelopes of gloo: each is only as long as its data requires, and goes directly to its rank, in one latency.

An all_reduce, broadcast or reduce of a larger array takes two exchanges. In the first one, each rank receives its share
of the array, or of all arrays, which it reduces. The second one gathers the shares.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np

from rankwise._native import address, reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed.envelopes import DIGEST, Different, Envelopes
from rankwise.backends.gloo.transport import STANDING_TAG, Transport
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp

_copy = ctypes.memmove


class DirectEnvelopes(Envelopes):
    """Every rank sends every other rank an envelope, whose payload goes only to the ranks that need it.

    The receives have room for a payload of `capacity` bytes, a multiple of every dtype's size. If all digests agree, so
    do the calls, and with them the lengths of the payloads; otherwise the payloads are ignored.

    gloo transfers data only after the receiver has announced that it is ready. So each exchange starts the receives of
    the next one, whose announcements then arrive before they are needed, which saves a latency. As data can arrive
    before the next exchange begins, the exchanges alternate between two memories. Two are enough, because every
    exchange needs data from every rank, so that no rank is two exchanges ahead of another. A group may have only one
    object of this class.
    """

    def __init__(self, transport: Transport, capacity: int) -> None:
        rank, n = transport.rank, transport.world_size
        super().__init__(rank, n, capacity)
        self._transport = transport
        self._whole = tuning.whole(n)
        self._peers = [(rank + step) % n for step in range(1, n)]
        self._arriving: list[Any] = []  # before the memory, so that it is released first
        self._size = size = DIGEST + capacity
        # This exchange's memory and the next one's: an envelope from each rank. This rank sends from its own place.
        memory = np.empty((2, n, size // 8), np.int64)
        self._digests, self._next_digests = (envelopes[:, 0].data for envelopes in memory)
        self._payloads, self._next_payloads = (
            [address(envelopes) + DIGEST + number * size for number in range(n)] for envelopes in memory
        )
        self._blocks = np.empty((n, size // 8), np.int64)  # the envelopes of exchange_blocks, by target

    def exchange(self, ptr: int = 0, size: int = 0, root: int | None = None) -> list[int]:
        payload = self._begin()
        if size:
            _copy(payload, ptr, size)
        send, head = self._transport.send, payload - DIGEST
        needed = self._peers if root is None else (root,)
        sent = [send(head, DIGEST + size if peer in needed else DIGEST, peer, STANDING_TAG) for peer in self._peers]
        return self._complete(sent)

    def exchange_blocks(self, ptr: int, size: int) -> list[int]:
        if not ptr or not size:
            return self.exchange()
        payload = self._begin()
        _copy(payload, ptr + self._rank * size, size)
        self._blocks[:, 0] = self.digest
        at, step = address(self._blocks), self._blocks.strides[0]
        sent = []
        for peer in self._peers:
            _copy(at + peer * step + DIGEST, ptr + peer * size, size)
            sent.append(self._transport.send(at + peer * step, DIGEST + size, peer, STANDING_TAG))
        return self._complete(sent)

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int | None = None) -> None:
        size = count * ITEMSIZE[dtype]
        if size <= self._whole:
            super().all_reduce(ptr, count, dtype, op, root)
            return
        # The shares are equally long: the last may be padded.
        length = -(-count // self._n)
        share = np.empty(length * ITEMSIZE[dtype], np.uint8)
        at, _kept = self._padded(ptr, size, share.nbytes)
        reduce_local(address(share), self.exchange_blocks(at, share.nbytes), length, dtype, op, self._n)
        shares = self.exchange(address(share), share.nbytes, root)
        if root in (None, self._rank):
            self._take(ptr, size, shares, share.nbytes)

    reduce = all_reduce

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        if size <= self._whole:
            super().broadcast(ptr, size, root)
            return
        share = -(-size // self._n)
        at, padded = self._padded(ptr, size, share) if self._rank == root else (0, None)
        shares = self.exchange(self.exchange_blocks(at, share)[root], share)
        del padded  # until here, because the first exchange sends it
        if self._rank != root:
            self._take(ptr, size, shares, share)

    def _padded(self, ptr: int, size: int, share: int) -> tuple[int, Any]:
        """The address of the array, padded to n shares, and what to keep alive meanwhile: the copy, if there is one."""
        if size == share * self._n:
            return ptr, None
        memory = np.zeros(share * self._n, np.uint8)
        _copy(address(memory), ptr, size)
        return address(memory), memory

    def _take(self, ptr: int, size: int, shares: list[int], share: int) -> None:
        """Copy the first `size` bytes of all shares, one after the other, to `ptr`."""
        for start, at in zip(range(0, size, share), shares, strict=False):  # the last shares may be all padding
            _copy(ptr + start, at, min(share, size - start))

    def _begin(self) -> int:
        """Begin an exchange. Returns the address of this rank's own payload."""
        self._start_receives()
        self._digests[self._rank] = self.digest
        return self._payloads[self._rank]

    def _start_receives(self) -> None:
        for peer in self._peers[len(self._arriving) :]:
            at = self._payloads[peer] - DIGEST
            self._arriving.append(self._transport.recv(at, self._size, peer, STANDING_TAG))

    def _complete(self, sent: list[Any]) -> list[int]:
        arriving, self._arriving = self._arriving, []
        digests, payloads = self._digests, self._payloads
        self._digests, self._next_digests = self._next_digests, digests
        self._payloads, self._next_payloads = self._next_payloads, payloads
        # A rank may close the group after its last exchange while slower ranks are still in that exchange, which need
        # nothing more from it. An exchange that does take place raises the error.
        with suppress(RuntimeError):
            self._start_receives()
        self._transport.wait_all(arriving)
        self._transport.wait_all(sent)
        if digests.tolist().count(self.digest) != self._n:
            raise Different
        return payloads
