"""One worker of training.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent import JobAbortedError, WorkerLostError, WrongSumError


def gradient(weights: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """Small integers, so that sums are exact; every worker can compute those of all."""
    return (7 * weights + rank + step) % 5


def train(rank: int, size: int, elements: int, steps: Path) -> dict[str, int | str]:
    """Trains until a worker is lost, a sum is wrong, or a check word shows one, here or at a worker that aborts the job
    then. The file `steps` says how far the training has come."""
    weights = torch.arange(float(elements)) % 64
    step = 0
    try:
        while True:
            gradients = torch.stack([gradient(weights, each, step) for each in range(size)])
            total = gradients[rank].clone()
            dist.all_reduce(total)
            if not total.equal(gradients.sum(dim=0)):
                return {"wrong": step}
            weights = (weights + total) % 64
            step += 1
            steps.write_text(f"{step}\n")
    except RuntimeError as error:
        if isinstance(error.__cause__, WorkerLostError):
            return {"steps": step, "lost": error.__cause__.rank}
        if isinstance(error.__cause__, WrongSumError):
            return {"steps": step, "seen": str(error.__cause__)}
        if isinstance(error.__cause__, JobAbortedError):
            return {"steps": step, "aborted": str(error.__cause__)}
        raise


def main() -> None:
    folder, (rank, size, elements) = Path(sys.argv[1]), map(int, sys.argv[2:])
    wiresum.torch.register()
    dist.init_process_group("wiresum", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    report = train(rank, size, elements, folder / f"steps{rank}")
    stats = wiresum.torch.stats()
    assert stats.network is not None
    path = {"sharing": stats.network.sharing, "transport": stats.network.transport, "service": stats.service}
    print(json.dumps(report | path))


if __name__ == "__main__":
    main()
