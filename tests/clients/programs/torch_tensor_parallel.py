"""torch's parallelize_module: layers split by columns, rows and the sequence, and a loss of split scores; training."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH, WORDS = 128, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
layers = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}
plan = {
    "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    **{f"{block}.{name}": style for block in (1, 2) for name, style in layers.items()},
    "3": SequenceParallel(),
    "4": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}
parallelize_module(model, mesh, plan)
for block in (model[1], model[2]):
    parallelize_module(block, mesh, PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
text = (torch.randint(WORDS, (8, 1)) + 3 * torch.arange(33)) % WORDS


def step():
    with loss_parallel():
        scores = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.full_tensor()


losses = torch.stack([step().detach() for _ in range(30)])

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

if dist.get_backend() != "fake":
    assert losses[-1] < 0.5 * losses[0], losses
same_on_all_ranks([losses])
time_of("step", step)
dist.destroy_process_group()
