"""shm: the ranks are processes of one host and share a segment of memory."""

from __future__ import annotations

from rankwise import _native
from rankwise.backends.engine import EngineCommunicator
from rankwise.contract.job import Job


def open(job: Job, timeout: float) -> EngineCommunicator:
    """Join the job's segment: the inherited one, or one that the ranks hand over among themselves."""
    if job.segment_fd is not None:
        segment = _native.Segment.attach(job.segment_fd)
    else:
        segment = _native.Segment.create(job.world_size)
    return EngineCommunicator(segment.join(job.rank, timeout, True), "shm")
