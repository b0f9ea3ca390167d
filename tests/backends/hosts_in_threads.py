"""Simulated hosts: ranks are threads, and by default this host's engine replaces the engine between hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rankwise import _native
from rankwise.backends.closing import OpenCommunicator
from rankwise.backends.hierarchical import communicator as hierarchical
from rankwise.backends.hierarchical.hosts import Layout
from rankwise.backends.native import threads
from rankwise.backends.registry import Opener
from rankwise.contract.job import Job

# Which host each rank is on.
PLACEMENTS = {
    "2x2": (0, 0, 1, 1),
    "2x2 round-robin": (0, 1, 0, 1),
    "uneven": (0, 0, 0, 1, 2, 2, 1),
    "one has one": (0, 1, 1),
}


def opener(
    hosts: Sequence[int],
    wrap: Callable[[OpenCommunicator], OpenCommunicator] = lambda comm: comm,
    engine: Callable[..., OpenCommunicator] | None = None,
) -> Opener:
    """A backend for len(hosts) threads. engine: between the hosts. wrap: what to make of it."""
    segments: dict[str, _native.Segment] = {}
    lock = threading.Lock()

    def open_communicator(job: Job, timeout: float) -> OpenCommunicator:
        with lock:
            segment = segments.setdefault(job.id, _native.Segment.create(len(hosts)))
        everybody = threads.connect(segment, job.rank, timeout)
        local = everybody.split(hosts[job.rank], job.rank)
        assert local is not None
        flat = everybody if engine is None else engine(job, timeout)
        return hierarchical.assemble(wrap(flat), local, Layout.of(hosts), {})

    return open_communicator
