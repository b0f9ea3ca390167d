"""Collectives in one step, made of gloo's sends and receives: for little data, and for blocks of different sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

from rankwise.backends.gloo.transport import EXCHANGE_TAG, Transport

Messages = Sequence[tuple[int, int, int]]  # the address, the size and the other rank of each


def all_gather_v(transport: Transport, send: int, recv: int, sizes: Sequence[int]) -> None:
    """Each rank sends its block directly to every other rank. sizes: of every rank's block, in bytes.

    For little data this takes half as long as gloo's own collectives, each of which has to wake a thread.
    """
    rank, n = transport.rank, transport.world_size
    peers = [(rank + step) % n for step in range(1, n)]
    starts = list(accumulate(sizes, initial=recv))
    _exchange(
        transport,
        [(starts[peer], sizes[peer], peer) for peer in peers],
        [(send, sizes[rank], peer) for peer in peers],
        (starts[rank], send, sizes[rank]),
    )


def gather_v(transport: Transport, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
    """Send every rank's block to root. sizes: of every rank's block, in bytes."""
    if transport.rank != root:
        _exchange(transport, (), [(send, sizes[transport.rank], root)])
        return
    starts = list(accumulate(sizes, initial=recv))
    others = [(starts[rank], size, rank) for rank, size in enumerate(sizes) if rank != root]
    _exchange(transport, others, (), (starts[root], send, sizes[root]))


def scatter_v(transport: Transport, send: int, recv: int, sizes: Sequence[int], root: int) -> None:
    """Send a block from root to every rank. sizes: of every rank's block, in bytes."""
    if transport.rank != root:
        _exchange(transport, [(recv, sizes[transport.rank], root)], ())
        return
    starts = list(accumulate(sizes, initial=send))
    others = [(starts[rank], size, rank) for rank, size in enumerate(sizes) if rank != root]
    _exchange(transport, (), others, (recv, starts[root], sizes[root]))


def _exchange(transport: Transport, received: Messages, sent: Messages, own: tuple[int, int, int] = (0, 0, 0)) -> None:
    """All messages at once, without the empty ones. own: a copy within this rank, as memmove takes it."""
    works = [transport.recv(ptr, size, peer, EXCHANGE_TAG) for ptr, size, peer in received if size]
    works += [transport.send(ptr, size, peer, EXCHANGE_TAG) for ptr, size, peer in sent if size]
    ctypes.memmove(*own)
    transport.wait_all(works)
