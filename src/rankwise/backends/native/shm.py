"""shm: the ranks are processes of one host and share a segment of memory."""

from __future__ import annotations

import os
from dataclasses import replace

from rankwise import _native
from rankwise.backends.native.communicator import EngineCommunicator, join
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.job import Job

_taken: set[int] = set()  # inodes of the inherited segments that this process has joined


def open_communicator(job: Job, timeout: float) -> EngineCommunicator:
    """Join the job's segment: the inherited one, or one that rank 0 makes and sends to the others.

    A segment is joined once. Ranks that close their communicator and open another get a new segment. A process that
    replaces a lost one joins the survivors, which call restore.
    """
    if job.segment_fd is not None and not job.one_host:
        why = f"the launcher started {job.local_world_size} of the {job.world_size} ranks on this host"
        raise UnsupportedError("init", "shm", why, "use hierarchical, or start all ranks on one host")
    segment, inherited = segment_of(job, timeout)
    restart = job.restart if inherited else 0
    return join(segment, job.rank, timeout, "shm", process=True, restart=restart, tuning=job.tuning)


def segment_of(job: Job, timeout: float) -> tuple[_native.Segment, bool]:
    """The segment of a job's ranks on one host, and whether it is inherited. An inherited one is joined only once."""
    if job.segment_fd is None:
        return _meet(job, timeout), False
    if (inode := _inode(job.segment_fd)) not in _taken:
        _taken.add(inode)
        return _native.Segment.attach(job.segment_fd), True
    return _meet(replace(job, id=f"{job.id or job.launcher}, segment {inode}"), timeout), False


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
