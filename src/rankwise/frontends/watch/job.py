"""The ranks of a host meet, and each begins to record its calls."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rankwise import _native, _watch
from rankwise.contract.job import Job
from rankwise.frontends.watch.operations import ALL, REDUCTIONS
from rankwise.frontends.watch.trace import write_at_end
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings

MEETING = 60.0  # seconds that the ranks of a host may take to start


def start(timeout: float, abort: bool, trace: Path | None = None) -> None:
    """Begin to record this process's calls, and to compare them with those of the host's other ranks.

    timeout: seconds after which a call lasts too long. abort: whether such a call ends the job. trace: the file for the
    trace of rank 0's host.

    Raises:
        ValueError: the launcher does not say how many ranks this host has.
        OSError: the trace cannot be written.
    """
    job = find_job(os.environ, Settings.read())
    segment, local = _segment(job)
    _watch.start(
        segment=segment,
        rank=local,
        number=job.rank,
        world_size=job.world_size,
        operations=[(each.name, each.traced, each.message, each.root[1] if each.root else "") for each in ALL],
        reductions=list(REDUCTIONS),
        timeout=timeout,
        abort=abort,
    )
    if trace is not None and job.rank == 0:
        write_at_end(segment, trace)


def _segment(job: Job) -> tuple[_native.Segment, int]:
    """The memory of this host's ranks, and this rank's number in it."""
    if job.segment_fd is not None:
        return _native.Segment.attach(job.segment_fd), job.local_rank or 0
    if job.local_rank is None or job.local_world_size is None:
        if not job.one_host:
            raise ValueError(
                f"{job.launcher} does not say which of the {job.world_size} ranks run on this host: start the program "
                "with mpiexec, torchrun, or srun --ntasks-per-node"
            )
        job = replace(job, local_rank=job.rank, local_world_size=job.world_size)
    if job.local_world_size == 1:
        return _native.Segment.create(1), 0
    from rankwise.backends.native import rendezvous  # slow to import, with its sockets and hashes

    local = replace(job, id=f"watch of {job.id}", rank=job.local_rank or 0, world_size=job.local_world_size or 1)
    return rendezvous.meet(local, MEETING), local.rank
