"""Receives that are started one exchange ahead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from rankwise.backends.composed.memory import address
from rankwise.backends.gloo.transport import STANDING_TAG, Transport


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
