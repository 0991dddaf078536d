"""Ray Train: `TorchConfig` names the backend.

WIRESUM_SWITCH=... python ray_train.py
"""

import os

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

import wiresum.torch


def train() -> None:
    """Trains one worker's part."""
    torch.manual_seed(1)
    model = prepare_model(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rank = ray.train.get_context().get_world_rank()
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        for batch in inputs.split(16):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        if rank == 0:
            summed = wiresum.torch.stats().bytes_reduced
            print(f"loss {loss.item():.4f}; {summed} bytes summed in the network", flush=True)


def main() -> None:
    # Ray's workers do not inherit this process's variables.
    variables = {name: value for name, value in os.environ.items() if name.startswith("WIRESUM_")}
    ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": variables})
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="wiresum"),  # the one line
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
