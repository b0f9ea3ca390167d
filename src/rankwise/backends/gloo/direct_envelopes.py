"""The envelopes of gloo: each is only as long as its data requires, and goes directly to its rank, in one latency.

An all_reduce, broadcast or reduce of a larger array takes two exchanges. In the first one, each rank receives its share
of the array, or of all arrays, which it reduces. The second one gathers the shares.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from rankwise._native import reduce_local
from rankwise.backends import tuning
from rankwise.backends.composed.envelopes import DIGEST, Different, Envelopes
from rankwise.backends.composed.memory import address
from rankwise.backends.gloo.transport import STANDING_TAG, Transport
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp


class StandingReceives:
    """The receives of a repeated exchange. Each exchange starts those of the next one.

    gloo transfers data only after the receiver has announced that it is ready. The announcements of receives that were
    started an exchange ahead arrive before they are needed, which saves a latency. As data can then arrive before the
    next exchange begins, the exchanges alternate between two memories. Two are enough if every exchange needs data from
    every rank, because then no rank is two exchanges ahead of another. A group may have only one object of this class.
    A message may be shorter than its place; the rest of the place then keeps its content.
    """

    def __init__(self, transport: Transport, peers: Sequence[int], size: int) -> None:
        """In each exchange, up to `size` bytes from each of these ranks arrive, at its place in the memory."""
        self._transport, self._peers, self._size = transport, peers, size
        self._arriving: list[Any] = []  # before the memory, so that it is released first
        self.memory = np.empty((2, transport.world_size * size), np.uint8)
        self._here, self._there = (address(row) for row in self.memory)

    def begin(self) -> tuple[int, list[Any]]:
        """Begin an exchange. Returns the address of its memory, and its receives."""
        return self._here, self._arriving or self._started(self._here)

    def start_next(self) -> None:
        """Start the receives of the next exchange. From now on they overwrite the memory of the previous one."""
        self._here, self._there = self._there, self._here
        self._arriving = self._started(self._here)

    def _started(self, memory: int) -> list[Any]:
        return [self._recv(memory + peer * self._size, peer) for peer in self._peers]

    def _recv(self, ptr: int, peer: int) -> Any:
        try:
            return self._transport.recv(ptr, self._size, peer, STANDING_TAG)
        except RuntimeError as error:
            return _Failed(error)


class _Failed:
    """A receive that gloo refused, which is an error only once its data is needed.

    A rank may close the group after its last exchange while slower ranks are still in that exchange: they need nothing
    more from it, but already start the receives of an exchange that will not take place.
    """

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, _timeout: timedelta) -> None:
        raise self._error


_copy = ctypes.memmove


class DirectEnvelopes(Envelopes):
    """Every rank sends every other rank an envelope, whose payload goes only to the ranks that need it.

    The receives have room for a payload of `capacity` bytes, a multiple of every dtype's size. If all digests agree, so
    do the calls, and with them the lengths of the payloads; otherwise the payloads are ignored.
    """

    def __init__(self, transport: Transport, capacity: int) -> None:
        rank, n = transport.rank, transport.world_size
        super().__init__(rank, n, capacity)
        self._transport = transport
        self._whole = tuning.whole(n)
        self._peers = [(rank + step) % n for step in range(1, n)]
        size = DIGEST + capacity
        self._receives = StandingReceives(transport, self._peers, size)
        # By memory: the digests, and the addresses of the payloads, by rank. This rank sends from its own place there.
        rows = self._receives.memory.view(np.int64).reshape(2, n, size // 8)
        self._digests = {address(memory): memory[:, 0].data for memory in rows}
        self._payloads = {
            address(memory): [address(memory) + DIGEST + number * size for number in range(n)] for memory in rows
        }
        self._blocks = np.empty((n, size // 8), np.int64)  # the envelopes of exchange_blocks, by target

    def exchange(self, ptr: int = 0, size: int = 0, root: int | None = None) -> list[int]:
        here, arriving, payload = self._begin()
        if size:
            _copy(payload, ptr, size)
        send, head = self._transport.send, payload - DIGEST
        needed = self._peers if root is None else (root,)
        sent = [send(head, DIGEST + size if peer in needed else DIGEST, peer, STANDING_TAG) for peer in self._peers]
        return self._complete(here, arriving, sent)

    def exchange_blocks(self, ptr: int, size: int) -> list[int]:
        if not ptr or not size:
            return self.exchange()
        here, arriving, payload = self._begin()
        _copy(payload, ptr + self._rank * size, size)
        self._blocks[:, 0] = self.digest
        at, step = address(self._blocks), self._blocks.strides[0]
        sent = []
        for peer in self._peers:
            _copy(at + peer * step + DIGEST, ptr + peer * size, size)
            sent.append(self._transport.send(at + peer * step, DIGEST + size, peer, STANDING_TAG))
        return self._complete(here, arriving, sent)

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> None:
        size = count * ITEMSIZE[dtype]
        if size <= self._whole:
            super().all_reduce(ptr, count, dtype, op)
            return
        share = self._reduced_share(ptr, count, dtype, op)
        self._take(ptr, size, self.exchange(address(share), share.nbytes), share.nbytes)

    def reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int) -> None:
        size = count * ITEMSIZE[dtype]
        if size <= self._whole:
            super().reduce(ptr, count, dtype, op, root)
            return
        share = self._reduced_share(ptr, count, dtype, op)
        shares = self.exchange(address(share), share.nbytes, root)
        if self._rank == root:
            self._take(ptr, size, shares, share.nbytes)

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        if size <= self._whole:
            super().broadcast(ptr, size, root)
            return
        share = -(-size // self._n)
        at, kept = self._padded(ptr, size, share) if self._rank == root else (0, None)
        shares = self.exchange(self.exchange_blocks(at, share)[root], share)
        del kept  # until here, because the first exchange sends it
        if self._rank != root:
            self._take(ptr, size, shares, share)

    def _reduced_share(self, ptr: int, count: int, dtype: DType, op: ReduceOp) -> Any:
        """This rank's share of the reduced array, as bytes. All shares are equally long: the last may be padded."""
        length = -(-count // self._n)
        share = np.empty(length * ITEMSIZE[dtype], np.uint8)
        at, _kept = self._padded(ptr, count * ITEMSIZE[dtype], share.nbytes)
        reduce_local(address(share), self.exchange_blocks(at, share.nbytes), length, dtype, op, self._n)
        return share

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

    def _begin(self) -> tuple[int, list[Any], int]:
        """The address of this exchange's memory, the receives into it, and where this rank's own payload is in it."""
        here, arriving = self._receives.begin()
        self._digests[here][self._rank] = self.digest
        return here, arriving, self._payloads[here][self._rank]

    def _complete(self, here: int, arriving: list[Any], sent: list[Any]) -> list[int]:
        self._receives.start_next()
        self._transport.wait_all(arriving)
        self._transport.wait_all(sent)
        if self._digests[here].tolist().count(self.digest) != self._n:
            raise Different
        return self._payloads[here]
