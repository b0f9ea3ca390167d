"""The contract's seven operations on events: lifecycle, order of effects, misuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import ClosedError, CollectiveTimeout, MismatchError, PeerLostError
from rankwise.contract.operations import ALL_REDUCE, BARRIER, Call
from rankwise.contract.stream_sync import THIS_THREAD, StreamSyncOps
from rankwise.contract.types import DType, ReduceOp
from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.testing import run_ranks

SOON = 20.0  # seconds within which anything must end


def ops_of(comm: Communicator) -> StreamSyncOps:
    assert comm.stream_sync is not None
    return comm.stream_sync


def start_sum(comm: Communicator, x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Work[None]:
    return comm.start(Call(ALL_REDUCE, x.ctypes.data, x.ctypes.data, x.size, DType.F64, ReduceOp.SUM))


def held(stream: rw.overlap.Stream) -> threading.Event:
    """The stream goes on when this is set."""
    gate = threading.Event()
    stream.submit(gate.wait, SOON)
    return gate


@pytest.mark.parametrize(("backend", "n"), [("solo", 1), ("threads", 2), ("threads", 3), ("shm", 2)])
def test_event_lifecycle(backend: str, n: int) -> None:
    """Step by step: at each gate, nothing behind it has happened, although everything is queued."""

    def rank(group: Group) -> None:
        comm, ops, x = group.comm, ops_of(group.comm), np.zeros(1000)
        seen: list[float] = []
        with rw.overlap.Stream() as compute:
            gate = held(compute)
            compute.submit(x.fill, group.rank + 1.0)  # the gradient
            ready = ops.create_event()  # 1
            ops.record_on_stream(ready, compute.handle)  # 2
            ops.comm_stream_wait_event(ready)  # 3
            reducing = start_sum(comm, x)  # 4
            reduced = ops.create_event()
            ops.record_on_comm_stream(reduced)  # 5
            ops.stream_wait_event(compute.handle, reduced)  # 6
            used = compute.submit(lambda: seen.append(float(x[-1])))
            ops.destroy_event(ready)  # 7; both are still waited for
            ops.destroy_event(reduced)
            assert (x[0], seen, reducing.done(), used.done()) == (0.0, [], False, False)
            gate.set()
            used.wait(SOON)
            assert reducing.done()
            assert seen == [n * (n + 1) / 2]

    run_ranks(rank, n, backend=backend)


def test_each_wait_is_needed_and_effective() -> None:
    """Rank 1 delays its gradient: the sum and work that waits for it come later; work that does not wait does not."""
    release = threading.Event()

    def rank(group: Group) -> None:
        comm, ops, x, order = group.comm, ops_of(group.comm), np.ones(4), list[str]()
        with rw.overlap.Stream() as compute, rw.overlap.Stream() as other:
            if group.rank == 1:
                compute.submit(release.wait, SOON)
            compute.submit(order.append, "gradient")
            ready, reduced = ops.create_event(), ops.create_event()
            ops.record_on_stream(ready, compute.handle)
            ops.comm_stream_wait_event(ready)
            reducing = start_sum(comm, x)
            ops.record_on_comm_stream(reduced)
            ops.stream_wait_event(compute.handle, reduced)
            step = compute.submit(lambda: order.append("step" if x[0] == 2 else "too early"))
            free = other.submit(order.append, "free")
            free.wait(SOON)
            if group.rank == 0:
                assert "step" not in order
                assert not reducing.done()
                release.set()
            step.wait(SOON)
            assert [word for word in order if word != "free"] == ["gradient", "step"]

    run_ranks(rank, 2)


def test_a_blocking_operation_runs_after_queued_ones() -> None:
    gates = [threading.Event(), threading.Event()]

    def rank(group: Group) -> None:
        ops, x = ops_of(group.comm), np.ones(2)
        with rw.overlap.Stream() as compute:
            compute.submit(gates[group.rank].wait, SOON)
            ready = ops.create_event()
            ops.record_on_stream(ready, compute.handle)
            ops.comm_stream_wait_event(ready)
            works = [start_sum(group.comm, x) for _ in range(3)]
            threading.Timer(0.05, gates[group.rank].set).start()
            assert group.all_reduce(1) == 2
            assert all(work.done() for work in works)
            assert x.tolist() == [8, 8]

    run_ranks(rank, 2)


def test_sync_comm_stream_waits_for_started_operations() -> None:
    def rank(group: Group) -> None:
        ops, x = ops_of(group.comm), np.ones(100_000)
        ops.sync_comm_stream()
        work = start_sum(group.comm, x)
        ops.sync_comm_stream()
        assert work.done()
        assert x[0] == 2

    run_ranks(rank, 2)


@pytest.fixture
def alone() -> Communicator:
    from rankwise.backends.native import solo
    from rankwise.contract.job import Job

    return solo.open_communicator(Job(), 5.0)


def test_an_event_never_recorded_is_not_waited_for(alone: Communicator) -> None:
    ops = ops_of(alone)
    event = ops.create_event()
    with rw.overlap.Stream() as stream:
        ops.stream_wait_event(stream.handle, event)
        ops.comm_stream_wait_event(event)
        ops.stream_wait_event(THIS_THREAD, event)
        assert stream.submit(int).wait(SOON) == 0
        alone.start(Call(BARRIER)).wait(SOON)


def test_a_record_captures_the_queue_at_that_time(alone: Communicator) -> None:
    """A later record does not change earlier waits, and work queued later is not waited for."""
    ops = ops_of(alone)
    with rw.overlap.Stream() as first, rw.overlap.Stream() as late, rw.overlap.Stream() as waiting:
        event = ops.create_event()
        gate = held(first)
        ops.record_on_stream(event, first.handle)
        never = held(first)  # behind the record
        ops.stream_wait_event(waiting.handle, event)
        behind_first = waiting.submit(int)
        late_gate = held(late)
        ops.record_on_stream(event, late.handle)
        ops.comm_stream_wait_event(event)
        behind_late = alone.start(Call(BARRIER))
        gate.set()
        assert behind_first.wait(SOON) == 0
        assert not behind_late.done()
        late_gate.set()
        behind_late.wait(SOON)
        never.set()


def test_a_destroyed_event_is_still_waited_for(alone: Communicator) -> None:
    ops = ops_of(alone)
    with rw.overlap.Stream() as stream:
        gate, event = held(stream), ops.create_event()
        ops.record_on_stream(event, stream.handle)
        ops.comm_stream_wait_event(event)
        ops.destroy_event(event)
        work = alone.start(Call(BARRIER))
        assert not work.done()
        gate.set()
        work.wait(SOON)


def test_the_calling_thread_is_a_stream(alone: Communicator) -> None:
    ops = ops_of(alone)
    with rw.overlap.Stream() as stream:
        gate, event = held(stream), ops.create_event()
        done = stream.submit(int)
        ops.record_on_stream(event, THIS_THREAD)
        ops.comm_stream_wait_event(event)  # it is reached at once, whatever the stream does
        alone.start(Call(BARRIER)).wait(SOON)
        ops.record_on_stream(event, stream.handle)
        gate.set()
        ops.stream_wait_event(THIS_THREAD, event)
        assert done.done()


def test_invalid_handles(alone: Communicator) -> None:
    ops = ops_of(alone)
    event, gone = ops.create_event(), ops.create_event()
    ops.destroy_event(gone)
    with rw.overlap.Stream() as stream:
        foreign: list[tuple[Callable[..., None], str]] = [
            (ops.destroy_event, "event"),
            (ops.record_on_comm_stream, "event"),
            (ops.comm_stream_wait_event, "event"),
            (lambda e, to=stream.handle: ops.record_on_stream(e, to), "event"),
            (lambda e, to=stream.handle: ops.stream_wait_event(to, e), "event"),
            (lambda s: ops.record_on_stream(event, s), "stream"),
            (lambda s: ops.stream_wait_event(s, event), "stream"),
        ]
        for call, kind in foreign:
            with pytest.raises(ValueError, match=rf"^{kind}: {gone} given, which is not a valid {kind} any more"):
                call(gone)
            with pytest.raises(ValueError, match=rf"^{kind}: {1 << 60} given, which this process has never used"):
                call(1 << 60)
            other, name = (stream.handle, "a stream") if kind == "event" else (event, "an event")
            with pytest.raises(ValueError, match=rf"^{kind}: {other} given, which is {name}"):
                call(other)
            with pytest.raises(TypeError):
                call(-1)
        closed = rw.overlap.Stream()
        closed.close()
        with pytest.raises(ClosedError):
            ops.record_on_stream(event, closed.handle)
        ops.destroy_event(event)
    handle = stream.handle
    del stream
    ops.record_on_stream(third := ops.create_event(), THIS_THREAD)
    with pytest.raises(ValueError, match=rf"^stream: {handle} given, which is not a valid stream any more"):
        ops.record_on_stream(third, handle)


def test_closed_communicators_raise(alone: Communicator) -> None:
    ops = ops_of(alone)
    event = ops.create_event()
    alone.close()
    for call in (
        lambda: ops.record_on_comm_stream(event),
        lambda: ops.comm_stream_wait_event(event),
        ops.sync_comm_stream,
    ):
        with pytest.raises(ClosedError):
            call()
    ops.destroy_event(event)


def test_a_wait_longer_than_the_timeout_fails_the_group() -> None:
    def rank(group: Group) -> None:
        part = group.dup()
        ops = ops_of(part.comm)
        with rw.overlap.Stream() as stream:
            gate, event = held(stream), ops.create_event()
            part.timeout = 0.3 if part.rank == 1 else SOON
            if part.rank == 1:
                ops.record_on_stream(event, stream.handle)
                ops.comm_stream_wait_event(event)
            x = np.ones(3)
            work = part.all_reduce(x, async_op=True)
            with pytest.raises(CollectiveTimeout) as caught:
                work.wait()
            assert (caught.value.missing, caught.value.operation) == ((1,), "all_reduce")
            assert caught.value.states[1].startswith("outside any collective")
            assert x.tolist() == [1, 1, 1]
            gate.set()
            part.close()

    run_ranks(rank, 2)


def test_an_event_of_a_closed_stream_fails_its_waiters() -> None:
    def rank(group: Group) -> None:
        part = group.dup()
        ops = ops_of(part.comm)
        stream, waiting = rw.overlap.Stream(), rw.overlap.Stream()
        gate, event = held(stream), ops.create_event()
        ops.record_on_stream(event, stream.handle)
        ops.stream_wait_event(waiting.handle, event)
        behind = waiting.submit(int)
        if part.rank == 1:
            ops.comm_stream_wait_event(event)
        work = part.all_reduce(np.ones(3), async_op=True)
        stream.close(0.01)
        with pytest.raises(PeerLostError) as caught:
            work.wait(SOON)
        assert caught.value.rank == 1
        assert caught.value.how == "waited, before its next operation, for an event that can no longer be reached"
        with pytest.raises(ClosedError, match="closed before this work, or work that it waits for, began"):
            behind.wait(SOON)
        with pytest.raises(ClosedError, match="closed before this work, or work that it waits for, began"):
            waiting.submit(int).wait(SOON)
        gate.set()
        waiting.close()
        part.close()

    run_ranks(rank, 2)


def test_work_behind_a_failed_group_is_cancelled() -> None:
    """Work that waits for the reduction is cancelled and raises the cause; another stream continues."""

    def rank(group: Group) -> None:
        part, ran = group.dup(), list[str]()
        with rw.overlap.Stream() as compute, rw.overlap.Stream() as other:
            x = np.ones(2 + part.rank)  # not the same on the ranks
            work = part.all_reduce(x, async_op=True)
            compute.wait_stream(part.stream)
            step = compute.submit(ran.append, "step")
            for failing in (work, step, compute.submit(ran.append, "later")):
                with pytest.raises(MismatchError):
                    failing.wait(SOON)
            with pytest.raises(MismatchError):
                part.stream.record_event().synchronize(SOON)
            other.submit(ran.append, "other").wait(SOON)
            assert ran == ["other"]
            assert x[0] == 1
        part.close()

    run_ranks(rank, 2)


def test_waiting_uses_no_cpu_time(alone: Communicator) -> None:
    """Half a second of waiting for an event, on both kinds of stream and in a thread, takes little CPU time."""
    ops = ops_of(alone)
    with rw.overlap.Stream() as first, rw.overlap.Stream() as second:
        gate, event = threading.Event(), ops.create_event()
        first.submit(gate.wait, SOON)
        ops.record_on_stream(event, first.handle)
        ops.comm_stream_wait_event(event)
        ops.stream_wait_event(second.handle, event)
        work = alone.start(Call(BARRIER))
        timer = threading.Timer(0.5, gate.set)
        before = time.process_time()
        timer.start()
        ops.stream_wait_event(THIS_THREAD, event)
        assert time.process_time() - before < 0.2
        work.wait(SOON)
