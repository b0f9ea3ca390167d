"""Which ranks exchange data in each step, if every step doubles the number of ranks whose data a rank has."""

from __future__ import annotations


class Pairs:
    """The partners of one rank, in a group of any size, and the order in which operands are combined.

    2**steps ranks take part in the steps. If the group has `extra` ranks more than that, its first 2 * extra ranks form
    pairs of neighbours, of which the second is *folded*: the first acts for both. The ranks that remain are numbered
    from 0 in rank order, and in step k two ranks exchange data if their numbers differ in bit k alone. So neighbours'
    operands are combined in pairs, then neighbours' results in pairs, and so on, always in rank order: for
    example ((0 1) 2) (3 4) for five ranks.
    """

    def __init__(self, rank: int, n: int) -> None:
        self.steps = n.bit_length() - 1
        self.extra = n - (1 << self.steps)
        paired = rank < 2 * self.extra
        self.folded = paired and rank % 2 == 1  # into rank - 1
        self.acts_for_two = paired and rank % 2 == 0  # for rank + 1 too
        self.number = self.number_of(rank)

    def number_of(self, rank: int) -> int:
        """The number of the rank that acts for this one."""
        return rank // 2 if rank < 2 * self.extra else rank - self.extra

    def rank_of(self, number: int) -> int:
        return 2 * number if number < self.extra else number + self.extra

    def partner(self, step: int) -> int:
        """The rank with which this one exchanges data in this step."""
        return self.rank_of(self.number ^ (1 << step))

    def is_lower(self, step: int) -> bool:
        """Whether this rank's operands come before its partner's."""
        return not self.number >> step & 1
