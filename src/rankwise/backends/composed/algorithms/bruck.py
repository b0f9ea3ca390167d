"""all_gather and all_to_all by Bruck's algorithms: in each step, a rank sends several blocks to one other rank."""

from __future__ import annotations

import ctypes

import numpy as np

from rankwise.backends.composed.algorithms.peers import Peers, wait_all
from rankwise.backends.composed.memory import address, around, blocks


def all_gather(peers: Peers, send: int, recv: int, size: int) -> None:
    """Send every rank's block of `size` bytes to every rank, in ceil(log2(n)) latencies, with any number of ranks.

    After k steps a rank has the blocks of 2**k ranks, itself and the next ones, and sends them to the rank
    2**k before it. No block is sent to a rank twice (Bruck et al., 1997).
    """
    rank, n = peers.rank, peers.world_size
    steps = [1 << k for k in range((n - 1).bit_length())]
    arrivals = [
        [peers.recv(recv + first * size, length * size, (rank + step) % n) for first, length in ranges]
        for step in steps
        for ranges in [around(rank + step, min(step, n - step), n)]
    ]
    ctypes.memmove(recv + rank * size, send, size)
    sent = []
    for step, arriving in zip(steps, arrivals, strict=True):
        for first, length in around(rank, min(step, n - step), n):
            sent.append(peers.send(recv + first * size, length * size, (rank - step) % n))
        wait_all(peers, arriving)
    wait_all(peers, sent)


def all_to_all(peers: Peers, send: int, recv: int, size: int) -> None:
    """Send a block of `size` bytes from every rank to every other, in ceil(log2(n)) latencies; `size` is 1 or more.

    The way of a block is the number of ranks from its source to its target. In step k a rank sends to the rank 2**k
    after it the blocks whose way has bit k set, about half of all blocks (Bruck et al., 1997).
    """
    rank, n = peers.rank, peers.world_size
    moved = np.roll(blocks(send, n, size), -rank, axis=0)  # by their way
    steps = [(1 << k, np.flatnonzero(np.arange(n) >> k & 1)) for k in range((n - 1).bit_length())]
    rooms = [np.empty((2, len(moving), size), np.uint8) for _, moving in steps]
    arrivals = [
        peers.recv(address(room[1]), len(moving) * size, (rank - step) % n)
        for (step, moving), room in zip(steps, rooms, strict=True)
    ]
    sent = []
    for (step, moving), room, arrival in zip(steps, rooms, arrivals, strict=True):
        room[0] = moved[moving]
        sent.append(peers.send(address(room[0]), len(moving) * size, (rank + step) % n))
        peers.wait(arrival)
        moved[moving] = room[1]
    wait_all(peers, sent)
    # The block that has gone i ranks comes from the rank i before this one.
    blocks(recv, n, size)[(rank - np.arange(n)) % n] = moved
