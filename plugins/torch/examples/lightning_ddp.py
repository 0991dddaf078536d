"""Lightning: the strategy names the backend.

    WIRESUM_SWITCH=... torchrun --nproc-per-node 2 lightning_ddp.py

(or `python lightning_ddp.py`, and Lightning starts the other ranks itself).
"""

from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wiresum.torch

RANKS = 2


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            loss = float(self.trainer.callback_metrics["loss"])
            print(f"loss {loss:.4f}; {wiresum.torch.stats().bytes_reduced} bytes summed in the network", flush=True)


def main() -> None:
    lightning.seed_everything(1)
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=DDPStrategy(process_group_backend="wiresum"),  # the one line
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), loader)


if __name__ == "__main__":
    main()
