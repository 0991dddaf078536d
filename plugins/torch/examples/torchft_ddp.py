"""Trains with torchft: workers may be lost at any time, and join at any time (docs/torch.md).

torchft_lighthouse --min_replicas 2
WIRESUM_SWITCH=... TORCHFT_LIGHTHOUSE=http://HOST:29510 torchrun --standalone --nproc-per-node 1 torchft_ddp.py

The second line once for each worker, and again for one that was lost.
"""

import argparse
import time

import torch
import torchft
from torch import nn

import wiresum.torch
from wiresum.torch.torchft import ProcessGroupWiresum

BATCH = 24
MIN_WORKERS = 2
"""The number of workers that the lighthouse is told."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until", type=int, default=1000, metavar="STEP")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="in each step")
    parser.add_argument("--name", default="", help="of this worker, in the lighthouse's log")
    options = parser.parse_args()
    module = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 1))
    adam = torch.optim.AdamW(module.parameters(), lr=0.01)

    def state() -> dict[str, object]:
        return {"model": module.state_dict(), "optimizer": adam.state_dict()}

    def load(saved: dict[str, object]) -> None:
        module.load_state_dict(saved["model"])  # type: ignore[arg-type]
        adam.load_state_dict(saved["optimizer"])  # type: ignore[arg-type]

    group = ProcessGroupWiresum()
    manager = torchft.Manager(
        pg=group,
        min_replica_size=MIN_WORKERS,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"{options.name}_",
    )
    model = torchft.DistributedDataParallel(manager, module)
    optimizer = torchft.Optimizer(manager, adam)
    while manager.current_step() < options.until:
        optimizer.zero_grad()  # here the manager asks who takes part
        step, rank, size = manager.current_step(), manager.participating_rank(), manager.num_participants()
        samples = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
        mine = samples[rank::size] if rank is not None else samples[:1]  # a worker that catches up adds nothing
        loss = nn.functional.mse_loss(model(mine), mine.sum(1, keepdim=True))
        time.sleep(options.pause)
        loss.backward()  # means over the participants
        optimizer.step()  # the step is taken if all sums came
        verdict = "committed" if manager.current_step() > step else "repeated"
        step = manager.current_step()
        print(f"{time.monotonic():.3f} step {step} of {size} workers {verdict}: loss {loss.item():.4f}", flush=True)
    print(f"weights {wiresum.torch.fingerprint(module, adam)}", flush=True)
    manager.shutdown(wait=False)
    group.shutdown()


if __name__ == "__main__":
    main()
