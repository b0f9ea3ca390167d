"""shm: the ranks are processes of one host and share a segment of memory."""

from __future__ import annotations

from rankwise import _native
from rankwise.backends import rendezvous
from rankwise.backends.engine import EngineCommunicator
from rankwise.contract.job import Job


def open(job: Job, timeout: float) -> EngineCommunicator:
    """Join the job's segment: the inherited one, or one that the ranks hand over among themselves."""
    inherited = job.segment_fd
    segment = rendezvous.meet(job, timeout) if inherited is None else _native.Segment.attach(inherited)
    return EngineCommunicator(segment.join(job.rank, timeout, True), "shm")
