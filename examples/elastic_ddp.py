"""Train with torch's DistributedDataParallel while ranks are killed, with the same losses as if none were.

    rankwise run -n 2 --restarts 100 examples/elastic_ddp.py --kill-every 3

It trains the model of examples/ddp.py. Its parameters are the arrays of a State, its optimizer an object of
it. After a loss, each rank makes a new process group and a new DistributedDataParallel around the model, and
goes on from the last step that all ranks have committed. The letters of a step depend on its number and
the rank only.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rankwise as rw
from ddp import Sorter, Trainer
from elastic import cost, kill_this_rank_some_day


@contextmanager
def process_group(group: rw.Group) -> Iterator[None]:
    """A torch process group of the ranks of `group`, which meet through a new file."""
    file = group.broadcast_object(f"{tempfile.gettempdir()}/elastic-ddp-{uuid.uuid4().hex}")
    dist.init_process_group("rankwise", f"file://{file}", rank=group.rank, world_size=group.world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def digest(model: torch.nn.Module) -> str:
    """Equal for models of the same bits."""
    parts = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with DistributedDataParallel while ranks are killed.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=32, help="rows in each rank's batch")
    parser.add_argument("--kill-every", type=float, metavar="S", help="kill a rank every S seconds on average")
    args = parser.parse_args()

    torch.manual_seed(0)  # every rank starts with the same parameters
    model = Sorter()
    optimizer = Trainer(model, 0, args.rows).optimizer
    losses = np.zeros(args.steps)
    state = rw.elastic.State(arrays={"losses": losses, **model.state_dict()}, objects={"optimizer": optimizer})
    safe = threading.Event()

    @rw.elastic.run(state)
    def train(group: rw.Group, state: rw.elastic.State) -> rw.Group:
        speaker = group.all_reduce(group.rank if state.resumptions else group.world_size, "min")
        if group.rank == speaker:  # the first of the ranks that went on
            print(cost(state.resumptions[-1]))
        if args.kill_every and not state.resumptions:
            kill_this_rank_some_day(args.kill_every * group.world_size, safe)
        with process_group(group):
            trainer = Trainer(DistributedDataParallel(model), group.rank, args.rows)
            trainer.optimizer = optimizer
            while state.step < args.steps:
                trainer.chance.manual_seed(state.step * group.world_size + group.rank)
                losses[state.step] = trainer.step()
                state.commit()
        safe.set()
        return group

    group = train()
    mean = group.all_reduce(losses[-1], "mean")
    if group.rank == 0:
        print(f"{state.step} steps on {group.world_size} ranks: loss {mean:.4f}, parameters {digest(model)}")


if __name__ == "__main__":
    main()
