"""Libraries on torch.distributed: the same training gives the same numbers on rankwise and on gloo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

Numbers = list[float]
STEPS = 3


def model(unused: bool = False) -> Any:
    """Two blocks, and a layer that only some ranks use where `unused`."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
            self.second = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
            self.seldom = torch.nn.Linear(8, 8) if unused else None

        def forward(self, x: Any, seldom: bool = False) -> Any:
            x = x + self.first(x)
            if self.seldom is not None and seldom:
                x = self.seldom(x)
            return self.second(x)

    torch.manual_seed(0)
    return Net()


def batch(rank: int, step: int, rows: int = 4) -> Any:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def parameters(net: Any) -> Numbers:
    """A number for every parameter of the whole model."""
    found = []
    for parameter in net.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.append(whole.detach().double().square().sum().item())
    return found


def train(net: Any, optimizer: Any, rank: int, **forward: Any) -> Numbers:
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = net(batch(rank, step), **forward).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(net: Any) -> Any:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def ddp(rank: int, size: int, hook: str = "", **options: Any) -> Numbers:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # Several buckets; not with powerSGD, whose hooks call each other's collectives in any order.
    net = torch.nn.parallel.DistributedDataParallel(
        model(), bucket_cap_mb=25 if hook == "powerSGD" else 0.001, **options
    )
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook:
        net.register_comm_hook(None, getattr(default_hooks, hook))
    return train(net, sgd(net), rank) + parameters(net)


def ddp_unused(rank: int, size: int) -> Numbers:
    net = torch.nn.parallel.DistributedDataParallel(model(unused=True), find_unused_parameters=True)
    return train(net, sgd(net), rank, seldom=rank == 0) + parameters(net)


def ddp_no_sync(rank: int, size: int) -> Numbers:
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = sgd(net)
    for step in range(2):
        with net.no_sync():
            net(batch(rank, step)).square().mean().backward()
        net(batch(rank, step + 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(net)


def ddp_join(rank: int, size: int) -> Numbers:
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = sgd(net)
    with net.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            net(batch(rank, step)).square().mean().backward()
            optimizer.step()
    return parameters(net)


def fsdp1(rank: int, size: int) -> Numbers:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    net = FullyShardedDataParallel(
        model(), device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Sequential})
    )
    losses = train(net, sgd(net), rank)
    with FullyShardedDataParallel.summon_full_params(net):
        return losses + parameters(net)


def fsdp2(rank: int, size: int, *, hybrid: bool = False, registered: bool = False) -> Numbers:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = (
        init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        if hybrid
        else init_device_mesh("cpu", (size,))
    )
    net = model()
    for block in (net.first, net.second, net):
        fully_shard(block, mesh=mesh).set_allocate_memory_from_process_group_for_comm(registered)
    return train(net, sgd(net), rank) + parameters(net)


def tensor_parallel(rank: int, size: int) -> Numbers:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    net = model()
    plan = {"first.0": ColwiseParallel(), "first.2": RowwiseParallel()}
    parallelize_module(net, mesh, plan)
    return train(net, sgd(net), 0) + parameters(net)


def two_dimensions(rank: int, size: int) -> Numbers:
    """Tensor parallel within, FSDP2 across."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    net = model()
    parallelize_module(net.first, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    return train(net, sgd(net), mesh["dp"].get_local_rank()) + parameters(net)


def dtensor(rank: int, size: int) -> Numbers:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(35.0).reshape(7, 5)  # not divisible by the ranks
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = columns.t() @ columns
    found = [product.full_tensor().sum().item(), rows.sum().full_tensor().item(), (rows * 2).max().item()]
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
    part = torch.distributed.tensor.DTensor.from_local(torch.full((2, 4), float(rank + 1)), mesh, [Partial()])
    found.append(part.redistribute(mesh, [Shard(0)]).full_tensor().sum().item())
    return found


def zero(rank: int, size: int) -> Numbers:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    losses = train(net, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    return losses + parameters(net)


def checkpoint(rank: int, size: int, folder: str = "") -> Numbers:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))

    def fresh() -> tuple[Any, Any]:
        net = fully_shard(model(), mesh=mesh)
        return net, torch.optim.Adam(net.parameters(), lr=0.01)

    net, optimizer = fresh()
    train(net, optimizer, rank)
    state = dict(zip(("model", "optimizer"), get_state_dict(net, optimizer), strict=True))
    where = f"{folder}/{dist.get_backend()}"
    dcp.save(state, checkpoint_id=where)
    again, optimizer = fresh()
    state = dict(zip(("model", "optimizer"), get_state_dict(again, optimizer), strict=True))
    dcp.load(state, checkpoint_id=where)
    set_state_dict(again, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert parameters(again) == parameters(net)
    return train(again, optimizer, rank) + parameters(again)


def functional(rank: int, size: int) -> Numbers:
    """Functional collectives and those that autograd follows."""
    import torch.distributed._functional_collectives as funcol
    import torch.distributed.nn.functional as differentiable

    group = dist.group.WORLD
    x = torch.arange(4.0) + rank
    found = [
        funcol.all_reduce(x, "sum", group),
        funcol.all_gather_tensor(x, 0, group),
        funcol.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group),
        funcol.all_to_all_single(torch.arange(2.0 * size) + rank, None, None, group),
        funcol.broadcast(x, 1, group),
        *funcol.all_reduce_coalesced([x, x * 2], "max", group),
        *funcol.all_gather_into_tensor_coalesced([x, x * 2], group),
    ]
    y = x.clone().requires_grad_()
    (differentiable.all_reduce(y, group=group) ** 2).sum().backward()
    return [value.double().square().sum().item() for value in [*found, y.grad]]


def pipeline(rank: int, size: int, schedule: str = "") -> Numbers:
    """A stage a rank: activations go forward and gradients back as messages."""
    import torch.distributed.pipelining as pipelining

    net = model()
    part = net.first if rank == 0 else net.second
    stage = pipelining.PipelineStage(part, rank, size, torch.device("cpu"))
    losses: list[Any] = []
    run = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=lambda y, _: y.square().mean())
    for step in range(STEPS):
        if rank == 0:
            run.step(batch(0, step, rows=8))
        else:
            run.step(target=torch.zeros(8, 4), losses=losses)
    found = [loss.item() for loss in losses]
    return found + [p.grad.double().square().sum().item() for p in part.parameters()]


CASES: dict[str, tuple[int, Callable[..., Numbers]]] = {
    "DDP": (2, ddp),
    "DDP bucket views": (2, partial(ddp, gradient_as_bucket_view=True)),
    "DDP static graph": (2, partial(ddp, static_graph=True)),
    "DDP allreduce_hook": (2, partial(ddp, hook="allreduce_hook")),
    "DDP fp16_compress_hook": (2, partial(ddp, hook="fp16_compress_hook")),
    "DDP powerSGD": (2, partial(ddp, hook="powerSGD")),
    "DDP unused parameters": (2, ddp_unused),
    "DDP no_sync": (2, ddp_no_sync),
    "DDP join": (2, ddp_join),
    "FSDP1": (2, fsdp1),
    "FSDP2": (2, fsdp2),
    "FSDP2 in registered memory": (2, partial(fsdp2, registered=True)),
    "HSDP": (4, partial(fsdp2, hybrid=True)),
    "DTensor": (2, dtensor),
    "tensor parallel": (2, tensor_parallel),
    "tensor parallel and FSDP2": (4, two_dimensions),
    "ZeroRedundancyOptimizer": (2, zero),
    "distributed checkpoint": (2, checkpoint),
    "functional collectives": (2, functional),
    "pipeline GPipe": (2, partial(pipeline, schedule="ScheduleGPipe")),
    "pipeline 1F1B": (2, partial(pipeline, schedule="Schedule1F1B")),
}


# Cases whose operations others have too: on 4 ranks FSDP and tensor parallel in one dimension, and these.
ALIKE = ("DDP bucket views", "DDP static graph", "DDP allreduce_hook", "FSDP2", "pipeline 1F1B")


def marks(name: str) -> Any:
    return pytest.mark.slow if CASES[name][0] == 4 or name in ALIKE else ()


@pytest.mark.parametrize("case", [pytest.param(name, marks=marks(name)) for name in CASES])
def test_as_on_gloo(on_ranks: Callable[..., Any], case: str, tmp_path: Path) -> None:
    size, fn = CASES[case]
    if fn is checkpoint:
        fn = partial(fn, folder=str(tmp_path))
    ours, theirs = (on_ranks(size, fn, backend=backend) for backend in ("rankwise", "gloo"))
    assert len(ours[0]) > 3
    for rank in range(size):
        assert ours[rank] == pytest.approx(theirs[rank], rel=1e-4), (rank, ours[rank], theirs[rank])
