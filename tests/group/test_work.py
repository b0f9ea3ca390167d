"""The lifetime of an array-level Work, over a communicator's Work that the test controls."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest

import rankwise as rw
from rankwise.arrays.buffers import target
from rankwise.contract.errors import ClosedError, CollectiveTimeout, PeerLostError, RankwiseError
from rankwise.contract.shortcuts import Shortcuts
from rankwise.contract.work import Work
from rankwise.group.base import nothing
from rankwise.group.group import Group
from rankwise.group.work import ArrayWork, Pending, wait_or_cancel
from rankwise.testing import run_ranks


def pending_works() -> Pending:
    return Pending(
        "of a test", SimpleNamespace(closed=False, shortcuts=Shortcuts())
    )  # all that it asks of a communicator


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
            if self.waits == 1:
                raise KeyboardInterrupt

    inner = Interrupted()
    inner.complete = True
    buffer = target(np.ones(2))
    work = ArrayWork(inner, buffer.finish, pending_works()).register()
    with pytest.raises(KeyboardInterrupt):
        work.done()
    assert work.error is None
    assert work.wait().tolist() == [1, 1]


def test_a_receive_gives_its_array_once_it_is_complete() -> None:
    inner, pending = Told(), pending_works()
    x = np.zeros((2, 2)).T[::-1]
    buffer = target(x)
    work = ArrayWork(inner, buffer.finish, pending).register()
    assert not work.done()
    with pytest.raises(CollectiveTimeout):
        work.wait(0.1)
    assert repr(work) == "<Work, not yet waited for>"
    assert pending.works
    buffer.array[:] = [[1, 2], [3, 4]]
    assert (x == 0).all()
    inner.complete = True
    assert work.done()
    assert repr(work) == "<Work, complete>"
    assert not pending.works
    assert x.tolist() == [[1, 2], [3, 4]]
    x[:] = 0  # the array is the caller's again
    assert work.wait() is work.result() is x
    assert (x == 0).all()


def test_a_send_has_no_result() -> None:
    inner = Told()
    inner.complete = True
    assert ArrayWork(inner, nothing, pending_works(), target(np.ones(2))).register().wait() is None


@pytest.mark.parametrize("ask_done_first", [True, False])
def test_an_error_is_raised_each_time(ask_done_first: bool) -> None:
    inner, pending = Told(), pending_works()
    work = ArrayWork(inner, target(np.ones(2)).finish, pending).register()
    inner.error = PeerLostError("rank 1 was killed by SIGKILL", rank=1)
    if ask_done_first:
        assert work.done()
    for _ in range(2):
        with pytest.raises(PeerLostError) as caught:
            work.wait()
        assert caught.value.failure == inner.error.failure
    assert work.done()
    assert not pending.works


def test_memory_lives_as_long_as_the_engine_may_use_it() -> None:
    inner, pending = Told(), pending_works()
    x = np.ones(3)
    alive = weakref.ref(x)
    ArrayWork(inner, nothing, pending, target(x)).register()
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
        ArrayWork(done, nothing, pending, target(np.ones(1))).register()
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

    run_ranks(ranks, 2)


@pytest.mark.parametrize("src", [1, rw.ANY])
@pytest.mark.parametrize("backend", ["threads", "shm", "gloo", "hierarchical"])
def test_a_cancelled_receive_has_ended_and_leaves_its_message(backend: str, src: int) -> None:
    if backend == "gloo":
        pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        if group.rank == 1:
            group.barrier()
            group.send(np.ones(2), 0)
            return
        called = threading.Event()
        work = group.irecv((2,), src)
        work.add_done_callback(lambda ended: called.set() if isinstance(ended.exception(), ClosedError) else None)
        assert work.cancel()
        assert not work.cancel()  # it has ended
        with pytest.raises(ClosedError, match=r"^the operation was cancelled$"):
            work.result()
        assert called.wait(10)
        group.barrier()
        assert group.recv((2,), 1).tolist() == [1, 1]

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm"])
def test_a_complete_message_cannot_be_cancelled(backend: str) -> None:
    def ranks(group: Group) -> None:
        receives = [group.irecv((2,), group.rank), group.batch([], [((2,), group.rank)], async_op=True)]
        for _ in receives:
            group.send(np.ones(2), group.rank)
        for work in receives:
            assert not work.cancel()  # although nobody has asked yet whether it is done
            assert work.exception() is None
        assert receives[0].result().tolist() == [1, 1]
        assert not group.all_reduce(1, async_op=True).cancel()

    run_ranks(ranks, 1, backend=backend)


def test_a_cancelled_receive_ends_the_wait_of_another_thread() -> None:
    def ranks(group: Group) -> None:
        work = group.irecv((1,), 1 - group.rank)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(work.wait)
            time.sleep(0.1)  # most often it waits by now
            assert work.cancel()
            with pytest.raises(ClosedError, match=r"^the operation was cancelled$"):
                waiting.result(20)

    run_ranks(ranks, 2)


def test_a_batch_of_which_a_part_is_complete_can_be_cancelled() -> None:
    def ranks(group: Group) -> None:
        work = group.batch([], [((1,), group.rank, 1), ((1,), group.rank, 2)], async_op=True)
        group.send(np.ones(1), group.rank, 1)
        assert work.cancel()
        group.send(np.full(1, 2.0), group.rank, 2)
        assert group.recv((1,), group.rank, 2).tolist() == [2]

    run_ranks(ranks, 1)


def test_a_message_that_arrives_between_the_timeout_and_its_cancellation_is_received() -> None:
    class Arrives(Told):
        def cancel(self) -> bool:
            self.complete = True
            return False

    x = np.zeros(2)
    assert wait_or_cancel(ArrayWork(Arrives(), target(x).finish, pending_works()), 0.1) is x


@pytest.mark.parametrize("asks", [True, False])
def test_an_error_that_no_callback_asked_for_is_still_to_be_raised(asks: bool) -> None:
    inner, pending, called = Told(), pending_works(), threading.Event()
    work = ArrayWork(inner, nothing, pending).register()
    work.add_done_callback(lambda work: (asks and work.exception(), called.set()))
    inner.error = PeerLostError("rank 1 was killed by SIGKILL", rank=1)
    assert called.wait(10)
    with nullcontext() if asks else pytest.raises(PeerLostError):
        pending.raise_first()


def test_callbacks_of_a_functions_work() -> None:
    with rw.overlap.Stream() as stream:
        go, results = threading.Event(), queue.SimpleQueue[object]()
        stream.submit(go.wait)
        stream.submit(pow, 2, 5).add_done_callback(lambda work: results.put(work.result()))
        stream.submit(pow, 0, -1).add_done_callback(lambda work: results.put(type(work.exception())))
        go.set()
        assert {results.get(timeout=10) for _ in range(2)} == {32, ZeroDivisionError}
