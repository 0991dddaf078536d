"""One rank of the benchmark of precision: a process with a group for each precision, and a group of Gloo.

    prepare KIND ELEMENTS DRAW      chooses the tensor's values

and the commands of `SummingRank`. A group is a value of WIRESUM_PRECISION, or "gloo".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import wiresum.torch
from wiresum_lab.ranks.rank import SummingRank, main

PRECISIONS = ("block", "adaptive", "exact")
UNIT = 2.0**-24
MIXED_EVERY = 20


def normal(generator: torch.Generator, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=generator)


def heavy_tailed(generator: torch.Generator, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=generator) / torch.randn(elements, generator=generator) ** 3


def packed(generator: torch.Generator, elements: int) -> torch.Tensor:
    """Values of four scales side by side, like losses, counts, rates and tiny numbers."""
    scales = torch.tensor([1.0, 1e9, 1e-6, 1e-30])
    return torch.randn(elements, generator=generator) * scales.repeat(elements // 4 + 1)[:elements]


def layers(generator: torch.Generator, elements: int) -> torch.Tensor:
    """Normal numbers, like a model's gradients, with one element in twenty from a layer of a smaller scale."""
    values = torch.randn(elements, generator=generator)
    values[: elements // MIXED_EVERY] *= 1e-6
    return values


def any_bits(generator: torch.Generator, elements: int) -> torch.Tensor:
    bits = torch.randint(-(2**31), 2**31, (elements,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    return torch.where(values.isfinite(), values, torch.zeros(())).clamp(-1e37, 1e37)


KINDS: dict[str, Callable[[torch.Generator, int], torch.Tensor]] = {
    kind.__name__: kind for kind in (normal, heavy_tailed, packed, layers, any_bits)
}


class Draw:
    """The tensors of all ranks in one repetition."""

    def __init__(self, kind: str, elements: int, draw: int, ranks: int) -> None:
        self.inputs = [
            KINDS[kind](torch.Generator().manual_seed(1000 * draw + rank), elements) for rank in range(ranks)
        ]
        self.exact = torch.stack(self.inputs).double().sum(0)
        self.magnitudes = torch.stack(self.inputs).double().abs().sum(0)

    def report(self, found: torch.Tensor) -> dict[str, Any]:
        """The errors of a sum, against the sum in float64. The unit of an element's error is 2^-24 of the sum of its
        terms' magnitudes: one addition has an error of 1 at most."""
        errors = (found.double() - self.exact).abs() / (UNIT * self.magnitudes + 2.0**-149)
        return {
            "wrong_elements": 0,
            "error_max": float(errors.max()),
            "lost": float((errors > 1 / UNIT * 0.5).double().mean()),
        }


class Rank(SummingRank):
    def __init__(self, device: str) -> None:
        super().__init__(device, **{each: wiresum.torch.Options(precision=each) for each in PRECISIONS})
        self.draw: Draw | None = None

    def prepare(self, kind: str, elements: int, draw: int) -> None:
        self.draw = Draw(kind, elements, draw, self.size)
        self.own, self.tensor = self.draw.inputs[self.rank], torch.empty(elements)

    def report(self) -> dict[str, Any]:
        assert self.draw is not None, "prepare() was called"
        return self.summed | self.draw.report(self.tensor)


if __name__ == "__main__":
    main(Rank)
