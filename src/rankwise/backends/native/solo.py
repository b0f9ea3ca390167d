"""solo: one rank, this process alone."""

from __future__ import annotations

from rankwise import _native
from rankwise.backends.native.communicator import EngineCommunicator, join
from rankwise.contract.job import Job


def open_communicator(job: Job, timeout: float) -> EngineCommunicator:
    """A world of one rank. Raises ValueError if the job has more."""
    if job.world_size != 1:
        raise ValueError(f"backend='solo' is for one rank, and this job has {job.world_size} ({job.launcher})")
    return join(_native.Segment.create(1), 0, timeout, "solo", process=False)
