"""An all_gather in one step, made of gloo's sends and receives: for little data, and for blocks of different sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

from rankwise.backends.gloo.transport import EXCHANGE_TAG, Transport


def all_gather_v(transport: Transport, send: int, recv: int, sizes: Sequence[int]) -> None:
    """Each rank sends its block directly to every other rank. sizes: of every rank's block, in bytes.

    For little data this takes half as long as gloo's own collectives, each of which has to wake a thread.
    """
    rank, n = transport.rank, transport.world_size
    peers = [(rank + step) % n for step in range(1, n)]
    starts = list(accumulate(sizes, initial=recv))
    works = [transport.recv(starts[peer], sizes[peer], peer, EXCHANGE_TAG) for peer in peers if sizes[peer]]
    if sizes[rank]:
        works += [transport.send(send, sizes[rank], peer, EXCHANGE_TAG) for peer in peers]
    ctypes.memmove(starts[rank], send, sizes[rank])
    transport.wait_all(works)
