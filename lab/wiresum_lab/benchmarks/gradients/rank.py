"""One rank of the benchmark of gradients: a process with a group for each precision, and a group of Gloo.

train MODEL GROUP STEPS         trains from the same start, with the gradients that this group sums
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.benchmarks.models import TASKS
from wiresum_lab.ranks.rank import Rank, main

PRECISIONS = ("block", "adaptive", "exact")
LEARNING_RATE = 1e-3


class TrainingRank(Rank):
    def __init__(self, device: str) -> None:
        super().__init__(device, **{each: wiresum.torch.Options(precision=each, sparse=False) for each in PRECISIONS})

    def train(self, model: str, group: str, steps: int) -> dict[str, Any]:
        """Trains from the start. Returns the loss before each step, the number of parameters, and the increase of the
        group's counters."""
        torch.manual_seed(0)
        task = TASKS[model]()
        parameters = list(task.model.parameters())
        optimizer = torch.optim.AdamW(parameters, LEARNING_RATE)
        generator = torch.Generator().manual_seed(self.rank)
        losses = []
        before = self._network(group)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = task.loss(task.draw(generator))
            loss.backward()
            losses.append(float(loss.detach()))
            self._sum_gradients(parameters, group)
            optimizer.step()
        after = self._network(group)
        names = () if after is None else ("bytes_sent", "chunks_exact", "chunks_wide")
        return {
            "losses": losses,
            "parameters": sum(parameter.numel() for parameter in parameters),
            **{name: getattr(after, name) - getattr(before, name) for name in names},
        }

    def _sum_gradients(self, parameters: list[torch.nn.Parameter], group: str) -> None:
        """Averages all gradients in one tensor, the last layer first, as in a bucket of DDP."""
        gradients = [parameter.grad for parameter in reversed(parameters) if parameter.grad is not None]
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(bucket, group=self.groups[group])
        bucket /= self.size
        for gradient, part in zip(gradients, bucket.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


if __name__ == "__main__":
    main(TrainingRank)
