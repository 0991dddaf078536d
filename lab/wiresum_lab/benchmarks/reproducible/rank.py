"""One rank of the benchmark of reproducible gradients.

prepare ELEMENTS DRAW           makes gradients, and adds this rank's micro-batches
go WAY START_NS                 averages the gradients at that time (CLOCK_MONOTONIC)

A way is a number of words, 0 for all, or "fp32": one all-reduce of the floats.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.torch.reproducibility import Reproducible
from wiresum_lab.ranks.rank import Rank, main

MICROBATCHES = 8
WAYS = ("fp32", "1", "2", "0")


class ReproducibleRank(Rank):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.sums: dict[str, tuple[torch.nn.Parameter, Reproducible]] = {}
        self.tensor = torch.empty(0)

    def prepare(self, elements: int, draw: int) -> None:
        if not self.sums:
            for way in WAYS[1:]:
                weights = torch.nn.Parameter(torch.zeros(elements))
                model = torch.nn.ParameterList([weights])
                self.sums[way] = weights, wiresum.torch.reproducible(model, MICROBATCHES, words=int(way) or None)
        generator = torch.Generator().manual_seed(1000 * draw + self.rank)
        mine = self.sums[WAYS[1]][1].mine()
        parts = [torch.randn(elements, generator=generator) * 1e-3 for _ in mine]
        self.tensor = torch.stack(parts).sum(0)
        for weights, _ in self.sums.values():
            for part in parts:
                (weights * part).sum().backward()  # the gradient of this product is the part

    def go(self, way: str, start_ns: int) -> dict[str, Any]:
        before = wiresum.torch.stats().network
        assert before is not None
        sent = before.bytes_sent
        time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
        begin_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        if way == "fp32":
            dist.all_reduce(self.tensor)
            self.tensor /= MICROBATCHES
        else:
            self.sums[way][1].reduce()
        end_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns() - cpu_ns
        after = wiresum.torch.stats().network
        assert after is not None
        return {"start_ns": begin_ns, "end_ns": end_ns, "cpu_ns": cpu_ns, "bytes_sent": after.bytes_sent - sent}


if __name__ == "__main__":
    main(ReproducibleRank)
