"""Registered memory: the same results as other memory, freed with its arrays, safe in failures."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, MismatchError, PeerLostError
from rankwise.contract.job import Job
from rankwise.group.group import Group
from rankwise.testing import RanksFailed, run_ranks

SIZES = [3, 6000, 9999, 70_000]  # elements: beside the flag, slots, and what goes in place


def registered(group: Group, array: Any) -> bool:
    comm: Any = group.comm
    return bool(comm._comm.in_segment(array.ctypes.data, array.nbytes))


def results(group: Group, make: Any, size: int) -> list[Any]:
    """What every collective gives on arrays that `make(group, shape, dtype)` makes."""
    n, me = group.world_size, group.rank
    random = np.random.default_rng(me)

    def array(*shape: int) -> Any:
        x = make(group, shape, np.float32)
        x[...] = random.standard_normal(shape)
        return x

    found = [group.all_reduce(array(size)), group.all_reduce(array(size), "mean"), group.broadcast(array(size), 1)]
    found += [group.reduce(array(size), 1), group.reduce(array(size), 0, "max")]
    found += [group.all_gather(array(size), out=make(group, (n, size), np.float32))]
    found += [group.gather(array(size), 1, out=make(group, (n, size), np.float32) if me == 1 else None)]
    found += [
        group.scatter(array(size * n), 0),
        group.reduce_scatter(array(size * n)),
        group.reduce_scatter(array(size)),
    ]
    found += [group.all_to_all(array(size * n)), group.all_gather_v(array(size + me)), group.scan(array(size))]
    found += [group.all_reduce(array(size), async_op=True).wait()]
    return found


def usual(group: Group, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty(shape, dtype)


def on_all(group: Group, shape: tuple[int, ...], dtype: Any) -> Any:
    return group.empty(shape, dtype)


def on_some(group: Group, shape: tuple[int, ...], dtype: Any) -> Any:
    return (usual if group.rank == 1 else on_all)(group, shape, dtype)


@pytest.mark.parametrize(("backend", "n"), [("shm", 2), ("threads", 3)])
def test_every_collective_gives_the_same_bits(backend: str, n: int) -> None:
    def ranks(group: Group) -> None:
        for size in SIZES:
            expected = results(group, usual, size)
            for make in (on_all, on_some):
                for there, here in zip(expected, results(group, make, size), strict=True):
                    np.testing.assert_array_equal(np.asarray(here), np.asarray(there), strict=here is not None)
        part = group.split(0, -group.rank)  # another group of the same segment
        assert part is not None
        x = group.empty(20_000)
        x[...] = part.rank
        assert (part.all_reduce(x) == sum(range(n))).all()
        part.close()

    run_ranks(ranks, n, backend=backend)


def test_shapes_and_types() -> None:
    def ranks(group: Group) -> None:
        for shape in (5, (), (2, 3), 0, (0, 4), [2, 1]):
            x = group.empty(shape, "int16")
            assert (x.shape, x.dtype) == (np.empty(shape).shape, np.dtype("int16"))
            assert type(x) is np.ndarray
            assert not x.any()
            assert registered(group, x)
        assert group.empty(3).dtype == np.float64
        with pytest.raises(ValueError, match=r"^shape=\(2, -1\): expected a shape of ints >= 0"):
            group.empty((2, -1))
        with pytest.raises(TypeError, match=r"^dtype='O': expected bool"):
            group.empty(3, "O")
        with pytest.raises(MemoryError, match=r"needed, .* available"):
            group.empty(1 << 50, np.uint8)

    run_ranks(ranks, 1)


def test_without_registered_memory_the_array_is_of_zeros_too() -> None:
    pytest.importorskip("torch", reason="gloo is part of it")

    def ranks(group: Group) -> None:
        for dtype in (np.float64, "int16"):
            used = np.ones(100, dtype)
            del used  # NumPy takes the same memory for the next array of this size
            assert not group.empty(100, dtype).any()

    run_ranks(ranks, 1, backend="gloo")


def test_tensors() -> None:
    torch = pytest.importorskip("torch")

    def ranks(group: Group) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            x = group.empty((30, 1000), dtype)
            assert (tuple(x.shape), x.dtype, x.is_contiguous()) == ((30, 1000), dtype, True)
            x.fill_(group.rank + 1)
            assert (group.all_reduce(x) == 3).all()
            assert group.empty((0, 2), dtype).shape == (0, 2)
            assert group.empty((), dtype) == 0
        view = group.empty(100, torch.float32)[50:]
        gc.collect()
        view.fill_(1)  # the view keeps the memory
        assert view.sum() == 50

    run_ranks(ranks, 2)


def test_memory_lives_as_long_as_an_array_of_it() -> None:
    def ranks(group: Group) -> None:
        comm: Any = group.comm
        segment = comm._comm.segment
        before = segment.allocated_blocks
        x = group.empty(1000)
        view = x[10:20].reshape(2, 5)
        assert segment.allocated_blocks == before + 1
        del x
        view += 1
        assert segment.allocated_blocks == before + 1
        group.close()
        view += 1
        assert view.tolist() == [[2.0] * 5] * 2
        del view
        assert segment.allocated_blocks == before
        with pytest.raises(ClosedError):
            group.empty(3)

    run_ranks(ranks, 1)


def test_a_pending_operation_keeps_it() -> None:
    def ranks(group: Group) -> None:
        comm: Any = group.comm
        other = group.dup()
        group.barrier()
        before = comm._comm.segment.allocated_blocks
        other.barrier()
        if group.rank == 0:
            group.all_reduce(group.empty(20_000), async_op=True)  # rank 1 is not there yet
            assert comm._comm.segment.allocated_blocks == before + 1
        other.barrier()
        if group.rank == 1:
            group.all_reduce(np.ones(20_000))
        group.barrier()
        other.close()

    run_ranks(ranks, 2)


def test_arrays_made_in_the_context_are_registered() -> None:
    def ranks(group: Group) -> None:
        with rw.registered(group):
            x, small, zeros = np.ones(5000), np.ones(3), np.zeros((100, 100), np.float32)
            copy = x * 2
            grown = np.ones(4)
            grown.resize(50_000, refcheck=False)
            grown.resize(60_000, refcheck=False)
        assert [registered(group, array) for array in (x, small, zeros, copy, grown)] == [True, False, True, True, True]
        assert grown[:4].tolist() == [1] * 4
        assert not registered(group, np.ones(5000))
        grown.resize(2, refcheck=False)
        assert (grown.tolist(), registered(group, grown)) == ([1, 1], False)
        assert (group.all_reduce(x) == 2).all()
        with pytest.raises(MemoryError), rw.registered(group):
            np.empty(1 << 50, np.uint8)
        assert not registered(group, np.ones(5000))
        group.barrier()
        group.close()
        assert (x.sum(), zeros.sum()) == (10_000, 0)

    run_ranks(ranks, 2)
    with rw.init(backend="solo") as group, rw.registered():  # of the default group
        assert registered(group, np.ones(5000))


def test_a_backend_without_such_memory() -> None:
    from rankwise.backends.native import solo

    def open_plain(job: Job, timeout: float) -> Any:
        comm = solo.open_communicator(job, timeout)
        comm.allocate = lambda nbytes: None  # type: ignore[method-assign,assignment,return-value]
        return comm

    def ranks(group: Group) -> None:
        assert group.all_reduce(group.empty((2, 3), np.float32)).shape == (2, 3)

    run_ranks(ranks, 1, backend=open_plain)


def test_a_mismatch_leaves_the_memory_unchanged() -> None:
    def ranks(group: Group) -> None:
        x = group.empty(50_000 + group.rank)
        x[...] = 7
        with pytest.raises(MismatchError):
            group.all_reduce(x)
        assert (x == 7).all()

    run_ranks(ranks, 2, backend="shm")


def test_a_rank_dies_during_an_operation() -> None:
    def ranks(group: Group) -> None:
        x = group.empty(4_000_000, np.float32)
        for _ in range(3):
            group.all_reduce(x)
        if group.rank == 1:
            group.all_reduce(x, async_op=True)
            os.kill(os.getpid(), signal.SIGKILL)
        works = [group.all_reduce(x, async_op=True) for _ in range(2)]
        with pytest.raises(PeerLostError) as caught:
            rw.wait_all(works)
        assert (caught.value.rank, caught.value.how) == (1, "was killed by SIGKILL")

    with pytest.raises(RanksFailed) as failed:
        run_ranks(ranks, 3, backend="shm")
    assert list(failed.value.failures) == [1], failed.value


def test_a_forked_child_frees_nothing() -> None:
    def ranks(group: Group) -> None:
        comm: Any = group.comm
        x = group.empty(1000)
        group.barrier()
        before = comm._comm.segment.allocated_blocks
        group.barrier()
        child = os.fork()
        if child == 0:
            del x
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        group.barrier()
        assert comm._comm.segment.allocated_blocks == before
        group.barrier()
        assert not x.any()

    run_ranks(ranks, 2, backend="shm")
