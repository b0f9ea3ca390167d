"""Waiting without a limit: a long wait is reported once, and a job in which every rank is stuck is failed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Thread
from weakref import WeakSet

from rankwise import Group
from rankwise.launch.standing import Standing, standings

GROUPS: WeakSet[Group] = WeakSet()
"""The groups of this rank's communicators."""

PERIOD = 0.25
"""The interval between two polls, as a fraction of the limit."""


class Watch:
    """A thread that polls, a few times within `limit` seconds, where all ranks of this host are.

    Rank 0 reports the ranks that have been in one operation for longer than the limit, once for each operation. If all
    ranks of the job have, and their processes have computed nothing meanwhile, the job is deadlocked: each rank's watch
    then aborts that rank's groups.
    """

    def __init__(self, segment_fd: int, group: Group, limit: float) -> None:
        self._fd, self._group, self._limit = segment_fd, group, limit
        self._reported: set[tuple[int, int]] = set()
        self._idle_since: dict[int, tuple[Standing, float]] = {}

    def start(self) -> None:
        Thread(target=self._run, name="rankwise waiting", daemon=True).start()

    def _run(self) -> None:
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
