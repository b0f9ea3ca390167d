"""all_reduce by recursive doubling: in each step pairs of ranks exchange all that they have reduced so far.

It is for what MPI does not reduce as the contract requires.
"""

from __future__ import annotations

import numpy as np

from rankwise._native import address
from rankwise.backends.composed.partial import Partial
from rankwise.backends.mpi.transport import MpiPeers


def all_reduce(peers: MpiPeers, ptr: int, count: int, partial: Partial) -> None:
    """All-reduce in place, in log2(n) latencies, and two more unless n is a power of two.

    Each rank sends the whole array in every step. Both ranks of a pair compute the same, so the result has the same
    bits on every rank (Thakur, Rabenseifner and Gropp, 2005). A rank starts all its receives before its first send.
    """
    pairs, size = Pairs(peers.rank, peers.world_size), count * partial.item
    room = np.empty((pairs.steps + 2, max(size, 1)), np.uint8)
    *rows, own, folded = (address(row) for row in room)
    partial.begin(own, ptr, count)
    if pairs.folded:
        result = peers.recv(ptr, count * partial.final_item, peers.rank - 1)
        peers.wait(peers.send(own, size, peers.rank - 1))
        peers.wait(result)
        return
    from_folded = peers.recv(folded, size, peers.rank + 1) if pairs.acts_for_two else None
    arrivals = [peers.recv(row, size, pairs.partner(step)) for step, row in enumerate(rows)]
    if pairs.acts_for_two:
        peers.wait(from_folded)
        partial.merge(folded, own, folded, count)
        own = folded
    sent = []
    for step, (arrival, received) in enumerate(zip(arrivals, rows, strict=True)):
        sent.append(peers.send(own, size, pairs.partner(step)))
        peers.wait(arrival)
        partial.merge(received, *((own, received) if pairs.is_lower(step) else (received, own)), count)
        own = received  # what is being sent stays as it is
    for pending in sent:
        peers.wait(pending)
    partial.end(ptr, own, count)
    if pairs.acts_for_two:
        peers.wait(peers.send(ptr, count * partial.final_item, peers.rank + 1))


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
