"""DeepSpeed on CPUs: it takes the process group that there is, and its own names for collectives lead there.

WIRESUM_SWITCH=... torchrun --nproc-per-node 2 deepspeed_cpu.py
"""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import wiresum.torch

STEPS, BATCH = 48, 16


def main() -> None:
    dist.init_process_group("wiresum")  # the one line, before DeepSpeed's initialize
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        batch = torch.randn(BATCH, 16, generator=generator)
        loss = nn.functional.mse_loss(engine(batch), batch.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
        stats = wiresum.torch.stats(engine.seq_data_parallel_group)  # a copy of the default group
        if dist.get_rank() == 0 and (step + 1) % 16 == 0:
            print(f"loss {loss.item():.4f}; {stats.bytes_reduced} bytes summed in the network")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
