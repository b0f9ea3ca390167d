"""GradientReducer: the means of all gradients, in whatever order, with and without streams, and its refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise import _native
from rankwise.backends.native import threads
from rankwise.contract.errors import MismatchError, PeerLostError
from rankwise.contract.job import Job
from rankwise.contract.operations import Call
from rankwise.group.group import Group
from rankwise.testing import run_ranks

SHAPES: list[tuple[int, ...]] = [(30, 20), (20,), (), (0, 3), (200, 100), (7,), (5, 2, 3)]
DTYPES = ["float32", "float32", "float64", "float32", "float32", "float16", "float64"]


def parameters() -> list[np.ndarray]:
    return [np.zeros(shape, dtype) for shape, dtype in zip(SHAPES, DTYPES, strict=True)]


def gradients(rank: int, step: int) -> list[np.ndarray]:
    """Small integers: exact in every dtype, also their means over two or four ranks."""
    random = np.random.default_rng((rank, step))
    return [random.integers(-8, 8, p.shape).astype(p.dtype) * 4 for p in parameters()]


def means(n: int, *steps: int) -> list[np.ndarray]:
    """The mean over the ranks of the sums of these steps' gradients."""
    every = [gradients(rank, step) for rank in range(n) for step in steps]
    return [np.sum(one, axis=0, dtype=one[0].dtype) / one[0].dtype.type(n) for one in zip(*every, strict=True)]


def check(found: list[Any], expected: list[np.ndarray]) -> None:
    for one, right in zip(found, expected, strict=True):
        assert one.dtype == right.dtype
        np.testing.assert_array_equal(one, right, strict=True)


def one_step(reducer: rw.overlap.GradientReducer, rank: int, step: int, order: list[int]) -> list[Any]:
    mine = gradients(rank, step)
    for number in order:
        reducer.mark_ready(number, mine[number])
    return reducer.wait_and_unpack()


def without_streams(n: int) -> Callable[[Job, float], Any]:
    """A backend like threads that has no streams: what is started runs at once."""
    segment = _native.Segment.create(n)

    class Blocking(threads.EngineCommunicator):
        def start(self, call: Call, keep: object = None, result: Any = None) -> Any:
            return super(threads.EngineCommunicator, self).start(call, keep, result)

        def start_call(self, function: Any, *, at_once: bool = True) -> Any:
            return super(threads.EngineCommunicator, self).start_call(function, at_once=at_once)

    def open_one(job: Job, timeout: float) -> Any:
        comm = Blocking(segment.join(job.rank, timeout, False), "blocking")
        comm.stream_sync = None
        return comm

    return open_one


def several_steps(group: Group) -> None:
    """Steps in other orders on every rank, with buckets small and large."""
    for bucket_bytes in (1, 3000, 25 << 20):
        reducer = rw.overlap.GradientReducer(parameters(), group, bucket_bytes)
        for step in range(4):
            order = np.random.default_rng((group.rank, step)).permutation(len(SHAPES)).tolist()
            check(one_step(reducer, group.rank, step, order), means(group.world_size, step))
    total = rw.overlap.GradientReducer(parameters(), group, 2000, "sum")
    found = one_step(total, group.rank, 0, list(range(len(SHAPES))))
    check(found, [mean * mean.dtype.type(group.world_size) for mean in means(group.world_size, 0)])


@pytest.mark.parametrize(("backend", "n"), [("shm", 2), ("threads", 4), ("solo", 1)])
def test_steps(backend: str, n: int) -> None:
    run_ranks(several_steps, n, backend=backend)


def test_steps_without_streams() -> None:
    run_ranks(several_steps, 2, backend=without_streams(2))


def test_reduced_where_marked() -> None:
    """async_op=False: a bucket is reduced when the mark that fills it returns, by the thread that marks."""

    def ranks(group: Group) -> None:
        threads_seen = []

        def hook(bucket: rw.overlap.Bucket, group: Group) -> None:
            threads_seen.append(threading.get_ident())
            group.all_reduce(bucket.flat, "mean")

        for chosen in (None, hook):
            reducer = rw.overlap.GradientReducer(parameters(), group, 1, hook=chosen, async_op=False)
            for step in range(3):
                mine, expected = gradients(group.rank, step), means(2, step)
                order = list(reversed(range(len(SHAPES))))  # the expected one: each mark fills a bucket
                for number in order[:-1]:
                    reducer.mark_ready(number, mine[number])
                    np.testing.assert_array_equal(reducer.view(number), expected[number], strict=True)
                expected[0] = gradients(0, step)[0] / np.float32(2)  # rank 1 does not mark it
                if group.rank == 0:
                    reducer.mark_ready(0, mine[0])
                check(reducer.wait_and_unpack(), expected)
        assert set(threads_seen) == {threading.get_ident()}
        assert not group.comm.stream_sync or all(bucket.work is None for bucket in reducer.buckets)

    run_ranks(ranks, 2)


def reduced_by_hook(bucket: rw.overlap.Bucket, group: Group) -> None:
    group.all_reduce(bucket.flat, bucket.op)


def test_gradients_whose_copy_is_deferred_are_read_when_their_bucket_is_reduced() -> None:
    def ranks(group: Group) -> None:
        for options in ({}, {"hook": reduced_by_hook}, {"async_op": False}):
            reducer = rw.overlap.GradientReducer([np.zeros(3), np.zeros(2)], group, **options)  # type: ignore[arg-type]
            for step in (1.0, 2.0):
                with reducer.no_sync():
                    kept = np.full(2, step)
                    reducer.mark_ready(1, kept, defer_copy=True)
                    kept[:] = 100.0  # added up by then
                first, second = np.zeros(3), np.full(2, group.rank * 2.0)
                reducer.mark_ready(0, first, defer_copy=True)
                first[:] = step + group.rank  # the bucket is not full yet
                reducer.mark_ready(1, second, defer_copy=True)
                check(reducer.wait_and_unpack(), [np.full(3, step + 0.5), np.full(2, step + 1)])

    run_ranks(ranks, 2)


def test_unused_parameters_count_as_zeros() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer(parameters(), group, 3000)
        for step in range(3):
            mine = gradients(group.rank, step)
            for number in range(group.rank, len(SHAPES), 2):  # each rank uses every other one
                reducer.mark_ready(number, mine[number])
            found = reducer.wait_and_unpack()
            check(found, [gradients(number % 2, step)[number] / DTYPES_OF[number](2) for number in range(len(SHAPES))])
        check(reducer.wait_and_unpack(), parameters())  # none at all

    DTYPES_OF = [np.dtype(dtype).type for dtype in DTYPES]
    run_ranks(ranks, 2)


def test_no_sync_adds_up() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer(parameters(), group, 3000)
        for again in range(2):
            with reducer.no_sync():
                for step in (1, 2):
                    for number, gradient in enumerate(gradients(group.rank, step)):
                        reducer.mark_ready(number, gradient)
                with pytest.raises(RuntimeError, match="no gradient is reduced"):
                    reducer.wait_and_unpack()
            if again:  # what is not marked any more counts with what it has
                check(reducer.wait_and_unpack(), means(2, 1, 2))
            else:
                check(one_step(reducer, group.rank, 3, list(range(len(SHAPES)))), means(2, 1, 2, 3))
        check(one_step(reducer, group.rank, 4, list(range(len(SHAPES)))), means(2, 4))

    run_ranks(ranks, 2)


def test_gradients_computed_in_place_are_not_copied() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer(parameters(), group, 3000)
        comm: Any = group.comm
        for step in range(3):
            views = reducer.views
            assert all(comm._comm.in_segment(view.ctypes.data, view.nbytes) for view in views)
            for number, gradient in enumerate(gradients(group.rank, step)):
                views[number][...] = gradient
                reducer.mark_ready(number, views[number])
            found = reducer.wait_and_unpack()
            check(found, means(2, step))
            assert all(np.may_share_memory(one, view) for one, view in zip(found, views, strict=True) if one.size)

    run_ranks(ranks, 2)


def test_reduction_runs_while_gradients_are_computed() -> None:
    """A full bucket is reduced even though this rank has not computed its next gradient yet."""

    def ranks(group: Group) -> None:
        params = [np.zeros(5000), np.zeros(5000)]
        reducer = rw.overlap.GradientReducer(params, group, 1)
        reducer.mark_ready(1, np.ones(5000))
        bucket = reducer.buckets[0]
        assert bucket.members == (1,)
        assert bucket.work is not None
        bucket.work.wait()  # with parameter 0 not marked on any rank
        reducer.mark_ready(0, np.ones(5000))
        check(reducer.wait_and_unpack(), [np.ones(5000)] * 2)

    run_ranks(ranks, 2)


def test_a_compute_stream() -> None:
    """Functions on a stream compute the gradients; after the first step the reducer never blocks."""

    def ranks(group: Group) -> None:
        params = [np.zeros(3000), np.zeros(10)]
        go_on = threading.Event()
        with rw.overlap.Stream() as compute:
            reducer = rw.overlap.GradientReducer(params, group, 1, stream=compute)
            sums = np.zeros(3000)
            for step in range(3):
                mine = [np.empty(3000), np.empty(10)]
                if step:
                    compute.submit(go_on.wait, 30)
                for number in (1, 0):
                    compute.submit(mine[number].fill, (step + 1) * (group.rank + 1))
                    reducer.mark_ready(number, mine[number])
                found = reducer.wait_and_unpack()
                compute.submit(np.add, sums, found[0], out=sums)
                assert not step or not compute.query()
            go_on.set()
            compute.synchronize(30)
            assert (sums == 1.5 + 3 + 4.5).all()

    run_ranks(ranks, 2)


def test_wait_raises_a_failure() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer([np.zeros(5000)], group)
        reducer.mark_ready(0, np.ones(5000))
        reducer.wait_and_unpack()
        if group.rank == 1:
            return group.close()
        reducer.mark_ready(0, np.ones(5000))
        with pytest.raises(PeerLostError):
            reducer.wait_and_unpack()
        return None

    run_ranks(ranks, 2)


def test_mark_ready_raises_a_failure() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer([np.zeros(5000)], group, async_op=False)
        if group.rank == 1:
            return group.close()
        with pytest.raises(PeerLostError):
            reducer.mark_ready(0, np.ones(5000))
        with pytest.raises(PeerLostError):  # not what was not reduced
            reducer.wait_and_unpack()
        return None

    run_ranks(ranks, 2)


@pytest.mark.parametrize(
    "other",
    [
        lambda group: rw.overlap.GradientReducer([np.zeros(3), np.zeros((2, 2), np.float16)], group),
        lambda group: rw.overlap.GradientReducer([np.zeros(3)], group),
        lambda group: rw.overlap.GradientReducer([np.zeros(3), np.zeros((2, 2))], group, 100),
        lambda group: rw.overlap.GradientReducer([np.zeros(3), np.zeros((2, 2))], group, op="sum"),
        lambda group: rw.overlap.GradientReducer([np.zeros(3), np.zeros((2, 2))], group, hook=reduced_by_hook),
    ],
)
def test_ranks_with_different_parameters(other: Callable[[Group], Any]) -> None:
    def ranks(group: Group) -> None:
        this = partial(rw.overlap.GradientReducer, [np.zeros(3), np.zeros((2, 2))])
        with pytest.raises(MismatchError, match="different parameters or options") as caught:
            (other if group.rank == 1 else this)(group)
        assert caught.value.calls[0] != caught.value.calls[1]
        assert sorted(caught.value.calls) == [0, 1, 2]
        assert group.all_reduce(1) == 3  # the group goes on

    run_ranks(ranks, 3)


def test_refusals() -> None:
    def ranks(group: Group) -> None:
        for wrong, message in (
            ({"op": "max"}, r"^op='max': expected one of sum, mean"),
            ({"bucket_bytes": 0}, r"^bucket_bytes=0: expected"),
            ({"bucket_bytes": 1.5}, r"^bucket_bytes=1.5: expected"),
        ):
            with pytest.raises(ValueError, match=message):
                rw.overlap.GradientReducer(parameters(), group, **wrong)  # type: ignore[arg-type]
        with rw.overlap.Stream() as stream, pytest.raises(ValueError, match=r"^async_op=False: "):
            rw.overlap.GradientReducer(parameters(), group, stream=stream, async_op=False)
        with pytest.raises(TypeError, match=r"^params\[1\]: expected an array"):
            rw.overlap.GradientReducer([np.zeros(3), "x"], group)
        reducer = rw.overlap.GradientReducer([np.zeros(3), np.zeros(2)], group)
        reducer.mark_ready(0, np.ones(3))
        with pytest.raises(ValueError, match=r"^i=0: this parameter was already marked"):
            reducer.mark_ready(0, np.ones(3))
        with pytest.raises(ValueError, match=r"^i=2: expected the number of a parameter, 0 to 1"):
            reducer.mark_ready(2, np.ones(3))
        with pytest.raises(ValueError, match=r"^grad: expected F64\[2\] for parameter 1, got F64\[3\]"):
            reducer.mark_ready(1, np.ones(3))
        with pytest.raises(ValueError, match=r"^grad: expected F64\[2\] for parameter 1, got F32\[2\]"):
            reducer.mark_ready(1, np.ones(2, np.float32))
        reducer.mark_ready(1, np.ones(2))
        check(reducer.wait_and_unpack(), [np.ones(3), np.ones(2)])

    run_ranks(ranks, 1)


def test_no_parameters() -> None:
    def ranks(group: Group) -> None:
        reducer = rw.overlap.GradientReducer([], group)
        assert reducer.wait_and_unpack() == []

    run_ranks(ranks, 2)


def test_tensors_of_several_dtypes() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        params = [torch.zeros(4, 3), torch.zeros(5, dtype=torch.bfloat16), torch.zeros(2, 2).T]
        reducer = rw.overlap.GradientReducer(params, group)
        for _ in range(2):
            for number, param in enumerate(params):
                reducer.mark_ready(number, torch.full_like(param, group.rank * 2.0, requires_grad=True))
            found = reducer.wait_and_unpack()
            for one, param in zip(found, params, strict=True):
                assert (one.shape, one.dtype, one.requires_grad) == (param.shape, param.dtype, False)
                assert (one == 1).all()

    run_ranks(ranks, 2)
