"""threads: the ranks are threads of one process, over one segment; rank_threads.py starts them.

segment = Segment.create(n)                  # once
comm = connect(segment, rank, timeout)       # in each of n threads
"""

from __future__ import annotations

from rankwise import _native
from rankwise.backends.native.communicator import EngineCommunicator, join
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.job import Job


def connect(segment: _native.Segment, rank: int, timeout: float) -> EngineCommunicator:
    """This thread's communicator as rank `rank`; returns once all `segment.world_size` threads have called this."""
    return join(segment, rank, timeout, "threads", process=False)


def open_communicator(job: Job, timeout: float) -> EngineCommunicator:
    """A world of one thread. A launcher's ranks are processes: UnsupportedError for them."""
    if job.world_size != 1:
        raise UnsupportedError(
            "init",
            "threads",
            "the ranks of this job are processes",
            "rankwise.spawn(fn, n, threads=True) starts threads",
        )
    return connect(_native.Segment.create(1), 0, timeout)
