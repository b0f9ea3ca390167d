"""async_op=True on memory that is packed or encoded: that too belongs to the group's stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rankwise as rw
from rankwise.contract.errors import ClosedError, PeerLostError
from rankwise.group.group import Group
from rankwise.testing import run_ranks

SOON = 20.0  # seconds within which anything must end
BACKENDS = ["threads", "shm", "gloo"]

Start = Callable[[Group, Any], "rw.Work[Any]"]
ARRAYS: dict[str, Callable[[], Any]] = {
    "contiguous": lambda: np.zeros(8),
    "strided": lambda: np.zeros(16)[::2],
    "fortran": lambda: np.zeros((2, 4), order="F"),
    "big-endian": lambda: np.zeros(8, ">f8"),
    "torch strided": lambda: torch.zeros(16)[::2],
}
OPERATIONS: dict[str, Start] = {
    "all_reduce": lambda group, x: group.all_reduce(x, async_op=True),
    "a function": lambda group, x: group.all_reduce(x, lambda a, b: a + b, async_op=True),
}


def fill_late(group: Group, compute: rw.overlap.Stream, x: Any, value: float) -> threading.Event:
    """A function on `compute` fills x, no earlier than the event is set, and the group's stream waits for it."""
    gate = threading.Event()
    if group.comm.stream_sync is None:
        gate.set()  # there, the group's wait blocks the caller

    def fill() -> None:
        gate.wait(SOON)
        x[...] = value

    compute.submit(fill)
    group.stream.wait_stream(compute)
    return gate


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_between_two_streams(operation: str, backend: str) -> None:
    """An operation reads what a stream wrote before it, and later work on the stream reads its result."""

    def ranks(group: Group) -> None:
        for make in ARRAYS.values():
            x = make()
            with rw.overlap.Stream() as compute:
                gate = fill_late(group, compute, x, group.rank + 1.0)
                work = OPERATIONS[operation](group, x)
                gate.set()
                compute.wait_stream(group.stream)
                assert compute.submit(lambda x=x: (x == 3).all()).wait(SOON)
                x[...] = 7  # the array is the caller's again
                assert work.wait() is x
                assert (x == 7).all()

    run_ranks(ranks, 2, backend=backend)


def test_a_wait_does_not_disturb_autograd() -> None:
    """The tensor counts as written from the call on, not again when the Work is waited for."""

    def ranks(group: Group) -> None:
        for x in (torch.ones(4), torch.ones(8)[::2]):
            before, factor = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
            stale = (before * x).sum()
            work = group.all_reduce(x, async_op=True)
            group.stream.record_event().synchronize()
            total = (factor * x).sum()
            work.wait()
            total.backward()
            assert factor.grad is not None
            assert factor.grad.tolist() == [2.0] * 4
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                stale.backward()

    run_ranks(ranks, 2)


def test_tensors_of_inference_mode() -> None:
    """They can be written only in that mode, in which the group's stream does not run."""

    def ranks(group: Group) -> None:
        with torch.inference_mode():
            for made in (torch.ones(4), torch.ones(8)[::2]):
                group.all_reduce(made, async_op=True).wait()
                group.all_reduce(made)
                assert made.tolist() == [4] * 4
            ordinary = torch.ones(8)[::2].clone()
        assert group.all_gather(made, async_op=True).wait().tolist() == [[4] * 4] * 2
        assert group.all_reduce(ordinary[::2].contiguous()).tolist() == [2] * 2

    run_ranks(ranks, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_way_to_give_an_array(backend: str) -> None:
    """Packed inputs and `out`, for the operations that have both."""

    def ranks(group: Group) -> None:
        me, n = group.rank, group.world_size
        x, out, part = np.zeros(4 * n)[::2], np.zeros((n, 4 * n))[:, ::2], np.zeros(4)[::2]
        with rw.overlap.Stream() as compute:
            for call, want in (
                (lambda: group.all_gather(x, out=out, async_op=True), [[1.0] * 4, [2.0] * 4]),
                (lambda: group.reduce_scatter(x, out=part, async_op=True), [3.0, 3.0]),
                (lambda: group.scan(x, async_op=True), [1.0 + 2 * me] * 4),
                (lambda: group.all_gather_v(x, async_op=True), [1.0] * 4 + [2.0] * 4),
                (lambda: group.all_to_all(x, async_op=True), [1.0] * 2 + [2.0] * 2),
                (lambda: group.scatter(x if me == 1 else None, 1, async_op=True), [2.0, 2.0]),
                (lambda: group.all_to_all_v(x, [1, 3], async_op=True), ([1.0, 2.0] if me == 0 else [1, 1, 1, 2, 2, 2])),
            ):
                x[...] = 0
                gate = fill_late(group, compute, x, me + 1.0)
                work = call()
                gate.set()
                got = work.wait(SOON)
                assert (got[0] if isinstance(got, tuple) else got).tolist() == want
            assert out.tolist() == [[1.0] * 4, [2.0] * 4]
            assert part.tolist() == [3.0, 3.0]

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_objects_are_encoded_when_the_operation_runs(backend: str) -> None:
    def ranks(group: Group) -> None:
        me = group.rank
        for call in (
            lambda data: group.all_gather_object(data, async_op=True),
            lambda data: group.gather_object(data, async_op=True),
            lambda data: group.broadcast_object(data if me == 1 else None, 1, async_op=True),
            lambda data: group.scatter_object([data, data] if me == 1 else None, 1, async_op=True),
        ):
            x = np.zeros(2)
            with rw.overlap.Stream() as compute:
                gate = fill_late(group, compute, x, me + 1.0)
                work = call({"x": x})
                gate.set()
                got = work.wait(SOON)
            if isinstance(got, list):
                assert [one["x"].tolist() for one in got] == [[1, 1], [2, 2]]
            elif got is not None:
                assert got["x"].tolist() == [2, 2]

    run_ranks(ranks, 2, backend=backend)


def test_objects_that_cannot_be_sent_are_refused_at_the_call() -> None:
    def ranks(group: Group) -> None:
        for call in (
            lambda: group.all_gather_object(print, async_op=True),
            lambda: group.broadcast_object(print, group.rank, async_op=True),
            lambda: group.scatter_object([print] * 2, group.rank, async_op=True),
            lambda: group.all_reduce(np.ones(4, int)[::2], "mean", async_op=True),
        ):
            with pytest.raises(TypeError):
                call()
        assert group.all_reduce(1) == 2

    run_ranks(ranks, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_synchronize_and_later_operations_find_the_result(backend: str) -> None:
    def ranks(group: Group) -> None:
        x = np.ones(16)[::2]
        group.all_reduce(x, async_op=True)
        group.stream.synchronize()
        assert (x == 2).all()
        group.all_reduce(x, async_op=True)
        group.all_reduce(x, async_op=True)
        group.all_reduce(x)
        assert (x == 16).all()
        group.all_reduce(x, async_op=True)
        assert group.all_gather_object({"x": x.base[:2]})[1]["x"][0] == 32

    run_ranks(ranks, 2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_keeps_complete_results_and_writes_nothing_later(backend: str) -> None:
    def ranks(group: Group) -> None:
        part = group.dup()
        x = np.ones(16)[::2]
        work = part.all_reduce(x, async_op=True)
        part.close(SOON)
        assert (x == 2).all()
        x[...] = 7
        assert work.wait() is x
        assert (x == 7).all()

    run_ranks(ranks, 2, backend=backend)


def test_close_cancels_operations_that_the_peer_never_joined() -> None:
    over = threading.Event()

    def ranks(group: Group) -> None:
        part = group.dup()
        if group.rank == 0:
            x = np.ones(16)[::2]
            works = [part.all_reduce(x, async_op=True), part.all_reduce(x, async_op=True)]
            part.close(0.01)
            for work in works:
                with pytest.raises((ClosedError, PeerLostError)):
                    work.wait(SOON)
            assert (x == 1).all()
            over.set()
        else:
            over.wait(SOON)

    run_ranks(ranks, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_for_work_queued_behind_it_is_refused(backend: str) -> None:
    def ranks(group: Group) -> None:
        part = group.dup()

        def op(a: Any, b: Any) -> Any:
            part.all_reduce(a, async_op=True).wait()

        work = part.all_reduce(np.ones(2), op, async_op=True)
        with pytest.raises(rw.RankwiseError, match="cannot wait for work queued behind it"):
            work.wait(SOON)
        part.close(0.1)

    run_ranks(ranks, 2, backend=backend)
