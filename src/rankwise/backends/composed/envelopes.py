"""The ranks compare their calls by envelopes, which also hold the data of small collectives.

An *envelope* is what a rank sends to another one before each call: a digest of the call, and an inline payload if the
data is small.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from rankwise._native import address, reduce_local
from rankwise.backends.composed.memory import blocks
from rankwise.contract.types import ITEMSIZE, DType, ReduceOp

DIGEST = 8  # bytes

_copy = ctypes.memmove


class Different(Exception):
    """The ranks' calls differ."""


class Envelopes(ABC):
    """One rank's way to exchange envelopes with all others.

    A method with a collective's name does it in one exchange; the data must fit into the envelopes.
    These methods take the arguments of an adapter's moves, and raise Different before they write anything.
    """

    def __init__(self, rank: int, world_size: int, room: int = 0) -> None:
        """room: how many bytes of data an envelope holds, if each rank gets one of its own; 0 if all get the same."""
        self.digest = 0  # of this rank's call
        self._rank, self._n, self._room = rank, world_size, room

    @abstractmethod
    def exchange(self, ptr: int = 0, size: int = 0, root: int | None = None) -> list[int]:
        """Send a payload of `size` bytes to all ranks. Returns where the ranks' payloads are, by rank.

        They stay there until the next exchange. root: the only rank that needs the payloads; None: all need them.
        """

    @abstractmethod
    def exchange_blocks(self, ptr: int, size: int) -> list[int]:
        """Send each rank its block of `size` bytes, in rank order from `ptr` on. Returns where the ranks' blocks for
        this rank are.

        They stay there until the next exchange. ptr: 0 on a rank that sends no blocks.
        """

    def barrier(self) -> None:
        self.exchange()

    def all_reduce(self, ptr: int, count: int, dtype: DType, op: ReduceOp, root: int | None = None) -> None:
        """root: the only rank that gets the result; None: all get it."""
        payloads = self.exchange(ptr, count * ITEMSIZE[dtype], root)
        if root in (None, self._rank):
            reduce_local(ptr, payloads, count, dtype, op, self._n)

    reduce = all_reduce

    def broadcast(self, ptr: int, size: int, root: int) -> None:
        if self._rank == root:
            self.exchange(ptr, size)
        else:
            _copy(ptr, self.exchange()[root], size)

    def all_gather(self, send: int, recv: int, size: int, root: int | None = None) -> None:
        """root: as for all_reduce."""
        payloads = self.exchange(send, size, root)
        if root in (None, self._rank):
            _collect(payloads, recv, size)

    gather = all_gather
    all_to_all_v = all_gather  # of the counts; the data follows

    def scatter(self, send: int, recv: int, size: int, root: int) -> None:
        _copy(recv, self.exchange_blocks(send if self._rank == root else 0, size)[root], size)

    def scatter_array(self, header: Any, send: int, recv: int, root: int, parts: bool) -> bytes | None:
        """See Communicator.announce_array. parts: whether the parts may come with the header."""
        at, length = address(header), header.nbytes
        if self._rank != root:
            payload = self.exchange()[root]
            _copy(at, payload, length)
            size = _part_size(header.tolist(), self._n)
            return ctypes.string_at(payload + length, size) if parts and 0 <= size <= self._room - length else None
        size = _part_size(header.tolist(), self._n)
        if not (parts and 0 <= size <= self._room - length):
            self.exchange(at, length)
            return None
        envelopes = np.empty((self._n, length + size), np.uint8)
        envelopes[:, :length] = header.view(np.uint8)
        if size:
            envelopes[:, length:] = blocks(send, self._n, size)
        _copy(recv, self.exchange_blocks(address(envelopes), length + size)[root] + length, size)
        return b""

    def reduce_scatter(self, send: int, recv: int, count: int, dtype: DType, op: ReduceOp) -> None:
        reduce_local(recv, self.exchange_blocks(send, count * ITEMSIZE[dtype]), count, dtype, op, self._n)

    def all_to_all(self, send: int, recv: int, size: int) -> None:
        _collect(self.exchange_blocks(send, size), recv, size)


def _collect(addresses: list[int], recv: int, size: int) -> None:
    """Copy `size` bytes from each address to successive places from `recv` on."""
    for at in addresses:
        _copy(recv, at, size)
        recv += size


def _part_size(header: list[int], n: int) -> int:
    """The bytes of a rank's part of the array that a header describes; -1 if the parts differ in size, or if the
    header does not hold the whole shape.
    """
    dtype, dims, *shape = header
    if dims > len(shape) or shape[0] % n:
        return -1
    return prod(shape[:dims]) * ITEMSIZE[dtype] // n


class GatheredEnvelopes(Envelopes):
    """Envelopes of one length, since some engines crash if lengths differ; every rank receives those of all ranks.

    inline: the most bytes of a payload, a multiple of 8. collect: gathers all envelopes, from the address of this
    rank's, the address for all of them, and the size of one.
    """

    def __init__(self, rank: int, world_size: int, inline: int, collect: Callable[[int, int, int], object]) -> None:
        super().__init__(rank, world_size)
        size = DIGEST + inline
        self._mine, self._all = np.zeros(size // 8, np.int64), np.zeros((world_size, size // 8), np.int64)
        own, everybody = (address(array) for array in (self._mine, self._all))
        self._head, self._digests = self._mine.data, self._all[:, 0].data
        self._payload = own + DIGEST
        self._payloads = [everybody + DIGEST + number * size for number in range(world_size)]
        self._collect = partial(collect, own, everybody, size)

    def exchange(self, ptr: int = 0, size: int = 0, root: int | None = None) -> list[int]:
        self._head[0] = self.digest
        if size:
            _copy(self._payload, ptr, size)
        self._collect()
        if self._digests.tolist().count(self.digest) != self._n:
            raise Different
        return self._payloads

    def exchange_blocks(self, ptr: int, size: int) -> list[int]:
        return [at + self._rank * size for at in self.exchange(ptr, size * self._n if ptr else 0)]
