"""What a job does when it loses a rank: it starts the rank again, goes on without it, or ends.

A rank is *lost* when its process is killed, or exits with a status other than 0, before the job ends. A
rank that exits with 0 has finished. A *replacement* is a new process in the place of a lost rank.
"""

from __future__ import annotations

import time
from collections import Counter

from rankwise.launch.rank_process import RankProcess

RESTART, GO_ON, END = "restart", "go on", "end"
"""What follows a loss: the rank is started again, the other ranks go on, or the job ends."""


class Losses:
    """The rules of one job for lost ranks, and the ranks that it has lost.

    n: how many ranks the job has. restarts: how often each rank may be started again. keep_going: whether
    the other ranks go on when a rank is lost for good. min_ranks: how many ranks must then be left;
    without keep_going all of them. stay: whether a rank that exits with 0 is lost too, as in a pool.

    Raises ValueError for a `min_ranks` above n.
    """

    stay = False

    def __init__(self, n: int, *, restarts: int = 0, keep_going: bool = False, min_ranks: int = 1) -> None:
        if min_ranks > n:
            raise ValueError(f"min_ranks={min_ranks}: expected 1 to {n}, the number of ranks")
        self.restarts = restarts
        self.keep_going = keep_going
        self.min_ranks = min_ranks
        self.all: list[tuple[RankProcess, float, str]] = []
        """Each loss in the order of time: the process, when it was (time.time()), and what followed."""
        self._n = n

    @property
    def without(self) -> list[RankProcess]:
        """The ranks that were not started again, in the order in which they were lost."""
        return [rank for rank, _, action in self.all if action != RESTART]

    @property
    def code(self) -> int:
        """The exit code if no loss has ended the job: with keep_going 0, else that of the first rank that is lost."""
        return self.without[0].code if self.without and not self.keep_going else 0

    @property
    def may_go_on(self) -> bool:
        """Whether there are losses after which the job goes on."""
        return bool(self.restarts) or self.keep_going

    def add(self, rank: RankProcess) -> str:
        """Note that a rank was lost; returns what follows."""
        left = self._n - len(self.without) - 1
        if rank.restart < self.restarts and not (rank.left_out or rank.done):
            action = RESTART
        elif self.keep_going:
            action = GO_ON if left >= self.min_ranks and not self.is_vital(rank) else END
        else:
            action = GO_ON if rank.done else END
        self.all.append((rank, time.time(), action))
        return action

    def news(self, rank: RankProcess, action: str, others: int) -> str:
        """A line about a loss after which the job goes on. others: how many ranks of this host still run."""
        if action == RESTART:
            return f"{rank.end}; started again (restart {rank.restart + 1} of {self.restarts})"
        going = "; the others go on" if rank.host else f"; {others} ranks go on" if others > 1 else "; 1 rank goes on"
        return f"{rank.end}{self._after_what(rank)}{going if rank.host or others else ''}"

    def reason(self, rank: RankProcess) -> str:
        """A line about the loss that ended the job: how the rank ended, and why the job did not go on."""
        ending = f"{rank.end}{self._after_what(rank)}"
        if self.keep_going and self.is_vital(rank):
            ending += ", without which the ranks of other nodes cannot meet"
        elif self.keep_going:
            ending += too_few(self.min_ranks)
        return ending + rank.cause

    def is_vital(self, rank: RankProcess) -> bool:
        """Whether the job cannot go on without this rank: on several nodes, rank 0 serves the store of all ranks."""
        return bool(rank.host) and rank.number == 0

    def descriptions(self) -> list[str]:
        """The ranks that were not started again, and how each ended."""
        return [f"{rank.name}, which {rank.how}{rank.where}" for rank in self.without]

    def again(self) -> str:
        """The ranks that were started again, and how often; "" if there are none."""
        times = Counter(rank.number for rank, _, action in self.all if action == RESTART)
        return ", ".join(
            f"rank {number}" + f" ({count} times)" * (count > 1) for number, count in sorted(times.items())
        )

    def _after_what(self, rank: RankProcess) -> str:
        if rank.done:
            return ", after the ranks had finished elastic.run"
        if not rank.restart:
            return ""
        return f", after {'1 restart' if rank.restart == 1 else f'{rank.restart} restarts'}"


def too_few(min_ranks: int) -> str:
    """The end of a sentence: why a job that may go on after losses does not go on after this one."""
    if min_ranks == 1:
        return ", which leaves no rank"
    return f", which leaves fewer than {min_ranks} ranks (--min-ranks)"
