"""Hugging Face Accelerate takes the process group that there is.

    WIRESUM_SWITCH=... torchrun --nproc-per-node 2 accelerate_ddp.py

Without one, Accelerate makes a group over Gloo for CPUs, whatever backend `InitProcessGroupKwargs` names.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wiresum.torch


def main() -> None:
    dist.init_process_group("wiresum")  # the one line, before the Accelerator
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(3):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), reduction="mean").item()
        summed = wiresum.torch.stats().bytes_reduced
        accelerator.print(f"loss {mean:.4f}; {summed} bytes summed in the network", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
