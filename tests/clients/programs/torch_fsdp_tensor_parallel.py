"""FSDP2 with tensor parallelism, on a mesh of 2 x 2 ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 128

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in "ab")
)
for block in model:
    parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(block, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(mesh["data"].get_local_rank())


def step():
    x = torch.randn(16, WIDTH, generator=data)
    loss = nn.functional.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


losses = torch.stack([step() for _ in range(30)])
dist.all_reduce(losses, group=mesh["data"].get_group())
whole = [parameter.full_tensor() for parameter in model.parameters()]

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

if dist.get_backend() != "fake":
    assert losses[-1] < losses[0], losses
same_on_all_ranks([losses, *whole], ranks=4)
time_of("step", step)
dist.destroy_process_group()
