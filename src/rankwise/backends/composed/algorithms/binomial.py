"""reduce, gather and scatter along a binomial tree, whose root has ceil(log2(n)) children."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from rankwise.backends.composed.algorithms.pairs import Pairs
from rankwise.backends.composed.algorithms.peers import Peers, wait_all
from rankwise.backends.composed.memory import address, around
from rankwise.backends.composed.partial import Partial


def reduce(peers: Peers, ptr: int, count: int, partial: Partial, root: int) -> None:
    """Reduce to root, in place there, in log2(n) latencies, and up to two more unless n is a power of two.

    Whatever the root, the operands are combined in the same order as in an all_reduce by recursive doubling, so the
    result has the same bits.
    """
    rank, n = peers.rank, peers.world_size
    pairs, size, final = Pairs(rank, n), count * partial.item, count * partial.final_item
    target = pairs.number_of(root)
    apart = pairs.number ^ target
    steps = pairs.steps if apart == 0 else (apart & -apart).bit_length() - 1  # in which this rank receives
    room = np.empty((steps + 2, max(size, 1)), np.uint8)
    *rows, own, folded = (address(row) for row in room)
    partial.begin(own, ptr, count)
    mine = own
    if pairs.folded:
        result = peers.recv(ptr, final if rank == root else 0, rank - 1)
        peers.wait(peers.send(mine, size, rank - 1))
        peers.wait(result)
        return
    from_folded = peers.recv(folded, size, rank + 1) if pairs.acts_for_two else None
    arrivals = [peers.recv(row, size, pairs.partner(step)) for step, row in enumerate(rows)]
    if pairs.acts_for_two:
        peers.wait(from_folded)
        partial.merge(folded, mine, folded, count)
        mine = folded
    for step, (arrival, theirs) in enumerate(zip(arrivals, rows, strict=True)):
        peers.wait(arrival)
        partial.merge(theirs, *((mine, theirs) if pairs.is_lower(step) else (theirs, mine)), count)
        mine = theirs
    if apart:
        peers.wait(peers.send(mine, size, pairs.partner(steps)))
    elif rank == root:
        partial.end(ptr, mine, count)
    else:  # root is the rank for which this one acts
        partial.end(own, mine, count)
        peers.wait(peers.send(own, final, root))


def gather(peers: Peers, send: int, recv: int, size: int, root: int) -> None:
    """Send every rank's block of `size` bytes to root, in ceil(log2(n)) latencies; for short blocks.

    A rank passes on the blocks of its subtree together, so most blocks are sent several times.
    """
    tree = _Tree(peers, recv, size, root)
    arrivals = [peers.recv(*part, child) for child, parts in tree.children for part in parts]
    ctypes.memmove(tree.own, send, size)
    wait_all(peers, arrivals)
    sent = [peers.send(*part, tree.parent) for part in tree.parts]
    wait_all(peers, sent)


def scatter(peers: Peers, send: int, recv: int, size: int, root: int) -> None:
    """`gather` in reverse: send a block of `size` bytes from root to every rank, to the largest subtree first."""
    tree = _Tree(peers, send, size, root)
    arrivals = [peers.recv(*part, tree.parent) for part in tree.parts]
    wait_all(peers, arrivals)
    sent = [peers.send(*part, child) for child, parts in reversed(tree.children) for part in parts]
    ctypes.memmove(recv, tree.own, size)
    wait_all(peers, sent)


class _Tree:
    """The place of a rank in the tree of `root`, and where the blocks of its subtree are.

    Places in the tree are counted from root on, which has place 0; a subtree consists of successive places. parent: the
    rank above this one. parts: (address, bytes) of the blocks of this rank's subtree; empty at root. children: the
    ranks below this one, each with its parts, the smallest subtree first. own: the address of this rank's block.
    """

    def __init__(self, peers: Peers, whole: int, size: int, root: int) -> None:
        """whole: at root, the address of all blocks in rank order."""
        n = peers.world_size
        place = (peers.rank - root) % n
        lowest = place & -place if place else 1 << (n - 1).bit_length()  # the subtree's size if n were a power of two
        self._memory = np.empty(min(lowest, n - place) * max(size, 1) if place else 0, np.uint8)
        self.parent = (root + place - lowest) % n

        def parts(first: int, length: int) -> Iterator[tuple[int, int]]:
            """The parts of the subtree at place `first`: two if it goes on from the last rank to rank 0, as at root."""
            done = 0
            for rank, ranks in around(root + first, min(length, n - first), n):
                at = whole + rank * size if place == 0 else address(self._memory) + (first - place + done) * size
                yield at, ranks * size
                done += ranks

        self.parts = list(parts(place, lowest)) if place else []
        self.children = [
            ((root + place + step) % n, list(parts(place + step, step)))
            for step in (1 << k for k in range(lowest.bit_length() - 1))
            if place + step < n
        ]
        self.own = whole + peers.rank * size if place == 0 else address(self._memory)
