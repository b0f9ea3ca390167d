"""What a communicator's handles refer to, and the checks of ranks and tags."""

from __future__ import annotations

from functools import partial
from typing import Any

from rankwise import Group
from rankwise.contract.communicator import complete
from rankwise.contract.message import ANY
from rankwise.contract.shortcuts import nothing
from rankwise.frontends.mpi4py.errors import error
from rankwise.frontends.mpi4py.pickling import CODEC
from rankwise.frontends.mpi4py.status import ANY_SOURCE, ANY_TAG, PROC_NULL
from rankwise.frontends.mpi4py.world import GROUPS, WORLD
from rankwise.system.once import once

MAX_TAG = 2**31 - 1


class Starting:
    """A Context whose shortcuts, and barrier, only start the operation and return its Work, or None."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size, self.shortcuts = group.rank, group.world_size, self
        shortcuts = group.comm.shortcuts
        self.barrier = partial(shortcuts.start_barrier, group)
        for name in _STARTED:
            setattr(self, name, partial(getattr(shortcuts, f"start_{name}", nothing), group))


_STARTED = (
    "all_reduce_array",
    "reduce_array",
    "broadcast_array",
    "all_gather_parts_array",
    "gather_parts_array",
    "scatter_parts_array",
    "all_to_all_array",
    "scan_array",
    "exscan_array",
    "all_gather_v_array",
    "all_to_all_v_array",
    "reduce_scatter_v_array",
    "gather_v_array",
    "scatter_v_array",
)


class Context:
    """A communicator: rankwise's group, its members' ranks in COMM_WORLD, and what the program attached to it."""

    def __init__(self, group: Group, name: str = "", topology: Any = None) -> None:
        self.group, self.name = group, name
        self.ranks = (WORLD.rank,) if group.backend == "solo" else group.ranks  # COMM_SELF has its own
        self.rank, self.size = group.rank, group.world_size
        self.members = [*self.ranks]  # one list, since handles of the same are equal
        self.comm = group.comm
        self.collectives = complete(self.comm)
        self.shortcuts = self.comm.shortcuts
        self.barrier = self.shortcuts.barrier_without_sync or self.comm.barrier_without_sync
        group.trusting = CODEC
        GROUPS.add(group)
        self.attributes: dict[int, Any] = {}
        self.info: dict[str, str] = {}
        self.topology = topology
        self.buffer: Any = None
        self.locks: dict[Any, Any] = {}

    @once
    def starting(self) -> Starting:
        return Starting(self.group)

    def destination(self, rank: int, tag: int) -> int | None:
        """Check `rank` and `tag`. Returns the rank, or None for PROC_NULL."""
        if not 0 <= tag <= MAX_TAG:
            raise error("ERR_TAG", f"tag={tag}: expected 0 to {MAX_TAG}")
        return self._rank(rank, "dest")

    def source(self, rank: int, tag: int) -> tuple[int | None, int]:
        """Check source and tag, either of which may be ANY. The source returned is None for PROC_NULL."""
        if tag != ANY_TAG and not 0 <= tag <= MAX_TAG:
            raise error("ERR_TAG", f"tag={tag}: expected 0 to {MAX_TAG}, or ANY_TAG")
        return ANY if rank == ANY_SOURCE else self._rank(rank, "source"), ANY if tag == ANY_TAG else int(tag)

    def _rank(self, rank: int, name: str) -> int | None:
        if rank == PROC_NULL:
            return None
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"{name}={rank}: expected a rank of the communicator, 0 to {self.size - 1}")
        return int(rank)

    def root(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise error("ERR_ROOT", f"root={rank}: expected a rank of the communicator, 0 to {self.size - 1}")
        return int(rank)
