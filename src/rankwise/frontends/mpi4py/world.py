"""The job: the group of all ranks, this rank alone, groups that only their members make, and a watch on long waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakSet

import rankwise as rw
from rankwise import Group
from rankwise.contract.job import Job
from rankwise.contract.timeouts import LONGEST_TIMEOUT
from rankwise.frontends.mpi4py.errors import unsupported
from rankwise.frontends.mpi4py.standing import Standing, standings
from rankwise.initialize import connect
from rankwise.system.locality import mark
from rankwise.system.settings import Settings

# ---- waiting without a limit: a long wait is reported once, and a job in which every rank is stuck is failed ----

GROUPS: WeakSet[Group] = WeakSet()
"""The groups of this rank's communicators."""

PERIOD = 0.25
"""The interval between two polls, as a fraction of the limit."""


class Watch(Thread):
    """A thread that polls, a few times within `limit` seconds, where all ranks of this host are.

    Rank 0 reports the ranks that have been in one operation for longer than the limit, once for each operation. If all
    ranks of the job have, and their processes have computed nothing meanwhile, the job is deadlocked: each rank's watch
    then aborts that rank's groups.
    """

    def __init__(self, segment_fd: int, group: Group, limit: float) -> None:
        super().__init__(name="rankwise waiting", daemon=True)
        self._fd, self._group, self._limit = segment_fd, group, limit
        self._reported: set[tuple[int, int]] = set()
        self._idle_since: dict[int, tuple[Standing, float]] = {}

    def run(self) -> None:
        # Any other name would count as a thread of the program, which could end a deadlock (p2p/vain_wait.hpp).
        Path("/proc/thread-self/comm").write_text("rankwise-engine")
        while not self._group.closed:
            time.sleep(min(self._limit * PERIOD, 60.0))
            if self._look(standings(self._fd), time.monotonic()):
                return

    def _look(self, ranks: list[Standing], now: float) -> bool:
        """Returns whether the watch is over."""
        for each in ranks:
            before = self._idle_since.get(each.rank)
            if before is None or not each.same(before[0]):
                self._idle_since[each.rank] = (each, now)
        late = [each for each in ranks if each.inside and each.seconds > self._limit]
        if self._group.rank == 0:
            fresh = [each for each in late if (each.rank, each.operations) not in self._reported]
            if fresh:
                self._reported |= {(each.rank, each.operations) for each in fresh}
                self._report(ranks)
        everyone = len(ranks) == self._group.world_size and len(late) == len(ranks)
        if everyone and all(now - self._idle_since[each.rank][1] > self._limit for each in ranks):
            for group in list(GROUPS):
                if group.world_size > 1 and not group.closed:
                    group.abort(f"every rank of the job has waited for {self._limit:g} s, and none can go on")
            return True
        return False

    def _report(self, ranks: list[Standing]) -> None:
        lines = "".join(f"\n  rank {each.rank}: {each.description}" for each in ranks)
        text = f"some ranks have waited for more than {self._limit:g} s; the job goes on, as with MPI"
        print(f"rankwise: {text}. Where each rank is:{lines}", file=sys.stderr, flush=True)


class World:
    """This process in its job. group: of all ranks; own: of this rank alone. Pickles are allowed, as in MPI."""

    def __init__(self) -> None:
        settings = Settings.read()
        self.group = rw.init(allow_pickle=True)
        self.rank, self.size = self.group.rank, self.group.world_size
        self.own = Group(connect(Job(), "solo", settings.timeout), "self", "solo", allow_pickle=True)
        self.finalized = False
        self._inner: Any = None
        if self.size > 1:
            self._inner = self.group.dup("mpi4py")  # for create_group, whose messages no receive of the program takes
            if not settings.timeout_given:
                # Waiting is legal in MPI: an operation may last for hours. Who waits for long is reported, and goes on.
                self.group.timeout = self._inner.timeout = LONGEST_TIMEOUT
                if settings.segment_fd is not None:
                    Watch(settings.segment_fd, self.group, settings.timeout).start()

    def create_group(self, ranks: Sequence[int], tag: int) -> Group | None:
        """A group of these ranks, which alone call it; None on another one."""
        if self.rank not in ranks:
            return None
        if len(ranks) == 1:
            return self.own.dup()
        if self.rank == ranks[0]:
            subgroup = self._inner.comm.make_subgroup(ranks)
            if subgroup is None:
                raise unsupported(f"MPI.Comm.Create_group over the {self.group.backend} backend")
            for other in ranks[1:]:
                self._inner.send_object(subgroup, other, tag)
        else:
            subgroup = self._inner.recv_object(ranks[0], tag)
        comm = self._inner.comm.join_subgroup(subgroup)
        return Group(comm, f"world{list(ranks)}", self.group.backend, self.group, ranks)

    def host_of(self, group: Group) -> int:
        """A number that the ranks share that can share memory, and no others of this group. Collective."""
        if group.backend in ("solo", "shm", "threads"):
            return 0
        host = mark()
        return int(group.all_gather_object(host).index(host))


WORLD = World()
