"""torchtitan: it takes the backend that PyTorch has for the device, so that is where Wiresum is named.

WIRESUM_SWITCH=... torchrun --nproc-per-node 2 torchtitan_fsdp.py

In front of torchtitan's own trainer the line stands in a script that ends with `torchtitan.train.main()`. That trainer
wants an accelerator; what of torchtitan makes groups and meshes does without, and trains here.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import wiresum.torch

if not torch.accelerator.is_available():
    torch._utils._get_available_device_type = lambda: "cpu"  # the function that torchtitan asks

from torchtitan.config import CommConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import init_distributed
from torchtitan.tools.utils import device_type


def main() -> None:
    dist.Backend.default_device_backend_map[device_type] = "wiresum"  # the one line
    world_size = init_distributed(CommConfig())
    dims = ParallelDims(dp_replicate=1, dp_shard=world_size, cp=1, tp=1, pp=1, ep=1, world_size=world_size)
    dims.build_mesh()
    mesh = dims.get_mesh("dp_shard")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device_type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(dist.get_rank())).to(device_type)
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
