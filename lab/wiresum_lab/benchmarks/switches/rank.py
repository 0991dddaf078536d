"""One rank of a benchmark that compares switches, or ways to use them: a process with a group for each, and for Gloo.

    prepare ELEMENTS BLOCK SPARSITY DRAW      chooses the tensor's blocks, the same at all ranks

and the commands of `SummingRank`. A group is a name of the arguments NAME=OPTIONS (`cases.choice`), or "gloo". Values
are 1 to 3, so that every sum is exact in any order of additions; sums of up to 31 ranks are exact with 8 bits, too.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

import wiresum.torch
from wiresum_lab.benchmarks.sparse.rank import chosen_blocks
from wiresum_lab.ranks.rank import SummingRank, main


class Rank(SummingRank):
    def __init__(self, device: str, *choices: str) -> None:
        pairs = (choice.split("=", 1) for choice in choices)
        super().__init__(device, **{name: wiresum.torch.Options(**json.loads(options)) for name, options in pairs})

    def prepare(self, elements: int, block: int, sparsity: float, draw: int) -> None:
        present = chosen_blocks(-(-elements // block), "aligned", sparsity, draw, 0)
        ones = torch.from_numpy(np.repeat(present, block)[:elements].astype(np.float32))
        values = [rank % 3 + 1 for rank in range(self.size)]
        self.own, self.expected = ones * values[self.rank], ones * sum(values)
        self.tensor = torch.empty(elements)

    def report(self) -> dict[str, Any]:
        return super().report() | {"retransmissions": self._counted("retransmissions")}


if __name__ == "__main__":
    main(Rank)
