"""Trains with DDP, and goes on without a worker that is lost (docs/torch.md).

A store that no worker has, and then the workers, each with RANK and WORLD_SIZE:

python -c 'import torch.distributed as d, time; s = d.TCPStore("0.0.0.0", 29500, is_master=True); time.sleep(1e7)'
WIRESUM_SWITCH=... RANK=... WORLD_SIZE=4 python lost_worker.py --store HOST:29500

Without --store the workers are torchrun's, and rank 0 cannot be lost.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import WorkerLostError

BATCH = 24
"""Samples of a step, at all workers together."""


def agree(module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> int:
    """Gives all workers the state of the one that is most advanced, and returns its step: one may have finished the
    step in which the worker was lost, and another may not."""
    steps = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, torch.tensor([step]))
    most = int(torch.cat(steps).argmax())
    # Objects, since an optimizer that has not made its first step has fewer tensors than one that has.
    state = [module.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, src=most)
    module.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return int(steps[most])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """A step's samples are dealt among as many workers as there are."""
    random = torch.Generator().manual_seed(step)
    samples = torch.randn(BATCH, 16, generator=random)[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(samples), samples.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    return loss.item()


def train(module: nn.Module, optimizer: torch.optim.Optimizer, until: int) -> None:
    """A worker may be lost at any moment. Whatever the others are doing then fails, and they begin again from here."""
    step = 0
    lost: list[int] = []
    while step < until:
        try:
            if lost:
                dist.shrink_group(lost)
                lost = []
            step = agree(module, optimizer, step)
            # A new group needs a new DDP.
            model = DistributedDataParallel(module)
            while step < until:
                loss = train_step(model, optimizer, step)
                step += 1
                if dist.get_rank() == 0:
                    print(f"step {step}, {dist.get_world_size()} workers: loss {loss:.4f}", flush=True)
        except dist.DistBackendError as error:
            if not isinstance(error.__cause__, WorkerLostError):
                raise
            lost = [error.__cause__.rank]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", type=int, default=300, metavar="STEP")
    parser.add_argument("--store", metavar="HOST:PORT")
    options = parser.parse_args()
    if options.store:
        host, port = options.store.split(":")
        store = dist.TCPStore(host, int(port))  # type: ignore[attr-defined]
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("wiresum", store=store, rank=rank, world_size=size)
    else:
        dist.init_process_group("wiresum")
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    train(module, optimizer, options.until)
    print(f"weights {wiresum.torch.fingerprint(module, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
