"""Windows of shared memory, as Win.Allocate_shared makes them: programs that keep one copy of data for each host."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np

from rankwise import Group, PeerLostError, UnsupportedError
from rankwise.contract.errors import too_late
from rankwise.frontends.mpi4py import groups
from rankwise.frontends.mpi4py.buffers import buffer
from rankwise.frontends.mpi4py.context import Context
from rankwise.frontends.mpi4py.errors import absent, error
from rankwise.frontends.mpi4py.handles import Named
from rankwise.frontends.mpi4py.info import Info
from rankwise.frontends.mpi4py.status import PROC_NULL
from rankwise.frontends.mpi4py.world import WORLD
from rankwise.group.sharing import shared_words

_CHECK = 0.1  # seconds between two checks, by a rank that waits, whether a rank has been lost


class WindowLocks:
    """A shared integer for each rank: how many ranks read its memory, or below 0 if one writes to it."""

    def __init__(self, group: Group) -> None:
        self._group, self.number = group, group.world_size
        self._words = shared_words(group, self.number, "lock")
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
                raise too_late(f"Win.Lock: the lock of rank {rank}'s memory was not free", limit, operation="lock")
            self._words.sleep_while(rank, value, min(check, end) - now)
        self._held[rank] = writes

    def release(self, rank: int) -> None:
        """Raises MPI.Exception (ERR_RMA_SYNC) if this rank does not hold the lock."""
        if rank not in self._held:
            raise error("ERR_RMA_SYNC", f"rank={rank}: this rank does not hold the lock of that memory")
        self._words.add(rank, 1 if self._held.pop(rank) else -1)
        self._words.wake(rank)

    def _check_peers(self) -> None:
        with suppress(UnsupportedError):  # this engine ends the job when a rank dies
            for rank, how in self._group.comm.failed().items():
                raise PeerLostError(f"Win.Lock: rank {rank} {how}", rank=rank, how=how, operation="lock")


CONSTANTS = {
    "LOCK_EXCLUSIVE": 1, "LOCK_SHARED": 2, "MODE_NOCHECK": 1, "MODE_NOSTORE": 2, "MODE_NOPUT": 4, "MODE_NOPRECEDE": 8,
    "MODE_NOSUCCEED": 16, "WIN_FLAVOR_CREATE": 1, "WIN_FLAVOR_ALLOCATE": 2, "WIN_FLAVOR_DYNAMIC": 3,
    "WIN_FLAVOR_SHARED": 4, "WIN_SEPARATE": 1, "WIN_UNIFIED": 2, "WIN_BASE": 1, "WIN_SIZE": 2, "WIN_DISP_UNIT": 3,
    "WIN_CREATE_FLAVOR": 4, "WIN_MODEL": 5,
}  # fmt: skip
"""The constants of windows, by name. Their values are the front-end's own."""


class Window:
    """The memory of a window. sizes, units: each rank's bytes, and the size of an element there.

    The ranks' blocks are contiguous, in rank order.
    """

    def __init__(self, c: Context, size: int, unit: int, info: dict[str, str]) -> None:
        self.context, self.info, self.name = c, info, ""
        self.group: Group = c.group
        asked = self.group.all_gather_object((size, unit, WORLD.host_of(self.group)))
        self.sizes, self.units, hosts = (list(each) for each in zip(*asked, strict=True))
        if len(set(hosts)) > 1:
            raise error("ERR_RMA_SHARED", "the ranks are on several hosts; Split_type(COMM_TYPE_SHARED) divides them")
        if min(self.sizes) < 0:
            raise error("ERR_SIZE", f"the ranks ask for {self.sizes} bytes: expected 0 or more")
        self.starts = list(accumulate(self.sizes, initial=0))
        self.memory = self.group.shared_zeros(self.starts[-1], np.uint8)
        self.locks = WindowLocks(self.group)

    def block(self, rank: int) -> buffer:
        return buffer(self.memory[self.starts[rank] : self.starts[rank + 1]])


class Win(Named[Window], root=True):
    """Memory of all ranks of a communicator of one host, which they read and write in place.

    A rank sees what another has written once both have called `Fence` or a barrier, or while it holds a lock that the
    writer released after writing.
    """

    _null = "ERR_WIN"
    (
        Create, Create_dynamic, Allocate, Attach, Detach, Put, Get, Accumulate, Get_accumulate, Fetch_and_op,
        Compare_and_swap, Rput, Rget, Raccumulate, Rget_accumulate, Post, Start, Complete, Wait, Test, Set_info,
        Set_attr, Delete_attr, Create_keyval, Free_keyval, Create_errhandler, Get_errhandler, Set_errhandler,
        Call_errhandler,
    ) = absent(29)  # fmt: skip

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Info | None = None, comm: Any = None) -> Win:
        """Collective. size: this rank's bytes, 0 or more, initially zero. comm: of one host; by default COMM_SELF."""
        c = Context(WORLD.own) if comm is None else comm._live()
        return cls._of(Window(c, int(size), int(disp_unit), dict((info and info._h) or {})))

    def Shared_query(self, rank: int) -> tuple[buffer, int]:
        """The memory of a rank, and its disp_unit; for PROC_NULL those of the first rank that has memory."""
        w = self._live()
        if rank == PROC_NULL:
            rank = next((each for each, size in enumerate(w.sizes) if size), 0)
        return w.block(self._target(rank)), w.units[rank]

    def tomemory(self) -> buffer:
        w = self._live()
        return w.block(w.context.rank)

    # ---- who may use the memory when ----

    def Fence(self, assertion: int = 0) -> None:
        self._live().group.barrier()

    def Lock(self, rank: int, lock_type: int = CONSTANTS["LOCK_EXCLUSIVE"], assertion: int = 0) -> None:
        """Several ranks may hold a shared lock of a rank's memory, or one an exclusive lock."""
        if lock_type not in (CONSTANTS["LOCK_EXCLUSIVE"], CONSTANTS["LOCK_SHARED"]):
            raise error("ERR_LOCKTYPE", f"lock_type={lock_type}: expected LOCK_EXCLUSIVE or LOCK_SHARED")
        self._live().locks.acquire(self._target(rank), lock_type == CONSTANTS["LOCK_EXCLUSIVE"])

    def Unlock(self, rank: int) -> None:
        self._live().locks.release(self._target(rank))

    def Lock_all(self, assertion: int = 0) -> None:
        """A shared lock of each rank's memory."""
        locks = self._live().locks
        for rank in range(locks.number):
            locks.acquire(rank, False)

    def Unlock_all(self) -> None:
        locks = self._live().locks
        for rank in range(locks.number):
            locks.release(rank)

    def Sync(self) -> None:
        self._live()

    Flush_all = Flush_local_all = Sync

    def Flush(self, rank: int) -> None:
        self._target(rank)

    Flush_local = Flush

    def _target(self, rank: int) -> int:
        w = self._live()
        if not 0 <= rank < len(w.sizes):
            raise error("ERR_RANK", f"rank={rank}: expected a rank of the window, 0 to {len(w.sizes) - 1}")
        return rank

    # ---- what it is ----

    def Free(self) -> None:
        """Collective. The memory is freed when no rank has a buffer of it any more."""
        self._live().group.barrier()
        self._h = None

    def Get_group(self) -> groups.Group:
        return groups.Group._of(self._live().context.members)

    def Get_attr(self, keyval: int) -> Any:
        w = self._live()
        rank = w.context.rank
        return {
            CONSTANTS["WIN_BASE"]: w.block(rank).address,
            CONSTANTS["WIN_SIZE"]: w.sizes[rank],
            CONSTANTS["WIN_DISP_UNIT"]: w.units[rank],
            CONSTANTS["WIN_CREATE_FLAVOR"]: CONSTANTS["WIN_FLAVOR_SHARED"],
            CONSTANTS["WIN_MODEL"]: CONSTANTS["WIN_UNIFIED"],
        }.get(keyval)

    def Get_info(self) -> Info:
        return Info.Create(self._live().info)

    group = property(Get_group)
    flavor = property(lambda self: self.Get_attr(CONSTANTS["WIN_CREATE_FLAVOR"]))
    model = property(lambda self: self.Get_attr(CONSTANTS["WIN_MODEL"]))


WIN_NULL = Win()._named("WIN_NULL")
