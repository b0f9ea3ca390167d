"""The job: the group of all ranks, this rank alone, and groups that only their members make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import rankwise as rw
from rankwise.contract.job import Job
from rankwise.contract.timeouts import LONGEST_TIMEOUT
from rankwise.frontends.mpi4py.errors import unsupported
from rankwise.frontends.mpi4py.waiting import Watch
from rankwise.initialize import connect
from rankwise.system.locality import mark
from rankwise.system.settings import Settings


class World:
    """This process in its job. group: of all ranks; own: of this rank alone. Pickles are allowed, as in MPI."""

    def __init__(self) -> None:
        settings = Settings.read()
        self.group = rw.init(allow_pickle=True)
        self.rank, self.size = self.group.rank, self.group.world_size
        self.ranks = tuple(range(self.size))
        self.own = rw.Group(connect(Job(), "solo", settings.timeout), "self", "solo", allow_pickle=True)
        self._inner: Any = None
        if self.size > 1:
            self._inner = self.group.dup("mpi4py")  # for create_group, whose messages no receive of the program takes
            if not settings.timeout_given:
                self._wait_patiently(settings)

    def _wait_patiently(self, settings: Settings) -> None:
        """Waiting is legal in MPI: an operation may last for hours. Who waits for long is reported, and goes on."""
        self.group.timeout = self._inner.timeout = LONGEST_TIMEOUT
        if settings.segment_fd is not None:
            Watch(settings.segment_fd, self.group, settings.timeout).start()

    def create_group(self, ranks: Sequence[int], tag: int, made: Callable[[Any, Sequence[int]], Any]) -> Any:
        """A communicator of these ranks, which alone call it. made(group, ranks): makes it; ranks: in COMM_WORLD."""
        if self.rank not in ranks:
            return made(None, [])
        if len(ranks) == 1:
            return made(self.own.dup(), ranks)
        number = np.zeros(1, np.int64)
        if self.rank == ranks[0]:
            part = self._inner.comm.make_part(ranks)
            if part is None:
                raise unsupported(f"MPI.Comm.Create_group over the {self.group.backend} backend")
            number[0] = part
            for other in ranks[1:]:
                self._inner.send(number, other, tag)
        else:
            self._inner.recv(number, ranks[0], tag)
        comm = self._inner.comm.take_part(int(number[0]))
        return made(rw.Group(comm, f"world{list(ranks)}", self.group.backend, self.group, ranks), ranks)

    def host_of(self, group: rw.Group) -> int:
        """A number that the ranks share that can share memory, and no others of this group. Collective."""
        if group.backend in ("solo", "shm", "threads"):
            return 0
        here = mark()
        found: int = group.all_gather_object(here).index(here)
        return found


WORLD = World()
