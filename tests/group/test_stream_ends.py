"""Close, garbage collection and the program's end with work queued: bounded, logged, never raised.

With a peer that never comes, a function that never ends, an event never reached.
"""

from __future__ import annotations

import gc
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, PeerLostError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

SOON = 20.0  # seconds within which anything must end
BOUND = 8.0  # seconds that one close with the default limit of one may take on a busy machine

Queue = Callable[[Group, rw.overlap.Stream, threading.Event], "list[rw.Work[object]]"]


def peer_never_comes(group: Group, compute: rw.overlap.Stream, never: threading.Event) -> list[rw.Work[object]]:
    work = group.all_reduce(np.ones(10), async_op=True)
    compute.wait_stream(group.stream)
    return [work, compute.submit(int)]


def function_never_ends(group: Group, compute: rw.overlap.Stream, never: threading.Event) -> list[rw.Work[object]]:
    compute.submit(never.wait)
    group.stream.wait_stream(compute)
    return [group.all_reduce(np.ones(10), async_op=True), compute.submit(int)]


def event_never_reached(group: Group, compute: rw.overlap.Stream, never: threading.Event) -> list[rw.Work[object]]:
    other = rw.overlap.Stream("other")
    other.submit(never.wait)
    event = other.record_event()
    group.stream.wait_event(event)
    compute.wait_event(event)
    compute.keep = other  # type: ignore[attr-defined]  # so that it is closed no earlier
    return [group.barrier(async_op=True), compute.submit(int)]


def function_of_the_group_never_ends(
    group: Group, compute: rw.overlap.Stream, never: threading.Event
) -> list[rw.Work[object]]:
    def op(a: object, b: object) -> object:
        never.wait()
        return a

    work = group.all_reduce(np.ones(10), op, async_op=True)
    return [work, group.barrier(async_op=True)]


STUCK: list[Queue] = [peer_never_comes, function_never_ends, event_never_reached, function_of_the_group_never_ends]


def peer(group: Group, queue: Queue, stay: Callable[[], object]) -> None:
    """Rank 1's part: it does not come, or takes part where a function of the other one hangs; it is told."""
    if queue is function_of_the_group_never_ends:
        with pytest.raises(PeerLostError):
            group.all_reduce(np.ones(10), np.add)
    stay()
    with pytest.raises(PeerLostError):
        group.barrier()


# A function that runs holds its group, which is therefore not dropped before that is over.
ENDS = [(queue, how) for queue in STUCK for how in ("close", "drop") if (queue, how) != (STUCK[-1], "drop")]


@pytest.mark.slow
@pytest.mark.parametrize(("queue", "how"), ENDS)
def test_closing_with_work_queued(queue: Queue, how: str, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()
    never = threading.Event()  # until the test is over

    def rank(group: Group) -> None:
        part = group.dup()
        if group.rank == 1:
            return peer(part, queue, partial(over.wait, SOON))
        compute = rw.overlap.Stream("compute")
        works = queue(part, compute, never)
        start = time.monotonic()
        if how == "close":
            part.close()
            compute.close()
            for work in works:
                if work.done():  # all but what an endless function is in
                    with pytest.raises((ClosedError, PeerLostError)):
                        work.wait()
        else:
            works.clear()
            del part, compute
            gc.collect()
        assert time.monotonic() - start < 2 * BOUND
        over.set()
        return None

    with caplog.at_level(logging.WARNING, "rankwise"):
        try:
            run_ranks(rank, 2, timeout=SOON)
        finally:
            over.set()
            never.set()
    assert any(record.message.startswith("closing ") for record in caplog.records)


PROGRAM = """
import atexit, time
ended = []
atexit.register(lambda: print(f"rank {rank} ended in {time.monotonic() - ended[0]:.2f} s", flush=True))
import sys, threading
import rankwise as rw
sys.path.insert(0, sys.argv[1])
import test_stream_ends as ends
group = rw.init()
rank = group.rank
group.barrier()
if rank == 0:
    compute = rw.overlap.Stream("compute")
    works = getattr(ends, sys.argv[2])(group, compute, threading.Event())
    time.sleep(0.05)
else:
    ends.peer(group, getattr(ends, sys.argv[2]), lambda: threading.Event().wait(2.5))
    print("rank 1 was told")
ended.append(time.monotonic())
"""


@pytest.mark.slow
@pytest.mark.parametrize("queue", STUCK)
def test_the_end_of_the_program(queue: Queue) -> None:
    """Both ranks end, rank 0 within its limit, and rank 1 gets an error."""
    program = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), queue.__name__]
    command = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--", *program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    assert "Traceback" not in said
    assert re.search(r"^closing ", said, re.MULTILINE), said
    assert "rank 1 was told" in said
    taken = re.search(r"rank 0 ended in ([\d.]+) s", said)
    assert taken, said
    assert float(taken[1]) < BOUND
