"""torch's pipeline parallelism: a stage or more on each rank, under the schedule that is the first argument."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

ROWS, WIDTH, MICROBATCHES = 32, 64, 4

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
kind = getattr(pipelining, sys.argv[1])
interleaved = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
numbers = [rank, rank + ranks] if interleaved else [rank]
torch.manual_seed(0)
modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2 * ranks if interleaved else ranks)]
stages = [pipelining.PipelineStage(modules[n], n, len(modules), torch.device("cpu")) for n in numbers]
schedule = kind(stages if interleaved else stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD([p for n in numbers for p in modules[n].parameters()], lr=1.0)
x = torch.randn(ROWS, WIDTH)
y = 0.5 * torch.tanh(x.flip(1))


def step():
    optimizer.zero_grad()
    losses = []
    options = {"target": y, "losses": losses} if len(modules) - 1 in numbers else {}
    schedule.step(*([x] if rank == 0 else []), **options)
    optimizer.step()
    return torch.stack(losses).mean().detach() if losses else torch.zeros(())


losses = torch.stack([step() for _ in range(30)])
dist.broadcast(losses, ranks - 1)

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

if dist.get_backend() != "fake":
    assert losses[-1] < losses[0], losses
same_on_all_ranks([losses])
time_of("step", step)
dist.destroy_process_group()
