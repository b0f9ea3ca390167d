"""The lifetime of an array-level Work, over a communicator's Work that the test controls."""

from __future__ import annotations

import gc
import time
import weakref
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from rankwise.arrays.buffers import target
from rankwise.contract.errors import CollectiveTimeout, PeerLostError, RankwiseError
from rankwise.contract.work import Work
from rankwise.group.base import nothing
from rankwise.group.group import Group
from rankwise.group.work import ArrayWork, Pending
from rankwise.testing import run_ranks


def pending_works() -> Pending:
    return Pending("of a test", SimpleNamespace(closed=False))  # all that it asks of a communicator


class Told(Work[None]):
    def __init__(self) -> None:
        self.complete = False
        self.error: RankwiseError | None = None

    def wait(self, timeout: float | None = None) -> None:
        if self.error is not None:
            raise self.error
        if not self.complete:
            raise CollectiveTimeout("not yet", limit=timeout or 0.0)

    def done(self) -> bool:
        return self.complete or self.error is not None


def test_an_interrupt_while_the_result_is_fetched_loses_nothing() -> None:
    class Interrupted(Told):
        def wait(self, timeout: float | None = None) -> None:
            self.waits = getattr(self, "waits", 0) + 1
            if self.waits == 2:
                raise KeyboardInterrupt

    inner = Interrupted()
    inner.complete = True
    buffer = target(np.ones(2))
    work = ArrayWork(inner, buffer.finish, pending_works()).started()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert work.error is None
    assert work.wait().tolist() == [1, 1]


def test_a_receive_gives_its_array_once_it_is_complete() -> None:
    inner, pending = Told(), pending_works()
    x = np.zeros((2, 2)).T[::-1]
    buffer = target(x)
    work = ArrayWork(inner, buffer.finish, pending).started()
    assert not work.done()
    with pytest.raises(CollectiveTimeout):
        work.wait(0.1)
    assert pending.works
    buffer.array[:] = [[1, 2], [3, 4]]
    assert (x == 0).all()
    inner.complete = True
    assert work.done()
    assert not pending.works
    assert x.tolist() == [[1, 2], [3, 4]]
    x[:] = 0  # the array is the caller's again
    assert work.wait() is work.result() is x
    assert (x == 0).all()


def test_a_send_has_no_result() -> None:
    inner = Told()
    inner.complete = True
    assert ArrayWork(inner, nothing, pending_works(), target(np.ones(2))).started().wait() is None


@pytest.mark.parametrize("ask_done_first", [True, False])
def test_an_error_is_raised_each_time(ask_done_first: bool) -> None:
    inner, pending = Told(), pending_works()
    work = ArrayWork(inner, target(np.ones(2)).finish, pending).started()
    inner.error = PeerLostError("rank 1 was killed by SIGKILL", rank=1)
    if ask_done_first:
        assert work.done()
    for _ in range(2):
        with pytest.raises(PeerLostError, match=r"SIGKILL"):
            work.wait()
    assert work.done()
    assert not pending.works


def test_memory_lives_as_long_as_the_engine_may_use_it() -> None:
    inner, pending = Told(), pending_works()
    x = np.ones(3)
    alive = weakref.ref(x)
    ArrayWork(inner, nothing, pending, target(x)).started()
    del x
    gc.collect()
    assert alive() is not None
    inner.complete = True
    pending.release_done()
    gc.collect()
    assert alive() is None


def test_dropped_works_do_not_pile_up() -> None:
    pending = pending_works()
    done = Told()
    done.complete = True
    for _ in range(1000):
        ArrayWork(done, nothing, pending, target(np.ones(1))).started()
        assert len(pending.works) <= 16


@pytest.mark.parametrize("ask", ["wait", "done", "neither"])
def test_a_function_that_exits_does_not_disturb_later_operations(ask: str) -> None:
    def exits(a: object, b: object) -> object:
        raise SystemExit(3)

    def ranks(group: Group) -> None:
        part = group.dup()
        work = part.scan(np.ones(2), exits, async_op=True)
        if ask == "done":
            while not work.done():
                time.sleep(0.001)
        if ask != "neither":
            with pytest.raises(SystemExit if group.rank == 0 else RankwiseError):
                work.wait()
        del work
        with suppress(RankwiseError):  # rank 0 has left the operation before its end, so the group has failed
            part.barrier()
        part.close()

    run_ranks(2, ranks)
