"""Memory that the ranks of a host share, in the segment, where collectives work on it in place."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from rankwise import _native


class HostBlock:
    """HostMemory in a block of the segment."""

    def __init__(self, block: _native.SharedBlock, size: int, fd: int) -> None:
        """fd: the segment's."""
        self._block, self._size, self._fd = block, size, fd

    @property
    def ticket(self) -> tuple[int, int]:
        return self._block.ticket

    def hand_out(self, ranks: int, deadline: float) -> None:
        """Nothing to do: every rank has mapped the segment."""

    def view(self, *, writable: bool, own_writes: bool = False) -> Any:
        if own_writes:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            copy = _OwnWrites(self._fd, self._size, mmap.MAP_PRIVATE, access, offset=self._block.offset)
            copy.block = self._block
            return copy
        view = np.asarray(self._block)
        if not writable:
            view.flags.writeable = False  # nobody can set it again, because the block offers no buffer
        return view

    def close(self) -> None:
        """Nothing to do: the block goes with this and its views."""


class _OwnWrites(mmap.mmap):
    """A private mapping of a block, which it keeps."""

    block: _native.SharedBlock
