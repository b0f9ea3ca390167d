"""shm: the ranks are processes of one host and share a segment of memory."""

from __future__ import annotations

import os
from dataclasses import replace

from rankwise import _native
from rankwise.backends.native.communicator import EngineCommunicator, join
from rankwise.contract.job import Job

_taken: set[int] = set()  # inodes of the inherited segments that this process has joined


def open(job: Job, timeout: float) -> EngineCommunicator:
    """Join the job's segment: the inherited one, or one that rank 0 makes and sends to the others.

    A segment is joined once. Ranks that close their communicator and open another get a new segment.
    """
    if job.segment_fd is None:
        segment = _meet(job, timeout)
    elif (inode := _inode(job.segment_fd)) not in _taken:
        segment = _native.Segment.attach(job.segment_fd)
        _taken.add(inode)
    else:
        segment = _meet(replace(job, id=f"{job.launcher}, segment {inode}"), timeout)
    return join(segment, job.rank, timeout, "shm", process=True)


def _meet(job: Job, timeout: float) -> _native.Segment:
    from rankwise.backends.native import rendezvous  # slow to import, with its sockets and hashes

    return rendezvous.meet(job, timeout)


def _inode(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        raise ValueError(
            f"RANKWISE_SEGMENT_FD={fd}: expected the descriptor of the job's segment, which this process did not "
            "inherit; child processes of a rank are not ranks"
        ) from None
