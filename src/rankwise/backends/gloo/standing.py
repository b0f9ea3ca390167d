"""Receives that are started one exchange ahead, and the all_gather of many ranks' envelopes, which uses them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from rankwise.backends.composed.memory import address, around
from rankwise.backends.gloo.transport import STANDING_TAG, Transport

# A part of the memory of an exchange: where it begins, its length, and the rank that receives or sends it.
Part = tuple[int, int, int]


class StandingReceives:
    """The receives of a repeated exchange. Each exchange starts those of the next one.

    gloo transfers data only after the receiver has announced that it is ready. The announcements of receives that were
    started an exchange ahead arrive before they are needed, which saves a latency. As data can then arrive before the
    next exchange begins, the exchanges alternate between two memories. Two are enough if every exchange needs data from
    every rank, directly or through others, because then no rank is two exchanges ahead of another. A group may have
    only one object of this class. A message may be shorter than its part; the rest of the part then keeps its content.
    """

    def __init__(self, transport: Transport, rounds: Sequence[Sequence[Part]], size: int) -> None:
        """rounds: what is received in each round of an exchange, in a memory of `size` bytes."""
        self._transport, self._rounds = transport, rounds
        self._arriving: list[list[Any]] = []  # before the memory, so that it is released first
        self.memory = np.empty((2, size), np.uint8)
        self._here, self._there = (address(row) for row in self.memory)

    def begin(self) -> tuple[int, list[list[Any]]]:
        """Begin an exchange. Returns the address of its memory, and its receives, by round."""
        return self._here, self._arriving or self._started(self._here)

    def start_next(self) -> None:
        """Start the receives of the next exchange. From now on they overwrite the memory of the previous one."""
        self._here, self._there = self._there, self._here
        self._arriving = self._started(self._here)

    def _started(self, memory: int) -> list[list[Any]]:
        recv = self._recv
        return [[recv(memory + at, length, peer) for at, length, peer in parts] for parts in self._rounds]

    def _recv(self, ptr: int, length: int, peer: int) -> Any:
        try:
            return self._transport.recv(ptr, length, peer, STANDING_TAG)
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


class StandingExchange:
    """Each call gathers `size` bytes from every rank, from `mine` to `everybody` (addresses), in rank order.

    This is Bruck's all_gather: in each of ceil(log2(ranks)) rounds a rank sends on what it has received so far.
    """

    def __init__(self, transport: Transport, mine: int, everybody: int, size: int) -> None:
        rank, n = transport.rank, transport.world_size
        self._transport, self._mine, self._everybody, self._size = transport, mine, everybody, size

        def parts(first: int, blocks: int, peer: int) -> list[Part]:
            return [(at * size, length * size, peer % n) for at, length in around(first, blocks, n)]

        steps = [(step, min(step, n - step)) for step in (1 << k for k in range((n - 1).bit_length()))]
        self._outgoing = [parts(rank, blocks, rank - step) for step, blocks in steps]
        incoming = [parts(rank + step, blocks, rank + step) for step, blocks in steps]
        self._receives = StandingReceives(transport, incoming, n * size)

    def __call__(self) -> None:
        transport = self._transport
        here, arriving = self._receives.begin()
        ctypes.memmove(here + transport.rank * self._size, self._mine, self._size)
        sent = []
        for number, parts in enumerate(self._outgoing):
            sent += [transport.send(here + at, length, peer, STANDING_TAG) for at, length, peer in parts]
            if number == 0:
                self._receives.start_next()
            transport.wait_all(arriving[number])
        transport.wait_all(sent)
        ctypes.memmove(self._everybody, here, transport.world_size * self._size)
