"""One rank of the embedding experiment: trains the same recommendation model over wiresum and over Gloo.

    train GROUP STEPS FOLDER      gives times (CLOCK_MONOTONIC), losses, bytes on the link

Parameters go into files, so that their comparison does not use the system under test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wiresum_lab.ranks import rank

SEED = 7
FIELDS = 4  # features of an impression: user, item, page, query
ENTRIES = 50_000  # entries of each field
WIDTH = 16
BATCH = 128  # impressions a step and worker
ZIPF = 1.1
RATE = 1.0


class ClickModel(nn.Module):
    """The probability of a click from sparse features: an embedding for each field and two dense layers on top.

    Of its 3.2 million parameters, a step touches those of the entries that its impressions name. The activation is
    tanh: at the kink of a ReLU, the last bit of a rounding would decide about the gradient of a whole row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(ENTRIES, WIDTH, sparse=True) for _ in range(FIELDS))
        self.top = nn.Sequential(nn.Linear(FIELDS * WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, entries: torch.Tensor) -> torch.Tensor:
        vectors = [embedding(entries[:, field]) for field, embedding in enumerate(self.embeddings)]
        logits: torch.Tensor = self.top(torch.cat(vectors, 1)).squeeze(1)
        return logits


class Clicks:
    """Generated impressions, whose entries have Zipf's distribution like words, and clicks that depend on the entries'
    hidden qualities."""

    def __init__(self, rank: int) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._quality = torch.randn(FIELDS, ENTRIES, generator=generator)
        popularity = torch.arange(1, ENTRIES + 1, dtype=torch.float64) ** -ZIPF
        self._cumulative = (popularity / popularity.sum()).cumsum(0)
        self._names = torch.stack([torch.randperm(ENTRIES, generator=generator) for _ in range(FIELDS)], 1)
        self._rank = rank

    def steps(self, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(SEED + 1 + self._rank)
        for _ in range(count):
            drawn = torch.rand(BATCH, FIELDS, dtype=torch.float64, generator=generator)
            places = torch.searchsorted(self._cumulative, drawn).clamp_(max=ENTRIES - 1)
            entries = self._names.gather(0, places)
            taste = self._quality.t().gather(0, entries).sum(1)
            clicked = torch.rand(BATCH, generator=generator) < torch.sigmoid(2 * taste)
            yield entries, clicked.float()


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
        for entries, clicked in Clicks(self.rank).steps(steps):
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
