"""all_reduce by recursive halving, which leaves each rank a reduced piece, and doubling, which gathers the pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankwise.backends.composed.algorithms.pairs import Pairs
from rankwise.backends.composed.algorithms.peers import Peers, wait_all
from rankwise.backends.composed.memory import address
from rankwise.backends.composed.partial import Partial


def all_reduce(peers: Peers, ptr: int, count: int, partial: Partial) -> None:
    """All-reduce in place, in 2 log2(n) latencies, and two more unless n is a power of two.

    Each rank sends 2 (n - 1) / n times the array, the least possible; unless n is a power of two, some ranks also send,
    and some receive, the whole array (Rabenseifner's algorithm: Thakur, Rabenseifner and Gropp, 2005). The operands are
    combined in the same order as by recursive doubling, so the two algorithms give the same bits.
    """
    pairs, size, final = Pairs(peers.rank, peers.world_size), count * partial.item, partial.final_item
    room = np.empty((3, size + pairs.steps * partial.item), np.uint8)  # a half may have one element more than the other
    arriving, work, folded = (address(row) for row in room)
    partial.begin(work, ptr, count)
    if pairs.folded:
        result = peers.recv(ptr, count * final, peers.rank - 1)
        peers.wait(peers.send(work, size, peers.rank - 1))
        peers.wait(result)
        return
    from_folded = peers.recv(folded, size, peers.rank + 1) if pairs.acts_for_two else None
    halves = list(_halves(pairs, count))
    reduced, at = [], arriving
    for step, (keep, _) in enumerate(halves):
        reduced.append((peers.recv(at, len(keep) * partial.item, pairs.partner(step)), at))
        at += len(keep) * partial.item
    gathered = [
        peers.recv(ptr + give.start * final, len(give) * final, pairs.partner(step))
        for step, (_, give) in enumerate(halves)
    ]
    if pairs.acts_for_two:
        peers.wait(from_folded)
        partial.merge(work, work, folded, count)
    sent = []
    for step, ((keep, give), (arrival, theirs)) in enumerate(zip(halves, reduced, strict=True)):
        sent.append(peers.send(work + give.start * partial.item, len(give) * partial.item, pairs.partner(step)))
        peers.wait(arrival)
        mine = work + keep.start * partial.item
        partial.merge(mine, *((mine, theirs) if pairs.is_lower(step) else (theirs, mine)), len(keep))
    piece = halves[-1][0]
    partial.end(ptr + piece.start * final, work + piece.start * partial.item, len(piece))
    for step, (keep, _) in reversed(list(enumerate(halves))):
        sent.append(peers.send(ptr + keep.start * final, len(keep) * final, pairs.partner(step)))
        peers.wait(gathered[step])
    wait_all(peers, sent)
    if pairs.acts_for_two:
        peers.wait(peers.send(ptr, count * final, peers.rank + 1))


def _halves(pairs: Pairs, count: int) -> Iterator[tuple[range, range]]:
    """For each step, the elements that this rank keeps, and those that it gives to its partner."""
    whole = range(count)
    for step in range(pairs.steps):
        middle = (len(whole) + 1) // 2
        lower, upper = whole[:middle], whole[middle:]
        keep, give = (lower, upper) if pairs.is_lower(step) else (upper, lower)
        yield keep, give
        whole = keep
