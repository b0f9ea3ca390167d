"""Metrics of torchmetrics over what all ranks have seen, also where they have seen unequally much."""

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryF1Score

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
metrics = MetricCollection([BinaryF1Score(), BinaryAUROC()])
generator = torch.Generator().manual_seed(0)
for batch in range(999):
    labels = torch.randint(2, (32,), generator=generator)
    scores = torch.rand(32, generator=generator) + 0.3 * labels
    if batch % size == rank:
        metrics.update(scores, labels)
found = metrics.compute()
print(f"rank {rank}: F1 {found['BinaryF1Score']:.4f}, area under the curve {found['BinaryAUROC']:.4f}")

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks  # noqa: E402

generator.manual_seed(0)
alone = MetricCollection([BinaryF1Score(sync_on_compute=False), BinaryAUROC(sync_on_compute=False)])
for _ in range(999):
    labels = torch.randint(2, (32,), generator=generator)
    alone.update(torch.rand(32, generator=generator) + 0.3 * labels, labels)
for name, value in alone.compute().items():
    assert torch.isclose(value, found[name]), f"{name}: {found[name]} of all ranks, {value} on one"
same_on_all_ranks(found.values())
dist.destroy_process_group()
