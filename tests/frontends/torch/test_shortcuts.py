"""Calls on plain tensors, which the engine takes without Python between."""

from __future__ import annotations

import importlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import rankwise

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("this torch has no C exchange API", allow_module_level=True)

OPS = {"SUM": 6, "PRODUCT": 6, "MIN": 1, "MAX": 3, "AVG": 2}  # of 1, 2 and 3


def operations() -> Any:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def functional() -> Any:
    return importlib.import_module("torch.ops")._c10d_functional  # torch.ops itself cannot be pickled


def refuse(*call: object, **options: object) -> None:
    raise AssertionError("the general path was taken")


# torch 2.13 renamed them, and warns of the old names.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def test_plain_tensors(on_ranks: Callable[..., Any]) -> None:
    """Nothing is marked as written, as with torch's own backends."""

    def body(rank: int, size: int) -> None:
        backend = operations()
        backend._run = backend._run_all = refuse
        before = backend._get_sequence_number_for_group()
        tensors = []

        def new(*values: float, dtype: Any = torch.float32) -> Any:
            tensors.append(torch.tensor(values, dtype=dtype))
            return tensors[-1]

        for op, expected in OPS.items():
            for dtype in (torch.float32, torch.bfloat16):
                x = new(rank + 1, dtype=dtype)
                dist.all_reduce(x, getattr(dist.ReduceOp, op))
                assert x.item() == expected
        dist.all_reduce(whole := new(*[rank] * 6).view(2, 3))
        assert whole.tolist() == [[3] * 3] * 2
        dist.broadcast(x := new(rank), 1)
        assert x.item() == 1
        all_gather(whole := new(*range(6)), new(rank, 7))
        assert whole.tolist() == [0, 7, 1, 7, 2, 7]
        all_gather(whole, whole[2 * rank : 2 * rank + 2])
        assert whole.tolist() == [0, 7, 1, 7, 2, 7]
        reduce_scatter(x := new(0, 0), whole)
        assert x.tolist() == [3 * rank, 21]
        reduce_scatter(whole[2 * rank : 2 * rank + 2], whole)
        assert whole.tolist()[2 * rank : 2 * rank + 2] == [3 * rank, 21]
        dist.all_to_all_single(x := new(*range(6)), new(*[rank] * 6))
        assert x.tolist() == [0, 0, 1, 1, 2, 2]
        dist.barrier()
        assert backend._get_sequence_number_for_group() - before == 2 * len(OPS) + 8
        assert all(tensor._version == 0 for tensor in tensors)

    on_ranks(3, body)


def waited(work: Any) -> None:
    assert not work.exception()
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()


def test_started_calls(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        backend = operations()
        backend._run = backend._run_all = backend._begun = refuse
        before = backend._get_sequence_number_for_group()
        waited(dist.all_reduce(x := torch.ones(3), async_op=True))
        assert x.tolist() == [size] * 3
        waited(dist.broadcast(x := torch.full((2,), float(rank)), 1, async_op=True))
        assert x.tolist() == [1, 1]
        work = all_gather(x := torch.zeros(size), torch.full((1,), float(rank)), async_op=True)
        assert work.result()[0] is x
        assert x.tolist() == [*range(size)]
        waited(reduce_scatter(x := torch.zeros(1), torch.arange(float(size)), async_op=True))
        assert x.tolist() == [size * rank]
        waited(dist.all_to_all_single(x := torch.zeros(size), torch.full((size,), float(rank)), async_op=True))
        assert x.tolist() == [*range(size)]
        rows = torch.full((size, 2), float(rank))
        waited(dist.all_to_all_single(out := torch.zeros(size, 2), rows, [1] * size, [1] * size, async_op=True))
        assert out[:, 1].tolist() == [*range(size)]
        waited(dist.barrier(async_op=True))
        future = dist.all_reduce(x, async_op=True).get_future()
        assert future.wait()[0] is x
        assert x.tolist() == [size * r for r in range(size)]
        for _ in range(40):  # more than may be on their way
            dist.all_reduce(x := torch.ones(2), async_op=True)
        dist.barrier()
        assert x.tolist() == [size] * 2
        assert backend._get_sequence_number_for_group() - before == 8 + 41

    on_ranks(3, body)


def test_messages(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        backend = operations()
        backend._begun = refuse
        peer = 1 - rank
        for count in (1, 100_000):
            mine, x = torch.full((count,), rank + 1.0), torch.zeros(count)
            received = dist.irecv(x, peer)
            sent = dist.isend(mine, peer, tag=0)
            waited(received)
            waited(sent)
            assert received.source_rank() == peer
            assert x.eq(peer + 1).all()
            assert x._version == 0
        kept = weakref.ref(x)
        dist.irecv(x, peer, tag=3)  # the Work is dropped
        del x
        assert kept() is not None
        dist.isend(mine, peer, tag=3)
        dist.barrier()
        if rank == 0:
            dist.send(mine, 1)
            assert dist.recv(y := torch.zeros(3), 1) == 1
            assert y.tolist() == [5, 5, 5]
        else:
            future = dist.irecv(y := torch.zeros(len(mine)), 0).get_future()
            assert future.wait()[0] is y
            assert y.eq(1).all()
            dist.send(torch.full((3,), 5.0), 0)
        if rank == 0:
            with pytest.raises(rankwise.MismatchError):
                dist.recv(torch.zeros(3), 1)
        else:
            dist.send(torch.zeros(2), 0)
        dist.barrier()

    on_ranks(2, body)


def test_functional_collectives(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        backend = operations()
        backend._run = backend._run_all = backend._begun = refuse
        ops, group = functional(), dist.group.WORLD.group_name
        x = torch.ones(4)
        assert ops.wait_tensor(ops.all_reduce_(x, "sum", group)) is x
        assert x.tolist() == [size] * 4
        assert ops.wait_tensor(ops.all_reduce(x, "avg", group)).tolist() == [size] * 4
        part = torch.full((2,), float(rank))
        assert ops.wait_tensor(ops.all_gather_into_tensor(part, size, group)).tolist() == [0, 0, 1, 1]
        assert ops.wait_tensor(ops.reduce_scatter_tensor(x, "max", size, group)).tolist() == [size] * 2
        assert ops.wait_tensor(ops.all_to_all_single(part, [1, 1], [1, 1], group)).tolist() == [0, 1]
        ops.all_reduce(x, "sum", group)  # nobody waits for it
        dist.barrier()

    on_ranks(2, body)


def test_a_started_call_keeps_its_tensors(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        group, options = dist.group.WORLD, dist.AllreduceOptions()
        tensors = [torch.ones(1000)]
        kept = weakref.ref(tensors[0])
        options.asyncOp = True
        work = group.allreduce(tensors, options)
        tensors.clear()
        assert kept() is not None
        assert work.result()[0].eq(size).all()
        del work
        assert kept() is None

    on_ranks(2, body)


def test_coalesced_calls(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        group = dist.group.WORLD
        tensors = [torch.ones(2) for _ in range(3)]
        group._start_coalescing(torch.device("cpu"))
        for x in tensors:
            dist.all_reduce(x, async_op=True)
        work = group._end_coalescing(torch.device("cpu"))
        waited(work)
        assert all(x.tolist() == [size] * 2 for x in tensors)

    on_ranks(2, body)


def test_the_call_of_a_library_is_named_with_the_line_of_the_program(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> str:
        ops, group = functional(), dist.group.WORLD.group_name
        x = torch.ones(2 + rank)
        with pytest.raises(rankwise.MismatchError) as caught:
            ops.wait_tensor(ops.all_reduce_(x, "sum", group))
        return str(caught.value)

    for text in on_ranks(2, body):
        assert re.search(
            r"rank 0: all_reduce\(count=2.*\) at \S*test_shortcuts\.py:\d+ \(in torch/_ops\.py:\d+\)", text
        ), text


def test_other_tensors_on_one_rank(on_ranks: Callable[..., Any]) -> None:
    """The general path and the shortcut are one call to the other ranks."""

    def body(rank: int, size: int) -> None:
        def other(x: Any) -> Any:
            return torch.stack([x, x], -1)[..., 0] if rank == 1 else x

        dist.all_reduce(x := other(torch.ones(2, 3)))
        assert x.tolist() == [[size] * 3] * 2
        dist.broadcast(x := other(torch.full((2, 2), float(rank))), 2)
        assert x.tolist() == [[2, 2]] * 2
        all_gather(x := other(torch.zeros(size, 2)), torch.full((2,), float(rank)))
        assert x.tolist() == [[0, 0], [1, 1], [2, 2]]
        all_gather(torch.zeros(4, size), other(torch.ones(2, 2)))
        reduce_scatter(x := other(torch.zeros(2, 1)), torch.arange(6.0).view(size, 2))
        assert x.tolist() == [[6.0 * rank], [6.0 * rank + 3]]
        dist.all_to_all_single(x := other(torch.zeros(size, 2)), torch.full((size, 2), float(rank)))
        assert x.tolist() == [[0, 0], [1, 1], [2, 2]]
        for work in (
            dist.all_reduce(x := other(torch.ones(2, 3)), async_op=True),
            dist.all_to_all_single(torch.zeros(3, 2), other(torch.ones(3, 2)), [1] * 3, [1] * 3, async_op=True),
        ):
            work.wait()
        assert x.tolist() == [[size] * 3] * 2

    on_ranks(3, body)


def test_refusals_are_those_of_the_general_path(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        with pytest.raises(ValueError, match=r"output: expected dtype torch\.float32"):
            all_gather(torch.zeros(2 * size, dtype=torch.int32), torch.ones(2))
        with pytest.raises(ValueError, match="output: expected 2 times the input's 2 elements, got 3"):
            all_gather(torch.zeros(3), torch.ones(2))
        with pytest.raises(ValueError, match="output: its 3 rows do not divide by 2 ranks"):
            dist.all_to_all_single(torch.zeros(3), torch.ones(3))
        for given, text in (
            ([1, 1], r"input_split_sizes=\[1, 1\]"),
            ([3], r"\[3\]"),
            ([-1, 4], "counts: -1 given"),
        ):
            with pytest.raises((ValueError, RuntimeError), match=text):
                dist.all_to_all_single(torch.zeros(3), torch.ones(3), [3, 0], given)
        with pytest.raises(ValueError, match=r"op=.*AVG"):
            dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG)
        dist.all_reduce(x := torch.ones(1))
        assert x.item() == size

    on_ranks(2, body)
