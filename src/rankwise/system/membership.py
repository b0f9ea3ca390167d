"""What ranks report to their launcher about each other: which of them the others left out, and which are done.

A launcher whose job may go on after losses shares this memory with all its ranks: one byte for each rank of the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rankwise.system.settings import MEMBERSHIP_MEMFD, Settings, is_memory

MEMBER, LEFT_OUT, DONE = range(3)
"""What is noted about a rank: it may meet the others again; the others have gone on without it, because it was lost or
did not come; there is nothing left in which a replacement of it could take part."""


class Membership:
    """What the ranks of a job have noted about each other. fd: the memory; without it nothing is noted."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = fd

    @classmethod
    def create(cls, world_size: int) -> Membership:
        """For a launcher and its ranks, which inherit `fd`."""
        fd = os.memfd_create(MEMBERSHIP_MEMFD)
        os.ftruncate(fd, world_size)
        return cls(fd)

    @classmethod
    def of(cls, settings: Settings) -> Membership:
        """Those that this process's launcher reads; if it reads none, nothing is noted."""
        return cls(settings.membership_fd if is_memory(settings.membership_fd, MEMBERSHIP_MEMFD) else None)

    def note(self, ranks: Iterable[int], what: int) -> None:
        """Note `what` (LEFT_OUT, for example) about these ranks of the job."""
        if self.fd is not None:
            for rank in ranks:
                os.pwrite(self.fd, bytes([what]), rank)

    def of_rank(self, rank: int) -> int:
        """What was noted last about this rank."""
        return MEMBER if self.fd is None else os.pread(self.fd, 1, rank)[0]

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
