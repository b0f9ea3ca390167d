"""DeepSpeed trains a small network, its optimizer sharded over the ranks (ZeRO stage 1)."""

import deepspeed
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
deepspeed.init_distributed("gloo")
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    config={
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)
data = torch.Generator().manual_seed(engine.global_rank)
for _ in range(100):
    x = torch.randn(16, 8, generator=data)
    loss = torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()

# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks  # noqa: E402

assert loss < 1, loss
same_on_all_ranks(model.parameters())
