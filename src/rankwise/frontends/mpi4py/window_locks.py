"""The locks of a window: for the memory of each rank, several readers or one writer."""

from __future__ import annotations

import time

from rankwise import CollectiveTimeout, Group, PeerLostError, UnsupportedError
from rankwise.frontends.mpi4py.errors import error

_CHECK = 0.1  # seconds between two checks, by a rank that waits, whether a rank has been lost


class WindowLocks:
    """A shared integer for each rank: how many ranks read its memory, or below 0 if one writes to it."""

    def __init__(self, group: Group) -> None:
        self._group, self.number = group, group.world_size
        self._words = group._words(self.number, "lock")
        self._held: dict[int, bool] = {}  # by rank: whether this rank writes

    def acquire(self, rank: int, writes: bool) -> None:
        """Wait until nobody writes to the memory of `rank`, nor, if this rank `writes`, reads it.

        Raises:
            MPI.Exception: this rank holds the lock already (ERR_RMA_SYNC).
            CollectiveTimeout: the lock was not free within the group's timeout.
            PeerLostError: a rank of the group has been lost.
        """
        if rank in self._held:
            raise error("ERR_RMA_SYNC", f"rank={rank}: this rank holds the lock of that memory already")
        limit = self._group.timeout
        end, check = time.monotonic() + limit, time.monotonic() + _CHECK
        while True:
            now, value = time.monotonic(), self._words.add(rank, 0)
            if value == 0 if writes else value >= 0:
                if self._words.swap_if(rank, value, -1 if writes else value + 1):
                    break
                continue
            if now >= check:
                check = now + _CHECK
                self._check_peers()
            if now >= end:
                text = f"Win.Lock: the lock of rank {rank}'s memory was not free within {limit:.3g} s"
                raise CollectiveTimeout(text, limit=limit, operation="lock")
            self._words.sleep_while(rank, value, min(check, end) - now)
        self._held[rank] = writes

    def release(self, rank: int) -> None:
        """Raises MPI.Exception (ERR_RMA_SYNC) if this rank does not hold the lock."""
        if rank not in self._held:
            raise error("ERR_RMA_SYNC", f"rank={rank}: this rank does not hold the lock of that memory")
        self._words.add(rank, 1 if self._held.pop(rank) else -1)
        self._words.wake(rank)

    def _check_peers(self) -> None:
        try:
            lost = self._group.comm.failed()
        except UnsupportedError:  # this engine ends the job when a rank dies
            return
        for rank, how in lost.items():
            raise PeerLostError(f"Win.Lock: rank {rank} {how}", rank=rank, how=how, operation="lock")
