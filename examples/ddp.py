"""Data-parallel training of a small transformer with torch, on rankwise or on gloo.

    torchrun --nproc-per-node 2 examples/ddp.py --backend rankwise
    torchrun --nproc-per-node 2 examples/ddp.py --backend gloo
    torchrun --nproc-per-node 2 examples/ddp.py --fsdp2 --registered

The model learns to sort: it reads letters and writes them in order. Each rank has its own letters;
DistributedDataParallel averages the gradients during the backward pass; --fsdp2 shards the parameters
as well; --registered lets FSDP2 take the tensors that it sends and receives from the backend, which
then copies less. The backend is the only difference; the losses are the same.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

LETTERS, LENGTH = 32, 16


class Sorter(nn.Module):
    """(rows, LENGTH) letters -> (rows * LENGTH, LETTERS) scores of the letter at each position of the sorted row."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.scores = nn.Linear(width, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.letters(text) + self.places
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.scores(x.flatten(0, 1))
        return scores


def distributed(
    model: Sorter, group: dist.ProcessGroup | None = None, *, shards: bool = False, registered: bool = False
) -> nn.Module:
    """`model`, for training by all ranks of `group`: with DDP, or with FSDP2 if it `shards`.

    registered: FSDP2 takes the memory for its communication from the backend.
    """
    if not shards:
        return DistributedDataParallel(model, process_group=group)
    mesh = dist.DeviceMesh.from_group(group or dist.group.WORLD, "cpu")  # type: ignore[arg-type]
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(registered)
    return model


class Trainer:
    """Trains a model step by step; `step` returns the loss on this rank's batch."""

    def __init__(self, model: nn.Module, rank: int, rows: int) -> None:
        self.model, self.rows = model, rows
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.chance = torch.Generator().manual_seed(rank)

    def step(self) -> float:
        text = torch.randint(LETTERS, (self.rows, LENGTH), generator=self.chance)
        self.optimizer.zero_grad()
        scores = self.model(text)
        loss = nn.functional.cross_entropy(scores, text.sort(1).values.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="rankwise", help="rankwise (the default) or gloo")
    parser.add_argument("--fsdp2", action="store_true", help="shard the parameters over the ranks")
    parser.add_argument("--registered", action="store_true", help="with --fsdp2: communicate in the backend's memory")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=32, help="rows in each rank's batch")
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    torch.manual_seed(0)  # every rank starts with the same parameters
    trainer = Trainer(distributed(Sorter(), shards=args.fsdp2, registered=args.registered), dist.get_rank(), args.rows)
    times = []
    for number in range(1, args.steps + 1):
        begin = time.perf_counter()
        loss = trainer.step()
        times.append(time.perf_counter() - begin)
        if dist.get_rank() == 0 and number % max(1, args.steps // 6) == 0:
            middle = statistics.median(times[args.steps // 10 :] or times)
            print(f"step {number:4}  loss {loss:.4f}  {1e3 * middle:.1f} ms per step", flush=True)
    if dist.get_rank() == 0:
        kind = "FSDP2" if args.fsdp2 else "DDP"
        print(f"{kind} on {args.backend}, {dist.get_world_size()} ranks: {1e3 * middle:.1f} ms per step (median)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
