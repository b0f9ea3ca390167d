"""Views of memory at addresses, and bytes that ranks exchange as they open."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rankwise._native import address
from rankwise.contract.communicator import Communicator, complete
from rankwise.contract.types import DType


def blocks(ptr: int, count: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of `count` blocks of `size` bytes as an array, one row per block, without a copy."""
    memory = memoryview((ctypes.c_uint8 * (count * size)).from_address(ptr)).cast("B")
    return np.frombuffer(memory, np.uint8).reshape(count, size)


# ---- how ranks exchange bytes of any length while they open a communicator ----


def gathered(all_gather: Callable[[int, int, int], object], world_size: int, value: bytes) -> list[bytes]:
    """Every rank's bytes, by rank. all_gather: takes this rank's block, room for all blocks, a block's size."""
    own, lengths = np.array([len(value)], np.int64), np.empty(world_size, np.int64)
    all_gather(address(own), address(lengths), own.nbytes)
    longest = max(1, int(lengths.max()))
    block = np.frombuffer(value.ljust(longest, b"\0"), np.uint8)
    blocks = np.empty((world_size, longest), np.uint8)
    all_gather(address(block), address(blocks), longest)
    return [row[:length].tobytes() for row, length in zip(blocks, lengths, strict=True)]


def all_gather_bytes(comm: Communicator, value: bytes) -> list[bytes]:
    """Every rank's bytes, by rank."""
    all_gather = complete(comm).all_gather
    return gathered(lambda send, recv, size: all_gather(send, recv, size, DType.U8), comm.world_size, value)


def broadcast_bytes(comm: Communicator, value: bytes) -> bytes:
    """Rank 0's bytes; the others' are ignored."""
    length, collectives = np.array([len(value)], np.int64), complete(comm)
    collectives.broadcast(address(length), 1, DType.I64, 0)
    memory = np.empty(max(1, int(length[0])), np.uint8)
    if comm.rank == 0:
        memory[: len(value)] = np.frombuffer(value, np.uint8)
    collectives.broadcast(address(memory), int(length[0]), DType.U8, 0)
    return memory[: int(length[0])].tobytes()


def packed(items: Iterable[bytes]) -> bytes:
    """Several items as one, which `unpacked` separates again."""
    return b"".join(struct.pack("<Q", len(item)) + item for item in items)


def unpacked(data: bytes) -> list[bytes]:
    items, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        items.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return items
