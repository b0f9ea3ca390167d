"""In code that torch.compile compiles, every call does what it does outside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rankwise as rw  # noqa: E402 - only tested where there is torch
from rankwise.testing import run_ranks  # noqa: E402

pytestmark = pytest.mark.timeout(400)  # inductor calls a compiler for each graph

dist = torch.distributed
OnRanks = Callable[..., list[Any]]
Function = Callable[[Any], Any]

no_compiler = not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"))
every_compiler = pytest.mark.parametrize(
    "compiler",
    [
        "eager",
        pytest.param("aot_eager", marks=pytest.mark.slow),
        pytest.param(
            "inductor",
            marks=[pytest.mark.slow, pytest.mark.skipif(no_compiler, reason="inductor needs a C++ compiler")],
        ),
    ],
)


def check(functions: list[Function], compiler: str) -> list[str]:
    """The functions that do or raise something else when they are compiled; each takes a tensor of 4 elements."""

    def outcome(function: Function) -> str:
        try:
            return str(function(torch.ones(4) * (rw.init().rank + 1)))
        except Exception as error:  # noqa: BLE001 - it is compared
            return f"{type(error).__name__}: {str(error)[:200]}"

    def difference(function: Function) -> str:
        torch._dynamo.reset()
        expected, found = outcome(function), outcome(torch.compile(function, backend=compiler))
        return "" if found == expected else f"{function.__qualname__}: {found}, expected {expected}"

    return [*filter(None, map(difference, functions))]


def collectives_of_torch(rank: int, n: int) -> list[Function]:
    """Each works on its own tensors before and after its call, so that there is something to compile."""

    def all_reduce(x: Any) -> Any:
        dist.all_reduce(x)
        dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True).wait()
        return x + 1

    def all_reduce_packed(x: Any) -> Any:
        work = dist.all_reduce(x[::2], async_op=True)
        work.wait()
        return x + work.is_completed()

    def all_reduce_future(x: Any) -> Any:
        return dist.all_reduce(x, async_op=True).get_future().wait()[0] + 1

    def all_reduce_coalesced(x: Any) -> Any:
        y = x * 2
        dist.all_reduce_coalesced([x, y])
        return x + y

    def reduce(x: Any) -> Any:
        dist.reduce(x, 0)
        y = x.clone() if rank == 0 else torch.zeros(4)
        dist.reduce(y, n - 1, async_op=True).wait()
        return (y if rank == n - 1 else torch.zeros(4)) + 1

    def broadcast(x: Any) -> Any:
        dist.broadcast(x, 0)
        y = x * (rank + 1)
        dist.broadcast(y, n - 1, async_op=True).wait()
        return y + 1

    def all_gather(x: Any) -> Any:
        outs = [torch.zeros(4) for _ in range(n)]
        dist.all_gather(outs, x)
        dist.all_gather(outs, outs[rank] * 2, async_op=True).wait()
        return outs[0] + outs[-1]

    def all_gather_into_tensor(x: Any) -> Any:
        out = torch.zeros(4 * n)
        dist.all_gather_into_tensor(out, x)
        dist.all_gather_into_tensor(out, x * 2, async_op=True).wait()
        return out + 1

    def gather(x: Any) -> Any:
        outs = [torch.zeros(4) for _ in range(n)] if rank == 0 else None
        dist.gather(x, outs, 0)
        dist.gather(x * 2, outs, 0, async_op=True).wait()
        return x + 1 if outs is None else outs[0] + outs[-1]

    def scatter(x: Any) -> Any:
        given = [x + r for r in range(n)] if rank == 0 else None
        dist.scatter(x, given, 0)
        dist.scatter(x, given, 0, async_op=True).wait()
        return x + 1

    def reduce_scatter(x: Any) -> Any:
        out = torch.zeros(4)
        dist.reduce_scatter(out, [x + r for r in range(n)])
        dist.reduce_scatter(out, [out + r for r in range(n)], async_op=True).wait()
        return out + 1

    def reduce_scatter_tensor(x: Any) -> Any:
        out = torch.zeros(4 // n)
        dist.reduce_scatter_tensor(out, x)
        dist.reduce_scatter_tensor(out, x * 2, async_op=True).wait()
        return out + 1

    def all_to_all(x: Any) -> Any:
        outs = [torch.zeros(4) for _ in range(n)]
        dist.all_to_all(outs, [x + r for r in range(n)])
        dist.all_to_all(outs, [x * r for r in range(n)], async_op=True).wait()
        return outs[0] + outs[-1]

    def all_to_all_single(x: Any) -> Any:
        out = torch.zeros(4)
        dist.all_to_all_single(out, x)
        dist.all_to_all_single(out, x * 2, async_op=True).wait()
        return out + 1

    def barrier(x: Any) -> Any:
        y = x * 2
        dist.barrier()
        dist.barrier(async_op=True).wait()
        return y + 1

    def send(x: Any) -> Any:
        dist.send(x * 2, 1 - rank) if rank == 0 else dist.recv(x, 1 - rank)
        return x + 1

    def batch_isend_irecv(x: Any) -> Any:
        out = torch.zeros(4)
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, out, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return out + 1

    def recv_from_any(x: Any) -> Any:
        out = torch.zeros(4)
        work = dist.isend(x, (rank + 1) % n)
        source = dist.recv(out)
        work.wait()
        return out + source

    def no_such_root(x: Any) -> Any:
        dist.broadcast(x * 2, n, async_op=True)
        return x + 1

    return [
        *(all_reduce, all_reduce_packed, all_reduce_future, all_reduce_coalesced, reduce, broadcast, all_gather),
        *(all_gather_into_tensor, gather, scatter, reduce_scatter, reduce_scatter_tensor, all_to_all),
        *(all_to_all_single, barrier, send, batch_isend_irecv, recv_from_any, no_such_root),
    ]


@every_compiler
def test_every_call_of_torch(on_ranks: OnRanks, compiler: str) -> None:
    assert on_ranks(2, lambda rank, n: check(collectives_of_torch(rank, n), compiler), timeout=300) == [[], []]


def operations_of_a_group(group: rw.Group) -> list[Function]:
    rank, n = group.rank, group.world_size
    return [
        lambda x: group.all_reduce(x * 2),
        lambda x: group.all_reduce((x * 2).reshape(2, 2)[:, 0]),
        lambda x: group.all_reduce(x * 2, lambda a, b: a - b),
        lambda x: group.all_reduce(x * 2, async_op=True).wait() + 1,
        lambda x: (work := group.all_reduce(x * 2, async_op=True), group.all_reduce(x * 3), work.wait())[2] + 1,
        lambda x: group.broadcast(x * 2, 1),
        lambda x: group.reduce(x * 2, 0),
        lambda x: group.gather(x * 2, 0),
        lambda x: group.all_gather(x * 2),
        lambda x: group.all_gather(x * 2, async_op=True).wait() + 1,
        lambda x: group.scatter(x * 2 if rank == 0 else None),
        lambda x: group.reduce_scatter(x * 2),
        lambda x: group.all_to_all(x * 2),
        lambda x: group.all_gather_v(x[: rank + 1] * 2),
        lambda x: group.gather_v(x[: rank + 1] * 2, 0),
        lambda x: group.scatter_v(x * 2 if rank == 0 else None, [1, 3] if rank == 0 else None),
        lambda x: group.reduce_scatter_v(x * 2, [1, 3]),
        lambda x: group.all_to_all_v(x * 2, [1, 3]),
        lambda x: group.scan(x * 2),
        lambda x: group.exscan(x * 2),
        lambda x: group.sendrecv(x * 2, (rank + 1) % n, (rank - 1) % n),
        lambda x: group.batch([(x * 2, (rank + 1) % n)], [(torch.zeros(4), (rank - 1) % n)]),
        lambda x: (group.isend(x * 2, 1 - rank), group.irecv(torch.zeros(4), 1 - rank).wait())[1] + 1,
        lambda x: (group.send(x * 2, 1 - rank), group.recv(torch.zeros(4), 1 - rank))[1] + 1,
        lambda x: group.all_gather_object(x * 2),
        lambda x: group.broadcast_object(x * 2),
        lambda x: torch.tensor(group.share(x * 2)),
        lambda x: group.all_reduce(x * 2, "no such op"),
        lambda x: rw.all_reduce(x * 2),
        lambda x: rw.autograd.all_reduce(x * 2),
        lambda x: torch.autograd.grad(rw.autograd.all_gather(y := x.clone().requires_grad_()).sum(), y),
    ]


@every_compiler
def test_every_operation_of_a_group(compiler: str) -> None:
    found = run_ranks(lambda group: check(operations_of_a_group(group), compiler), 2, backend="shm", timeout=300)
    assert found == [[], []]


def losses(wrap: Callable[[Any], Any], rank: int) -> list[float]:
    """Of four steps in which a model is trained; `wrap` makes what is called in its place."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 5))
    step, optimizer, found = wrap(net), torch.optim.SGD(net.parameters(), lr=0.1), []
    for i in range(4):
        torch.manual_seed(10 * i + rank)
        loss = step(torch.randn(8, 20)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@every_compiler
def test_a_model_is_trained(on_ranks: OnRanks, compiler: str) -> None:
    def body(rank: int, n: int) -> None:
        for wrap in (torch.nn.parallel.DistributedDataParallel, rw.overlap.data_parallel):
            compiled = losses(lambda net, wrap=wrap: torch.compile(wrap(net), backend=compiler), rank)
            assert compiled == pytest.approx(losses(wrap, rank))

    on_ranks(2, body)


@pytest.mark.slow
def test_functional_collectives(on_ranks: OnRanks) -> None:
    """These are part of the graph, and a graph of all that the function does."""

    def body(rank: int, size: int) -> None:
        import torch.distributed._functional_collectives as funcol

        def step(x: Any) -> Any:
            total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
            return funcol.all_gather_tensor(total + 1, 0, dist.group.WORLD)

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        x = torch.full((2,), float(rank + 1))
        assert compiled(x).tolist() == step(x).tolist() == [7, 7, 7, 7]

    on_ranks(2, body)


def test_the_compiler_loads_before_any_group_is_made() -> None:
    code = "import rankwise.torch, torch._dynamo.trace_rules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200).stderr == ""
