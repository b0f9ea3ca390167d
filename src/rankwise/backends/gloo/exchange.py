"""All ranks' blocks to every rank, by gloo's messages."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.backends.gloo.communicator import GlooCommunicator

_TAG = 2**31 - 2  # that no other message has


class Exchange:
    """An all_gather from and to the same memory, as often as it is called.

    Each rank sends its block to each other one straight from and into the callers' memory. Of little data that
    takes half as long as gloo's own collectives, for each of which a thread must be woken.

    mine: where `size` bytes are. everybody: where those of all ranks come to.
    """

    def __init__(self, comm: GlooCommunicator, mine: int, everybody: int, size: int) -> None:
        self._comm = comm
        self._own = everybody + comm.rank * size, mine, size
        self._given = [comm._tensor(mine, size)]
        others = [(comm.rank + step) % comm.world_size for step in range(1, comm.world_size)]
        self._taken = [([comm._tensor(everybody + other * size, size)], other) for other in others]

    def __call__(self) -> None:
        pg, limit = self._comm._pg, timedelta(seconds=self._comm.timeout)
        works = [pg.recv(tensors, other, _TAG) for tensors, other in self._taken]
        works += [pg.send(self._given, other, _TAG) for _, other in self._taken]
        ctypes.memmove(*self._own)
        for work in works:
            work.wait(limit)
