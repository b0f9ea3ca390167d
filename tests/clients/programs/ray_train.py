"""Ray Train trains a small network with two workers."""

import ray
import torch
from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(get_context().get_world_rank())
    for _ in range(100):
        x = torch.randn(16, 8, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), model.module.weight.tolist()


if __name__ == "__main__":
    ray.init(num_cpus=4)
    trainer = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), torch_config=TorchConfig(backend="gloo"))
    loss, weights = trainer.fit().return_value  # of rank 0
    print(f"loss {loss}, weights {weights}")

    # ---- the end of the program, and what must hold ----

    assert loss < 1e-3
    print("result:", loss, weights)
