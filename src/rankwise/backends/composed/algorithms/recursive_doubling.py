"""all_reduce by recursive doubling: in each step pairs of ranks exchange all that they have reduced so far."""

from __future__ import annotations

import numpy as np

from rankwise.backends.composed.algorithms.pairs import Pairs
from rankwise.backends.composed.algorithms.peers import Peers, wait_all
from rankwise.backends.composed.memory import address
from rankwise.backends.composed.partial import Partial


def all_reduce(peers: Peers, ptr: int, count: int, partial: Partial) -> None:
    """All-reduce in place, in log2(n) latencies, and two more unless n is a power of two; for short arrays.

    Each rank sends the whole array in every step. Both ranks of a pair compute the same, so the result has the same
    bits on every rank (Thakur, Rabenseifner and Gropp, 2005).
    """
    pairs, size = Pairs(peers.rank, peers.world_size), count * partial.item
    room = np.empty((pairs.steps + 2, max(size, 1)), np.uint8)
    *rows, mine, folded = (address(row) for row in room)
    partial.begin(mine, ptr, count)
    if pairs.folded:
        result = peers.recv(ptr, count * partial.final_item, peers.rank - 1)
        peers.wait(peers.send(mine, size, peers.rank - 1))
        peers.wait(result)
        return
    from_folded = peers.recv(folded, size, peers.rank + 1) if pairs.acts_for_two else None
    arrivals = [peers.recv(row, size, pairs.partner(step)) for step, row in enumerate(rows)]
    if pairs.acts_for_two:
        peers.wait(from_folded)
        partial.merge(folded, mine, folded, count)
        mine = folded
    sent = []
    for step, (arrival, theirs) in enumerate(zip(arrivals, rows, strict=True)):
        sent.append(peers.send(mine, size, pairs.partner(step)))
        peers.wait(arrival)
        partial.merge(theirs, *((mine, theirs) if pairs.is_lower(step) else (theirs, mine)), count)
        mine = theirs  # what is being sent stays as it is
    wait_all(peers, sent)
    partial.end(ptr, mine, count)
    if pairs.acts_for_two:
        peers.wait(peers.send(ptr, count * partial.final_item, peers.rank + 1))
