"""Where the ranks of this host are, seen from one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rankwise._native import SegmentView
from rankwise.system import proc


@dataclass(frozen=True)
class Standing:
    """One rank at one moment.

    operations: how many it has begun. inside: whether it is in one. seconds: since it began or, if `inside` is false,
    since the last one ended. description: that as text. computed: the seconds that its process has computed.
    """

    rank: int
    operations: int
    inside: bool
    seconds: float
    description: str
    computed: float

    def same(self, before: Standing) -> bool:
        """Whether it is where it was, and its process has computed next to nothing since."""
        return (
            self.inside and before.inside and self.operations == before.operations
            and self.computed - before.computed < _NOTHING
        )  # fmt: skip


_NOTHING = 0.5  # seconds, of which the threads that watch and report use a part


def standings(segment_fd: int) -> list[Standing]:
    """The ranks of the segment that have joined."""
    view = SegmentView(segment_fd)
    ranks = []
    for index in range(view.world_size):
        state = view.state(index)
        if state.joined and not state.ended:
            ranks.append(
                Standing(
                    index,
                    state.operations,
                    state.inside,
                    state.since / 1e9,
                    state.description,
                    _computed(state.pid),
                )
            )
    return ranks


def _computed(pid: int) -> float:
    """Not a number where the process cannot be seen, as in another container: then nothing can be said about it."""
    try:
        user, system = proc.stat(pid)[proc.CPU_TIMES]
    except OSError:
        return float("nan")
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
