"""What a communicator's handles refer to, and the checks of ranks and tags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rankwise import Group
from rankwise.contract.communicator import complete
from rankwise.contract.message import ANY
from rankwise.contract.shortcuts import not_available
from rankwise.frontends.mpi4py.errors import error
from rankwise.frontends.mpi4py.handles import ERRORS_RETURN
from rankwise.frontends.mpi4py.pickling import CODEC
from rankwise.frontends.mpi4py.status import ANY_SOURCE, ANY_TAG, PROC_NULL
from rankwise.frontends.mpi4py.world import GROUPS, WORLD

MAX_TAG = 2**31 - 1


class Functions(dict[str, Callable[..., Any]]):
    """Functions by name, each of which `look_up(name)` returns when it is first used."""

    def __init__(self, look_up: Callable[[str], Callable[..., Any]]) -> None:
        self.look_up = look_up

    def __missing__(self, name: str) -> Callable[..., Any]:
        self[name] = function = self.look_up(name)
        return function


class Context:
    """A communicator: rankwise's group, its members' ranks in COMM_WORLD, and what the program attached to it.

    calls: the group's shortcuts. starts: what only starts such a call, and returns its Work, or None.
    """

    def __init__(self, group: Group, name: str = "", topology: Any = None) -> None:
        self.group, self.name = group, name
        self.ranks = (WORLD.rank,) if group.backend == "solo" else group.ranks  # COMM_SELF has its own
        self.rank, self.size = group.rank, group.world_size
        self.members = [*self.ranks]  # one list, since handles of the same are equal
        self.comm = group.comm
        self.collectives = complete(self.comm)
        self.shortcuts = shortcuts = self.comm.shortcuts
        self.calls = Functions(partial(getattr, shortcuts))
        self.starts = Functions(lambda name: partial(getattr(shortcuts, f"start_{name}", not_available), group))
        self.barrier = self.shortcuts.barrier_without_sync or self.comm.barrier_without_sync
        group.trusting = CODEC
        GROUPS.add(group)
        self.attributes: dict[int, Any] = {}
        self.info: dict[str, str] = {}
        self.errhandler = ERRORS_RETURN
        self.topology = topology
        self.buffer: Any = None
        self.locks: dict[Any, Any] = {}

    def destination(self, rank: int, tag: int) -> int | None:
        """Check `rank` and `tag`. Returns the rank, or None for PROC_NULL."""
        _within(tag, MAX_TAG + 1, "tag", "ERR_TAG", "0 to {}")
        return self._rank(rank, "dest")

    def source(self, rank: int, tag: int) -> tuple[int | None, int]:
        """Check source and tag, either of which may be ANY. The source returned is None for PROC_NULL."""
        if tag != ANY_TAG:
            _within(tag, MAX_TAG + 1, "tag", "ERR_TAG", "0 to {}, or ANY_TAG")
        return ANY if rank == ANY_SOURCE else self._rank(rank, "source"), ANY if tag == ANY_TAG else int(tag)

    def _rank(self, rank: int, name: str) -> int | None:
        return None if rank == PROC_NULL else _within(rank, self.size, name, "ERR_RANK", _RANKS)

    def root(self, rank: int) -> int:
        return _within(rank, self.size, "root", "ERR_ROOT", _RANKS)


_RANKS = "a rank of the communicator, 0 to {}"


def _within(value: int, limit: int, name: str, code: str, expected: str) -> int:
    """Check an argument: an int from 0 on, below the limit. expected: said in the error, with the highest for {}."""
    try:
        within = 0 <= value < limit
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected an int, got {type(value).__name__}") from None
    if not within:
        raise error(code, f"{name}={value}: expected {expected.format(limit - 1)}")
    return int(value)
