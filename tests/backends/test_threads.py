"""Threads that share one group: no other thread's calls come between the several calls of one operation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from backends import hosts_in_threads
from rankwise import Group, _native
from rankwise.backends.composed.checked import CheckedCommunicator
from rankwise.backends.native import threads
from rankwise.backends.registry import Opener
from rankwise.testing import run_ranks

SOON = 30.0  # seconds
ROUNDS = 150


def checked(n: int) -> Opener:
    segment = _native.Segment.create(n)
    return lambda job, timeout: CheckedCommunicator(threads.connect(segment, job.rank, timeout))


@pytest.fixture(params=[pytest.param("gloo", marks=pytest.mark.slow), "hierarchical", "checked", "shm"])
def backend(request: pytest.FixtureRequest) -> str | Opener:
    if request.param == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
        return "gloo"
    if request.param == "hierarchical":
        return hosts_in_threads.opener((0, 1, 1))
    return checked(3) if request.param == "checked" else "shm"


@contextmanager
def quick_switches() -> Iterator[None]:
    """Python's threads take over from each other all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(*bodies: Callable[[], object]) -> None:
    """Run these, each in a thread, and raise what one of them raised."""
    with quick_switches(), ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result(SOON)


def scatters(group: Group, how: str) -> None:
    """The same scatter again and again: which thread's goes first, the ranks need not agree on."""
    n = group.world_size
    whole, part = np.arange(4 * n), np.arange(4 * group.rank, 4 * group.rank + 4)
    given = whole if group.rank == 0 else None
    for _ in range(ROUNDS):
        if how == "out":
            assert (group.scatter(given, out=np.zeros(4, whole.dtype)) == part).all()
        elif how == "async":
            assert (group.scatter(given, async_op=True).wait(SOON) == part).all()
        else:
            assert (group.scatter(given) == part).all()


@pytest.mark.parametrize("ways", [("new", "new"), ("out", "out"), ("async", "new"), ("async", "async")], ids="+".join)
def test_two_threads_scatter(backend: str | Opener, ways: tuple[str, str]) -> None:
    """A scatter is several calls: its header, then its parts."""

    def body(group: Group) -> None:
        at_once(*(partial(scatters, group, how) for how in ways))
        assert group.all_reduce(1) == group.world_size

    run_ranks(body, 3, backend=backend, timeout=SOON)


def until_inside(comm: Any) -> None:
    """Return when a collective of this rank has begun. The native engine does not say; there it returns at once."""
    if not hasattr(comm, "_inside"):  # it may be traced
        comm = getattr(comm, "_inner", comm)
    while not getattr(comm, "_inside", True):
        time.sleep(0.001)


def test_starting_an_operation_does_not_wait_for_those_started_before(backend: str | Opener) -> None:
    def body(group: Group) -> None:
        if group.rank:
            assert group.recv((1,), 0) == [7.0]
        works = [group.all_reduce(np.ones(3), async_op=True)]
        if not group.rank:  # it waits for the others, who wait for this rank's messages
            until_inside(group.comm)
        works.append(group.all_reduce(np.ones(3), async_op=True))
        if not group.rank:
            for rank in range(1, group.world_size):
                group.send(np.full(1, 7.0), rank)
        assert all((work.wait(SOON) == group.world_size).all() for work in works)

    run_ranks(body, 3, backend=backend, timeout=SOON)


def test_a_call_of_several_may_be_nested(backend: str | Opener) -> None:
    def body(group: Group) -> None:
        def inner() -> int:
            return int(group.all_reduce(1))

        for _ in range(3):
            waiting = group.barrier(async_op=True)
            assert group.comm.call(lambda: group.comm.call(inner) + inner()) == 2 * group.world_size
            waiting.wait(SOON)

    run_ranks(body, 3, backend=backend, timeout=SOON)
