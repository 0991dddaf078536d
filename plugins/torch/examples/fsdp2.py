"""FSDP2 (`fully_shard`): the default process group names the backend, and the device mesh takes it from there.

WIRESUM_SWITCH=... torchrun --nproc-per-node 2 fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wiresum.torch


def main() -> None:
    dist.init_process_group("wiresum")  # the one line
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(3):
        for batch in inputs.split(16):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            stats = wiresum.torch.stats(mesh.get_group())
            print(f"loss {mean.item():.4f}; {stats.bytes_reduced} bytes summed in the network", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
