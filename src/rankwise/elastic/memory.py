"""The memory of a rank's commits: a memfd with two slots, of which a commit fills the one with the older commit.

The launcher creates the memfd, so that it outlives the rank, and the rank's replacement inherits it. The
file holds, in native byte order:
    0        header: magic, bytes of the description, then for each slot the number of its commit + 1 (0: the
             slot is empty) and the bytes of its objects; all uint64
    a page   description: the names, dtypes and shapes of the arrays
    ...      the arrays of slot 0, then those of slot 1, each on a page boundary
    ...      the objects of both slots, in pieces that alternate, so that both can grow

A rank can be killed between any two stores. So a slot is marked empty before it is filled, and gets its
number by one store afterwards; the other slot stays as it is. The magic is stored last of all.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise._native import available_memory
from rankwise.system.settings import STATE_MEMFD
from rankwise.system.shared_pages import no_room, take_pages

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

SLOTS = 2
_NUMBER, _LENGTH = 0, 1
_MAGIC = 0x3165746174736B72  # "rkstate1"
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 20  # bytes of one slot's objects before the other slot's
_LINE = 64
_USER = "rankwise.elastic.State"


class CommitMemory:
    """Two slots for commits of arrays of fixed sizes and of one object of any size, in the file `fd`.

    fd: the inherited memfd, or None for one of this process's own. description: says what the arrays are.
    sizes: their sizes in bytes. If the file already has slots, they are taken up with their commits.

    Raises ValueError if the file has slots of another description, and MemoryError, which says how much is
    needed and how much available, if there is no room.
    """

    def __init__(self, fd: int | None, description: bytes, sizes: list[int]) -> None:
        self._fd = os.memfd_create(STATE_MEMFD) if fd is None else os.dup(fd)
        try:
            self._map(description, sizes)
        except BaseException:
            os.close(self._fd)
            raise

    def _map(self, description: bytes, sizes: list[int]) -> None:
        *places, end = np.cumsum([0, *(_round_up(size, _LINE) for size in sizes)]).tolist()
        first = _PAGE + _round_up(len(description), _PAGE)
        slots = [first, first + _round_up(end, _PAGE)]
        self._objects = slots[1] + _round_up(end, _PAGE)
        self._longest = [0] * SLOTS  # the longest objects that this process has written to each slot
        mapped = self._existing()
        if mapped is not None and mapped != description:
            raise ValueError(f"the memory holds the commits of other arrays: {mapped.decode()}")
        if mapped is None:
            take_pages(self._fd, self._objects, available_memory(), _USER)
        self._memory = mmap.mmap(self._fd, self._objects, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        whole = np.frombuffer(self._memory, np.uint8)
        header = whole[:_PAGE].view(np.uint64)
        self._slots = header[2 : 2 + 2 * SLOTS].reshape(SLOTS, 2)
        """By slot: the number of its commit + 1, at _NUMBER, and the bytes of its objects, at _LENGTH."""
        self.arrays: list[list[Bytes]] = [
            [whole[slot + place : slot + place + size] for place, size in zip(places, sizes, strict=True)]
            for slot in slots
        ]
        """For each slot its arrays, as bytes."""
        if mapped is None:
            whole[_PAGE : _PAGE + len(description)] = np.frombuffer(description, np.uint8)
            header[1] = len(description)
            header[0] = _MAGIC

    def _existing(self) -> bytes | None:
        """The description of the slots that the file has, or None if it has none."""
        header = os.pread(self._fd, 16, 0)
        if len(header) < 16:
            return None
        magic, length = np.frombuffer(header, np.uint64).tolist()
        return os.pread(self._fd, length, _PAGE) if magic == _MAGIC else None

    def commits(self) -> dict[int, int]:
        """{number of a commit: its slot}, at most two, the newest first."""
        numbers = {int(self._slots[slot, _NUMBER]) - 1: slot for slot in range(SLOTS)}
        return {number: numbers[number] for number in sorted(numbers, reverse=True) if number >= 0}

    def begin(self) -> int:
        """Empty the slot that the next commit is to fill, and return it: an empty one, or the older commit's."""
        slot = int(self._slots[:, _NUMBER].argmin())
        self._slots[slot, _NUMBER] = 0
        return slot

    def end(self, slot: int, number: int, objects: bytes) -> None:
        """Commit the slot's arrays, which the caller has written, and `objects`, as `number`.

        Raises MemoryError if there is no room for the objects.
        """
        if len(objects) > self._longest[slot]:
            available = available_memory()
            if len(objects) > available:
                raise MemoryError(no_room(len(objects), available, _USER))
            self._longest[slot] = len(objects)
        for at in range(0, len(objects), _PIECE):
            _write(self._fd, memoryview(objects)[at : at + _PIECE], self._place(slot, at))
        self._slots[slot, _LENGTH] = len(objects)
        self._slots[slot, _NUMBER] = number + 1

    def objects(self, slot: int) -> bytes:
        """The objects of a slot's commit."""
        length = int(self._slots[slot, _LENGTH])
        pieces = [
            os.pread(self._fd, min(_PIECE, length - at), self._place(slot, at)) for at in range(0, length, _PIECE)
        ]
        return b"".join(pieces)

    def drop_after(self, number: int) -> None:
        """Empty the slots of newer commits."""
        for newer, slot in self.commits().items():
            if newer > number:
                self._slots[slot, _NUMBER] = 0

    def discard(self) -> None:
        """Give the memory back, and with it the commits. This object must not be used afterwards."""
        self.arrays.clear()
        os.ftruncate(self._fd, 0)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # the module may be gone by then
        if hasattr(self, "_slots"):  # else __init__ has failed, and closed it
            close(self._fd)

    def _place(self, slot: int, at: int) -> int:
        return self._objects + (at // _PIECE * SLOTS + slot) * _PIECE


def _round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def _write(fd: int, data: memoryview, at: int) -> None:
    while data:
        try:
            written = os.pwrite(fd, data, at)
        except OSError as error:
            raise MemoryError(f"no room for the objects of a commit: {error.strerror}") from error
        data, at = data[written:], at + written
