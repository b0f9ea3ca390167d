"""How far the clocks of two nodes are apart, estimated over their launchers' connection as NTP does (RFC 5905)."""

from __future__ import annotations

SAMPLES = 8


class ClockOffset:
    """offset: what must be added to this node's time to get the other node's, in ns; within: how far it may be off.

    A sample is a question and its answer, which contains the time on the other clock in between. The sample with the
    shortest round trip counts, because the other clock may have been read at any moment of it.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.within = -1  # no sample yet

    def add(self, asked: int, theirs: int, answered: int) -> None:
        """asked, answered: times on this node's clock; theirs: the time on the other node's clock in between."""
        within = (answered - asked + 1) // 2
        if self.within < 0 or within < self.within:
            self.offset, self.within = theirs - (asked + answered) // 2, within
