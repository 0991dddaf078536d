"""One rank of the embedding experiment: trains the same recommendation model over wiresum and over Gloo.

    train GROUP STEPS FOLDER      gives times (CLOCK_MONOTONIC), losses, bytes on the link

Parameters go into files, so that their comparison does not use the system under test.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wiresum_lab.benchmarks.models import SEED, ClickModel, Clicks
from wiresum_lab.ranks import rank

RATE = 1.0


class Rank(rank.Rank):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        torch.use_deterministic_algorithms(True)
        self.groups["wiresum"] = dist.group.WORLD

    def train(self, name: str, steps: int, folder: Path) -> dict[str, Any]:
        torch.manual_seed(SEED)
        network = ClickModel()
        model = DistributedDataParallel(network, process_group=self.groups[name])
        optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
        losses, times_ns = [], [time.monotonic_ns()]
        before = self._bytes()
        clicks, generator = Clicks(), torch.Generator().manual_seed(SEED + 1 + self.rank)
        for _ in range(steps):
            entries, clicked = clicks.draw(generator)
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(entries), clicked)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            times_ns.append(time.monotonic_ns())
        after = self._bytes()
        torch.save([p.detach() for p in network.parameters()], folder / f"{name}-{self.rank}.pt")
        return {
            "times_ns": times_ns,
            "losses": losses,
            "bytes_sent": after[0] - before[0],
            "bytes_received": after[1] - before[1],
        }


if __name__ == "__main__":
    rank.main(Rank)
