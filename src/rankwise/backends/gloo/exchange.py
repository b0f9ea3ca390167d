"""A small all_gather that is called repeatedly, made of gloo's sends and receives."""

from __future__ import annotations

import ctypes

from rankwise.backends.gloo.transport import EXCHANGE_TAG, Transport


class Exchange:
    """An all_gather that each call repeats, from and to the same memory.

    Each rank sends its block directly to every other rank. For little data this takes half as long as gloo's own
    collectives, each of which has to wake a thread.

    mine: the address of this rank's `size` bytes. everybody: where the blocks of all ranks go, by rank.
    """

    def __init__(self, transport: Transport, mine: int, everybody: int, size: int) -> None:
        self._transport = transport
        self._mine, self._size = mine, size
        rank, n = transport.rank, transport.world_size
        self._own_block = everybody + rank * size
        peers = [(rank + step) % n for step in range(1, n)]
        self._blocks = [(peer, everybody + peer * size) for peer in peers]

    def __call__(self) -> None:
        transport, size = self._transport, self._size
        works = [transport.recv(block, size, peer, EXCHANGE_TAG) for peer, block in self._blocks]
        works += [transport.send(self._mine, size, peer, EXCHANGE_TAG) for peer, _ in self._blocks]
        ctypes.memmove(self._own_block, self._mine, size)
        for work in works:
            transport.wait(work, transport.timeout)
