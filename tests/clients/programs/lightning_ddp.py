"""Lightning trains a small network with DDP; Lightning starts the second process."""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=4
    )
    model = Model()
    trainer.fit(model, DataLoader(data, batch_size=16))

    # ---- the end of the program, and what must hold ----

    from checks import same_on_all_ranks

    assert trainer.callback_metrics["loss"] < 1e-3, trainer.callback_metrics
    same_on_all_ranks(model.parameters())
