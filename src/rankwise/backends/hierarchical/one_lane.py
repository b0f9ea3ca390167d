"""A small all_to_all through the first member of each host, so that a host sends each other host a single block."""

from __future__ import annotations

import numpy as np

from rankwise._native import address
from rankwise.backends.composed.memory import blocks
from rankwise.backends.hierarchical.hosts import Layout
from rankwise.contract.communicator import Collectives
from rankwise.contract.types import DType

_BYTE = DType.U8


def all_to_all(
    layout: Layout,
    number: int,
    addresses: tuple[int, int],
    size: int,
    within: Collectives,
    between: Collectives,
) -> None:
    """The blocks are gathered within the hosts, exchanged between their first members, and scattered within the hosts.

    All hosts must have equally many members. number: this rank's number among its host's members. addresses: of what it
    sends, and of what it receives. size: of a block in bytes, 1 or more. within: this host's members. between: the
    first members of all hosts.
    """
    send, recv = addresses
    hosts, members = layout.hosts, layout.lanes
    n, first = hosts * members, number == 0
    by_host = [rank for ranks in layout.members for rank in ranks]
    own_blocks = blocks(send, n, size)[by_host]
    # By member of the source; host and member of the target.
    gathered = np.empty((members, hosts, members, size) if first else 0, np.uint8)
    within.gather(address(own_blocks), address(gathered), n * size, _BYTE, 0)
    scattered = gathered
    if first:
        outgoing = np.ascontiguousarray(gathered.transpose(1, 0, 2, 3))
        incoming = np.empty_like(outgoing)  # by host and member of the source; member of the target
        between.all_to_all(address(outgoing), address(incoming), members * members * size, _BYTE)
        scattered = np.ascontiguousarray(incoming.transpose(2, 0, 1, 3))
    within.scatter(address(scattered), address(own_blocks), n * size, _BYTE, 0)
    blocks(recv, n, size)[by_host] = own_blocks
