"""Every operation of torch.distributed on rankwise, against the expected result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

SIZES = [pytest.param(2, marks=pytest.mark.slow), 3]
DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "complex32",
]
MODES = [False, True]


def same(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(as_wide(got), as_wide(expected)), (got, expected)


def as_wide(tensor: Any) -> Any:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def filled(rank: int, dtype: Any, count: int = 6) -> Any:
    return ((torch.arange(count) + rank) % 3).to(torch.float32).to(dtype)


def done(work: Any) -> None:
    if work is not None:
        work.wait()


@pytest.mark.parametrize("size", SIZES)
def test_all_dtypes(on_ranks: Callable[..., Any], size: int) -> None:
    def body(rank: int, size: int) -> None:
        for name in DTYPES:
            dtype = getattr(torch, name)
            given = [filled(r, dtype) for r in range(size)]
            total = torch.stack([as_wide(x) for x in given]).sum(0)
            expected = (total != 0) if dtype == torch.bool else total.to(dtype)
            for async_op in MODES:
                x = given[rank].clone()
                done(dist.all_reduce(x, async_op=async_op))
                same(x, expected)
                x = given[rank].clone()
                done(dist.broadcast(x, size - 1, async_op=async_op))
                same(x, given[size - 1])
                outs = [torch.empty_like(given[0]) for _ in range(size)]
                done(dist.all_gather(outs, given[rank], async_op=async_op))
                for r in range(size):
                    same(outs[r], given[r])
            out = torch.empty(6 * size, dtype=dtype)
            dist.all_gather_into_tensor(out, given[rank])
            same(out, torch.cat([as_wide(x) for x in given]).to(dtype))
            if rank == 0:
                dist.send(given[0], 1, tag=4)
            if rank == 1:
                x = torch.empty_like(given[0])
                assert dist.recv(x, 0, tag=4) == 0
                same(x, given[0])

    on_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_operations(on_ranks: Callable[..., Any], size: int) -> None:
    def body(rank: int, size: int) -> None:
        Op = dist.ReduceOp
        given = torch.stack([filled(r, torch.float32) + 1 for r in range(size)])
        whole = given.to(torch.int32)
        expected = {
            Op.SUM: given.sum(0),
            Op.PRODUCT: given.prod(0),
            Op.MIN: given.amin(0),
            Op.MAX: given.amax(0),
            Op.AVG: given.sum(0) / size,
        }
        bits = {
            Op.BAND: torch.bitwise_and,
            Op.BOR: torch.bitwise_or,
            Op.BXOR: torch.bitwise_xor,
        }
        for op, result in expected.items():
            x = given[rank].clone()
            dist.all_reduce(x, op)
            torch.testing.assert_close(x, result)
            x = given[rank].clone()
            dist.reduce(x, size - 1, op)
            torch.testing.assert_close(x, result if rank == size - 1 else given[rank])
            parts = [torch.full((r + 1,), float(rank + 1)) for r in range(size)]
            out = torch.empty(rank + 1)
            dist.reduce_scatter(out, parts, op)
            scalar = torch.empty(1)
            dist.reduce_scatter_tensor(scalar, torch.full((size,), float(rank + 1)), op)
            torch.testing.assert_close(out, scalar.expand(rank + 1))
        for op, function in bits.items():
            x = whole[rank].clone()
            dist.all_reduce(x, op)
            result = whole[0]
            for r in range(1, size):
                result = function(result, whole[r])
            same(x, result)
        premul = torch.distributed._make_nccl_premul_sum(0.5)
        for async_op in MODES:
            x = given[rank].clone()
            done(dist.all_reduce(x, premul, async_op=async_op))
            torch.testing.assert_close(x, given.sum(0) / 2)
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, torch.ones(2 * size), premul)
        torch.testing.assert_close(out, torch.full((2,), size / 2))
        with pytest.raises(ValueError, match="a mean of integers"):
            dist.all_reduce(whole[rank].clone(), Op.AVG)
        with pytest.raises(ValueError, match="bitwise"):
            dist.all_reduce(given[rank].clone(), Op.BAND)

    on_ranks(size, body)


def odd_tensors(rank: int) -> list[Any]:
    """Tensors that are not simply their memory, with what rank r's hold."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6) + rank
    return [
        base.t().clone().t(),
        base.clone()[:, ::2],
        torch.empty(0, 3),
        torch.tensor(float(rank)),
        base.clone().requires_grad_(),
        torch.complex(base, base + 1).t(),
        torch.complex(base, base + 1).conj().imag,
        base.clone().as_strided((2, 3), (1, 2)),
        torch.zeros(2, 3, 4, 4).add(rank).contiguous(memory_format=torch.channels_last),
    ]


@pytest.mark.parametrize("async_op", MODES)
def test_tensors_of_every_layout(on_ranks: Callable[..., Any], async_op: bool) -> None:
    def body(rank: int, size: int) -> None:
        for kind in range(len(odd_tensors(0))):
            given = [odd_tensors(r)[kind].detach().clone() for r in range(size)]
            x = odd_tensors(rank)[kind]
            done(dist.all_reduce(x, async_op=async_op))
            same(x.detach(), sum(given[1:], given[0]))
            x = odd_tensors(rank)[kind]
            done(dist.broadcast(x, 1, async_op=async_op))
            same(x.detach(), given[1])
            outs = [odd_tensors(7)[kind] for _ in range(size)]
            done(dist.all_gather([o.detach() for o in outs], odd_tensors(rank)[kind], async_op=async_op))
            for r in range(size):
                same(outs[r].detach().resolve_conj(), given[r])
            if not given[0].is_complex() and given[0].dim():
                out = torch.empty(size, *given[0].shape)[..., :]
                done(dist.all_gather_into_tensor(out, odd_tensors(rank)[kind].detach(), async_op=async_op))
                same(out, torch.stack(given))
            request = dist.isend(odd_tensors(rank)[kind], 1 - rank)
            x = odd_tensors(7)[kind]
            dist.recv(x.detach(), 1 - rank)
            request.wait()
            same(x.detach(), given[1 - rank])

    on_ranks(2, body)


@pytest.mark.parametrize("size", SIZES)
def test_one_to_all_and_back(on_ranks: Callable[..., Any], size: int) -> None:
    def body(rank: int, size: int) -> None:
        for async_op in MODES:
            mine = torch.full((3,), rank, dtype=torch.int16)
            outs = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
            done(dist.gather(mine, outs, dst=1, async_op=async_op))
            if outs is not None:
                assert [out[0].item() for out in outs] == list(range(size))
            out = torch.empty(2, 2)
            parts = [torch.full((2, 2), float(r)) for r in range(size)] if rank == 0 else None
            done(dist.scatter(out, parts, src=0, async_op=async_op))
            same(out, torch.full((2, 2), float(rank)))
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": r} for r in range(size)]
        found = [None] * size if rank == 0 else None
        dist.gather_object(("r", rank), found)
        assert found is None or found == [("r", r) for r in range(size)]
        several = ["a", 2, {3}] if rank == 0 else [None] * 3
        dist.broadcast_object_list(several)
        assert several == ["a", 2, {3}]
        one = [None]
        dist.scatter_object_list(one, list(range(10, 10 + size)) if rank == 0 else None)
        assert one == [10 + rank]

    on_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(on_ranks: Callable[..., Any], size: int) -> None:
    def body(rank: int, size: int) -> None:
        for async_op in MODES:
            given = torch.arange(size * 2).reshape(size, 2) + 100 * rank
            out = torch.empty_like(given)
            done(dist.all_to_all_single(out, given, async_op=async_op))
            same(out, torch.stack([torch.arange(2) + 2 * rank + 100 * r for r in range(size)]))
            rows = torch.full((sum(range(1, size + 1)), 2), float(rank))  # r + 1 rows to rank r
            out = torch.empty(size * (rank + 1), 2)
            splits = [[rank + 1] * size, list(range(1, size + 1))]
            done(dist.all_to_all_single(out, rows, *splits, async_op=async_op))
            same(out, torch.arange(size).repeat_interleave(rank + 1).float()[:, None].expand(-1, 2))
            inputs = [torch.full((r + 1, rank), float(rank)) for r in range(size)]
            outs = [torch.empty(rank + 1, r) for r in range(size)]
            done(dist.all_to_all(outs, inputs, async_op=async_op))
            for r in range(size):
                same(outs[r], torch.full((rank + 1, r), float(r)))

    on_ranks(size, body)


@pytest.mark.parametrize("size", SIZES)
def test_coalesced_and_single_forms(on_ranks: Callable[..., Any], size: int) -> None:
    def body(rank: int, size: int) -> None:
        group = dist.group.WORLD
        pairs = [(torch.empty(size * n), torch.full((n,), float(rank))) for n in (1, 300)]
        for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
            getattr(group, name)([out for out, _ in pairs], [given for _, given in pairs]).wait()
            for out, given in pairs:
                same(out, torch.arange(size).float().repeat_interleave(len(given)))
        for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
            outs = [torch.empty(n) for n in (1, 300)]
            getattr(group, name)(outs, [torch.ones(size * n) for n in (1, 300)]).wait()
            assert all(torch.equal(out, torch.full_like(out, size)) for out in outs)
        for name in ("all_gather_single", "_allgather_base"):
            whole = torch.zeros(size * 200)
            mine = whole[rank * 200 : (rank + 1) * 200].fill_(rank)  # in place, as FSDP does
            getattr(group, name)(whole, mine).wait()
            same(whole, torch.arange(size).float().repeat_interleave(200))
        for name in ("reduce_scatter_single", "_reduce_scatter_base"):
            whole = torch.ones(size * 200)
            getattr(group, name)(whole[rank * 200 : (rank + 1) * 200], whole).wait()
            assert torch.equal(whole[rank * 200 : (rank + 1) * 200], torch.full((200,), float(size)))
        elsewhere = torch.arange(size * 4).float() + 100 * rank  # overlapping, not in place
        group.all_gather_single(elsewhere, elsewhere[1:5]).wait()
        same(elsewhere, torch.cat([torch.arange(1, 5).float() + 100 * r for r in range(size)]))
        with dist._coalescing_manager(group, async_ops=True) as manager:
            several = [torch.ones(4), torch.ones(5)]
            for x in several:
                dist.all_reduce(x)
        manager.wait()
        assert all(torch.equal(x, torch.full_like(x, size)) for x in several)
        with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
            x = torch.ones(2)
            group.allreduce([x])
        manager.wait()
        assert x.tolist() == [size, size]
        lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
        group.allgather_coalesced(lists, [torch.full((n,), float(rank)) for n in (2, 3)]).wait()
        assert [[t[0].item() for t in row] for row in lists] == [[r, r] for r in range(size)]
        # torch's short forms
        x = torch.ones(2)
        group.allreduce(x, dist.ReduceOp.SUM).wait()
        group.broadcast(x, 0).wait()
        group.allreduce([x], op=dist.ReduceOp.MAX).wait()
        group.reduce(x, 0, dist.ReduceOp.MAX).wait()
        outs = [torch.empty(2) for _ in range(size)]
        group.allgather(outs, x).wait()
        group.barrier().wait()
        assert x.tolist() == [size, size]

    on_ranks(size, body)


def test_messages(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        if rank == 0:
            x = torch.empty(3)
            sources = sorted(dist.recv(x) for _ in range(size - 1))
            assert sources == list(range(1, size))
            work = dist.irecv(x, 1, tag=9)
            assert work.get_future().wait()[0] is x
            assert x.tolist() == [9, 9, 9]
        else:
            dist.send(torch.full((3,), float(rank)), 0)
            if rank == 1:
                dist.isend(torch.full((3,), 9.0), 0, tag=9).wait()
        dist.barrier()  # what follows must not be taken for one of these
        right, left = (rank + 1) % size, (rank - 1) % size
        x = torch.empty(1 << 18)
        mine = torch.full_like(x, rank)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, left), dist.P2POp(dist.isend, mine, right)])
        for work in works:
            work.wait()
        assert x[0].item() == x[-1].item() == left
        dist.barrier()

    on_ranks(3, body)


def test_a_future_of_coalesced_messages_does_not_hold_up_collectives(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        group, x = dist.group.WORLD, torch.zeros(3)
        if rank == 0:
            group._start_coalescing(torch.device("cpu"))
            dist.irecv(x, 1)
            future = group._end_coalescing(torch.device("cpu")).get_future()
        group.set_timeout(timedelta(seconds=20))
        dist.barrier()  # before the message comes
        if rank == 0:
            future.wait()
            assert x.tolist() == [1] * 3
        else:
            dist.send(torch.ones(3), 0)

    on_ranks(2, body)


def test_works(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        x = torch.full((1 << 16,), float(rank + 1))
        work = dist.all_reduce(x, async_op=True)
        chained = work.get_future().then(lambda future: future.value()[0] * 2)
        assert chained.wait()[0].item() == 6
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is x
        assert work.get_future().value()[0] is x
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(50)]
        assert all(work.wait() for work in reversed(works))

        # A callback may call the group again, on all ranks at the same place of the stream.
        def again(future: Any) -> Any:
            y = future.value()[0].clone()
            dist.all_reduce(y, async_op=True).wait()
            return y

        dist.barrier()
        assert dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again).wait().tolist() == [4, 4]
        kept = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        del kept  # nobody waits; the memory must stay until it is done
        dist.barrier()

    on_ranks(2, body)


def test_all_to_all_into_another_shape_on_one_rank(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        given, output = torch.arange(8.0) + 8 * rank, torch.zeros(8)
        dist.all_to_all_single(output.view(4, 2) if rank == 0 else output, given)
        assert output.tolist() == [*range(4 * rank, 4 * rank + 4), *range(8 + 4 * rank, 12 + 4 * rank)]

    on_ranks(2, body)


def test_groups_share_the_memory_of_all(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        world = dist.group.WORLD.operations.comm._comm.segment
        groups = [dist.new_group([0, 2]) for _ in range(3)]
        if rank != 1:
            x = torch.full((2,), float(rank))
            for group in groups:
                dist.broadcast(x, group=group, group_src=1)  # rank 2
            assert x.tolist() == [2, 2]
        dist.barrier()
        assert world.allocated_blocks == 4
        dist.barrier()
        for group in groups:
            if rank != 1:
                dist.destroy_process_group(group)
        dist.barrier()
        assert world.allocated_blocks == 1

    on_ranks(3, body)


def test_groups_within_the_group(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        pair = dist.new_group([0, 2])
        x = torch.ones(1)
        if rank in (0, 2):
            dist.all_reduce(x, group=pair)
            assert x.item() == 2
            assert dist.get_group_rank(pair, rank) == rank // 2
            assert dist.get_process_group_ranks(pair) == [0, 2]
            assert repr(pair) == f"<rankwise process group {pair.group_name!r}, rank {rank // 2} of 2>"
        alone = dist.new_group([rank], use_local_synchronization=True)
        dist.all_reduce(x, group=alone)
        world = dist.group.WORLD
        part = world.split_group([0, 1] if rank < 2 else [2], group_name=f"part{rank // 2}")
        assert part.size() == (2 if rank < 2 else 1)
        y = torch.ones(1)
        part.allreduce(y).wait()
        assert y.item() == part.size()
        assert (world.split_group([1]) is None) == (rank != 1)
        mixed = dist.new_group(backend="gloo")
        dist.all_reduce(y, group=mixed)
        assert y.item() == 5
        assert dist.get_backend() == "rankwise"
        assert dist.get_backend(mixed) == "gloo"

    on_ranks(3, body)


def test_sparse_tensors(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        for async_op in MODES:
            x = torch.zeros(4, 3)
            x[rank] = 1.0
            x[3] = 2.0
            expected = torch.zeros(4, 3)
            expected[:size] = 1.0
            expected[3] = 2.0 * size
            x = x.to_sparse(1)
            done(dist.all_reduce(x, async_op=async_op))
            same(x.to_dense(), expected)

    on_ranks(3, body)


def test_tensors_around_others(on_ranks: Callable[..., Any]) -> None:
    """What a functional collective returns is waited for; others have no memory of their own."""

    def body(rank: int, size: int) -> None:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
        from torch.distributed.tensor import DeviceMesh, distribute_tensor

        group = dist.group.WORLD
        for async_op in MODES:
            x = all_reduce(torch.ones(4), "sum", group)
            assert isinstance(x, AsyncCollectiveTensor)
            done(dist.all_reduce(x, async_op=async_op))
            assert x.tolist() == [size * size] * 4
            outs = [torch.empty(4) for _ in range(size)]
            done(dist.all_gather(outs, all_reduce(torch.ones(4), "sum", group), async_op=async_op))
            out = torch.empty(4 * size)
            done(dist.all_gather_into_tensor(out, all_reduce(torch.ones(4), "sum", group), async_op=async_op))
            assert torch.cat([*outs, out]).eq(size).all()
        sending = dist.isend(all_reduce(torch.ones(4), "sum", group), 1 - rank)
        dist.recv(out[:4], 1 - rank)
        sending.wait()
        assert out[:4].eq(size).all()
        part = distribute_tensor(torch.ones(4), DeviceMesh.from_group(group, "cpu"))
        with pytest.raises(TypeError, match="memory of its own, got a DTensor"):
            dist.all_reduce(part)
        dist.barrier()

    on_ranks(2, body)


def test_wrong_arguments_do_no_harm(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        with pytest.raises(ValueError, match="expected 2 times the input's 4 elements"):
            dist.all_gather_into_tensor(torch.empty(4), torch.empty(4))
        with pytest.raises(ValueError, match="expected dtype"):
            dist.group.WORLD.all_gather_single(torch.empty(8, dtype=torch.int32), torch.empty(4))
        for into in (torch.ones(1).expand(4), torch.ones(6).as_strided((2, 4), (2, 1))):
            with pytest.raises(ValueError, match="tensor: expected elements with memory of their own"):
                dist.all_reduce(into)
        with pytest.raises(ValueError, match="split_sizes"):
            dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1], [2, 2])
        with pytest.raises(Exception, match="host memory"):
            dist.all_reduce(torch.empty(4, device="meta"))
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == 2

    on_ranks(2, body)
