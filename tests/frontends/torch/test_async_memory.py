"""async_op=True on tensors that are packed, converted or scaled: that too belongs to the group's stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

OnRanks = Callable[..., list[Any]]


def kinds() -> dict[str, Any]:
    """Eight ones, in memory that the engine cannot work on as it is."""
    return {
        "strided": torch.ones(16)[::2],
        "transposed": torch.ones(2, 4).t(),
        "negated": torch._neg_view(torch.full((8,), -1.0)),
        "converted": torch.ones(8, dtype=torch.float8_e4m3fnuz),
        "sparse": torch.ones(2, 4).to_sparse(),
        "inference": made_in_inference_mode(),
    }


def made_in_inference_mode() -> Any:
    with torch.inference_mode():
        return torch.ones(16)[::2]


def has(tensor: Any, value: float) -> bool:
    dense = (tensor.to_dense() if tensor.is_sparse else tensor).to(torch.float32)
    return torch.equal(dense, torch.full(dense.shape, value))


def all_started_is_over() -> None:
    """Without a wait for a Work, which a blocking operation is not: the group's barrier runs behind the rest."""
    dist.barrier()


def test_two_operations_on_one_tensor(on_ranks: OnRanks) -> None:
    """The second one reads what the first has written."""

    def body(rank: int, size: int) -> None:
        for name, x in kinds().items():
            works = [dist.all_reduce(x, async_op=True), dist.all_reduce(x, async_op=True)]
            for work in works:
                work.wait()
            assert has(x, 4), name
            works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
            dist.all_reduce(x)  # a blocking one, behind them
            assert has(x, 32), name
            for work in works:
                work.wait()
            assert has(x, 32), name

    on_ranks(2, body)


def test_a_dropped_work_leaves_its_result(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        for name, x in kinds().items():
            dist.all_reduce(x, async_op=True)
            all_started_is_over()
            assert has(x, 2), name

    on_ranks(2, body)


def test_a_wait_writes_nothing(on_ranks: OnRanks) -> None:
    """The tensor is the caller's again when the operation is over, whenever its Work is waited for."""

    def body(rank: int, size: int) -> None:
        for name, x in kinds().items():
            if name in ("sparse", "inference"):  # not to be filled here
                continue
            work = dist.all_reduce(x, async_op=True)
            all_started_is_over()
            x.fill_(7)
            work.wait()
            assert has(x, 7), name

    on_ranks(2, body)


def test_a_scaled_sum(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        half = dist._make_nccl_premul_sum(0.5)
        twice = dist._make_nccl_premul_sum(torch.tensor([[2.0]]))
        for x in (torch.ones(2), torch.ones(4)[::2]):
            dist.all_reduce(x, half, async_op=True)
            dist.all_reduce(x, twice, async_op=True)
            dist.all_reduce(x, twice)
            assert x.tolist() == [16, 16]
        whole = torch.arange(4.0)
        out = torch.zeros(2)
        dist.reduce_scatter(out, list(whole.chunk(2)), half)  # side by side in memory
        assert out.tolist() == whole.chunk(2)[rank].tolist()

    on_ranks(2, body)


def test_every_collective_packs_and_puts_back_on_the_stream(on_ranks: OnRanks) -> None:
    """Each reads a strided tensor that an operation started before it writes, and its own Work is dropped."""

    def body(rank: int, size: int) -> None:
        def filled() -> Any:
            """Holds 3 once what was started is over."""
            x = torch.full((8,), rank + 1.0)[::2]
            dist.all_reduce(x, async_op=True)
            return x

        def empty(count: int) -> Any:
            return torch.zeros(2 * count)[::2]

        x, out = filled(), [empty(4) for _ in range(size)]
        dist.all_gather(out, x, async_op=True)
        all_started_is_over()
        assert torch.stack(out).eq(3).all()

        x, whole = filled(), empty(8)
        dist.all_gather_into_tensor(whole, x, async_op=True)
        all_started_is_over()
        assert whole.eq(3).all()

        x, out = filled(), [empty(4) for _ in range(size)]
        dist.gather(x, out if rank == 0 else None, async_op=True)
        all_started_is_over()
        assert torch.stack(out).eq(3 if rank == 0 else 0).all()

        x, part = filled(), empty(4)
        dist.scatter(part, [x] * size if rank == 0 else None, async_op=True)
        all_started_is_over()
        assert part.eq(3).all()

        x, part = filled(), empty(4)
        dist.reduce_scatter(part, [x] * size, async_op=True)
        all_started_is_over()
        assert part.eq(6).all()

        x, part = filled(), empty(2)
        dist.reduce_scatter_tensor(part, x, async_op=True)
        all_started_is_over()
        assert part.eq(6).all()

        x, whole = filled(), empty(4)
        dist.all_to_all_single(whole, x, async_op=True)
        all_started_is_over()
        assert whole.eq(3).all()

        x, out = filled(), [empty(4) for _ in range(size)]
        dist.all_to_all(out, [x] * size, async_op=True)
        all_started_is_over()
        assert torch.stack(out).eq(3).all()

        x = filled()
        x_there = x if rank == 1 else empty(4)
        dist.broadcast(x_there, 1, async_op=True)
        dist.reduce(x_there, 1, async_op=True)
        all_started_is_over()
        assert x_there.eq(6 if rank == 1 else 3).all()

    on_ranks(2, body)


def test_memory_in_common_is_copied_on_the_stream(on_ranks: OnRanks) -> None:
    """An input that overlaps the output is copied when the operation runs, not when it is called."""

    def body(rank: int, size: int) -> None:
        whole = torch.full((4,), rank + 1.0)
        dist.all_reduce(whole, async_op=True)
        dist.all_to_all_single(whole, whole, async_op=True)
        dist.all_gather_into_tensor(whole, whole[1:3], async_op=True)
        all_started_is_over()
        assert whole.tolist() == [3] * 4
        parts = torch.arange(4.0) + rank
        dist.scatter(parts[2:], list(parts.chunk(2)) if rank == 0 else None)
        assert parts[2:].tolist() == [[0, 1], [2, 3]][rank]

    on_ranks(2, body)


@pytest.mark.parametrize("count", [2, 1 << 19])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_list_may_share_memory_with_the_tensors_on_the_other_side(
    on_ranks: OnRanks, async_op: bool, count: int
) -> None:
    """Whichever part of a buffer the other side is."""

    def body(rank: int, size: int) -> None:
        def block(sender: int, receiver: int) -> Any:
            return torch.arange(count) + 100.0 * sender + 10 * receiver

        def done(work: Any) -> None:
            if work is not None:
                work.wait()

        for lengths in ([count] * size, [count + r for r in range(size)]):
            for at in (0, 1, count):
                whole = torch.zeros(sum(lengths))
                given = whole[at : at + lengths[rank]].fill_(rank)
                done(dist.all_gather(list(whole.split(lengths)), given, async_op=async_op))
                assert torch.equal(whole, torch.arange(size * 1.0).repeat_interleave(torch.tensor(lengths)))

        for at in range(size):
            parts = list(torch.zeros(size * count).chunk(size))
            parts[at].copy_(block(rank, 0))
            done(dist.gather(parts[at], parts if rank == 0 else None, async_op=async_op))
            assert rank or torch.equal(torch.cat(parts), torch.cat([block(r, 0) for r in range(size)]))

            parts = list(torch.cat([block(rank, r) for r in range(size)]).chunk(size))
            done(dist.reduce_scatter(parts[at], parts, async_op=async_op))
            assert torch.equal(parts[at], sum(block(r, rank) for r in range(size)))

        parts = list(torch.cat([block(rank, r) for r in range(size)]).chunk(size))
        done(dist.all_to_all(parts, parts, async_op=async_op))
        assert torch.equal(torch.cat(parts), torch.cat([block(r, rank) for r in range(size)]))

    on_ranks(3, body)


def test_within_a_limit_of_its_own_and_several_at_once(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        x, y = torch.ones(8)[::2], torch.ones(3)
        opts = dist.AllreduceOptions()
        opts.timeout = timedelta(seconds=20)
        opts.asyncOp = True
        group = dist.group.WORLD
        for _ in range(2):
            group.allreduce([x], opts)
            group.allreduce_coalesced([x, y])
        all_started_is_over()
        assert x.tolist() == [16] * 4
        assert y.tolist() == [4] * 3

    on_ranks(2, body)


def test_in_a_callback(on_ranks: OnRanks) -> None:
    def body(rank: int, size: int) -> None:
        x = torch.ones(8)[::2]

        def again(future: Any) -> Any:
            dist.all_reduce(x)
            return x

        assert dist.all_reduce(x, async_op=True).get_future().then(again).wait().tolist() == [4] * 4

    on_ranks(2, body)


def test_in_a_callback_of_another_group(on_ranks: OnRanks) -> None:
    """The thread that runs it has run a callback of the first group before, but the first group's stream is free."""

    def body(rank: int, size: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        first, second = dist.new_group(), dist.new_group()
        x, outs = torch.ones(2), [torch.zeros(2) for _ in range(size)]

        def start(future: Any) -> Any:
            work = dist.all_gather(outs, x, group=first, async_op=True)
            store.set("started", "")
            return work

        if rank == 0:
            future = dist.all_reduce(x, group=first, async_op=True).get_future()
            store.set("first", "")
            future.wait()
            time.sleep(0.1)  # until its thread is idle
            future = dist.all_reduce(x, group=second, async_op=True).get_future().then(start)
            store.set("second", "")
            future.wait().wait()
        else:
            store.wait(["first"])
            dist.all_reduce(x, group=first)
            store.wait(["second"])
            dist.all_reduce(x, group=second)
            store.wait(["started"], timedelta(seconds=60))
            dist.all_gather(outs, x, group=first)
        assert torch.stack(outs).eq(4).all()

    on_ranks(2, body)
