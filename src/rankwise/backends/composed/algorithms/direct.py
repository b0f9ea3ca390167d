"""gather and scatter of blocks of different sizes, with a message between the root and every other rank."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

from rankwise.backends.composed.algorithms.peers import Peers, wait_all


def gather_v(peers: Peers, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
    """Send every rank's block to root. sizes: of every rank's block, in bytes."""
    if peers.rank != root:
        peers.wait(peers.send(send, sizes[peers.rank], root))
        return
    starts = list(accumulate(sizes, initial=recv))
    arrivals = [peers.recv(starts[rank], size, rank) for rank, size in enumerate(sizes) if rank != root]
    ctypes.memmove(starts[root], send, sizes[root])
    wait_all(peers, arrivals)


def scatter_v(peers: Peers, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
    """Send a block from root to every rank. sizes: of every rank's block, in bytes."""
    if peers.rank != root:
        peers.wait(peers.recv(recv, sizes[peers.rank], root))
        return
    starts = list(accumulate(sizes, initial=send))
    sent = [peers.send(starts[rank], size, rank) for rank, size in enumerate(sizes) if rank != root]
    ctypes.memmove(recv, starts[root], sizes[root])
    wait_all(peers, sent)
