"""torchtitan asks for the backend that PyTorch has for the device, unless there is a process group: then it takes that.

    WIRESUM_SWITCH=... torchrun --nproc-per-node 2 torchtitan_mesh.py

This is what its trainer does before it has a model: the process group, and the meshes of the parallelisms over it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.config import CommConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import init_distributed

import wiresum.torch


def main() -> None:
    dist.init_process_group("wiresum")  # the one line, before torchtitan's init_distributed
    size = init_distributed(CommConfig())
    dims = ParallelDims(dp_replicate=1, dp_shard=size, cp=1, tp=1, pp=1, ep=1, world_size=size)
    mesh = dims.get_mesh("fsdp")
    torch.manual_seed(1)
    model = fully_shard(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(3):
        for batch in inputs.split(16):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            summed = wiresum.torch.stats(mesh.get_group()).bytes_reduced
            print(f"loss {loss.item():.4f}; {summed} bytes summed in the network", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
