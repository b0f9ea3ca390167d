"""A group that was shrunk conforms as any other: every operation and scenario on what is left of a larger group."""

from __future__ import annotations

import threading

import pytest

from rankwise import _native
from rankwise.backends.native import threads
from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.testing import check_backend


@pytest.mark.slow  # tests/group/test_recovery.py calls some operations of such groups
@pytest.mark.parametrize("left", [0, 2], ids=["the first left", "the last left"])
def test_it_conforms(left: int) -> None:
    n = 2
    segments: dict[str, _native.Segment] = {}
    lock = threading.Lock()

    def leave(segment: _native.Segment) -> None:
        threads.connect(segment, left, 60.0).close()

    def open_shrunk(job: Job, timeout: float) -> Communicator:
        with lock:
            first = job.id not in segments
            segment = segments.setdefault(job.id, _native.Segment.create(n + 1))
        leaver = threading.Thread(target=leave, args=(segment,))
        if first:
            leaver.start()
        with threads.connect(segment, job.rank + (job.rank >= left), timeout) as whole:
            shrunk = whole.shrink()
        if first:
            leaver.join()
        assert (shrunk.rank, shrunk.world_size) == (job.rank, n)
        return shrunk

    report = check_backend(open_shrunk, n, timeout=60)
    assert report.ok, report.failures[:10]
