"""Measurements without a network: the error of means of real gradients, and the time to add a micro-batch."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wiresum.agent._native import DigitSums
from wiresum_lab.benchmarks.models import TASKS

MICROBATCHES = 8
ROUNDS = 20
LEARNING_RATE = 1e-3


class Sum:
    """A reproducible sum of micro-batches, all of `elements` elements."""

    def __init__(self, elements: int, words: int) -> None:
        self._elements, self._sums = elements, DigitSums(MICROBATCHES, words)
        self._lanes = np.empty(self._sums.lanes(elements), np.int32)
        self._extents = np.zeros((2, -(-elements // DigitSums.BLOCK)), np.uint8)

    def add(self, part: torch.Tensor) -> None:
        self._sums.add(part.numpy(), self._extents[0], self._extents[1], self._lanes)

    def mean(self) -> tuple[torch.Tensor, int]:
        """The mean, and how many words a worker would send for it."""
        ends, depths = self._extents
        words = np.empty(self._sums.packed(ends, depths, self._elements), np.int32)
        self._sums.pack(ends, depths, ends, depths, self._lanes, self._elements, words)
        mean = torch.empty(self._elements)
        self._sums.join(ends, depths, words, np.empty(0, np.int32), MICROBATCHES, mean.numpy())
        return mean, words.size


@dataclass
class Errors:
    """The errors of a training's gradients, against the exact means."""

    model: str
    way: str
    error_max: float
    """The L2 norm of the error, divided by that of the gradient, in the worst step."""
    lost: float
    """Fraction of the nonzero elements that became 0."""
    words: float
    """Words sent for each element."""


def errors_of(model: str, steps: int) -> list[Errors]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    task = TASKS[model]()
    parameters = list(task.model.parameters())
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)
    ways = {"fp32": -1, "1 word": 1, "2 words": 2, "all words": 0}
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(steps):
        batches = [torch.autograd.grad(task.loss(task.draw(generator)), parameters) for _ in range(MICROBATCHES)]
        means = {way: _means(batches, words) for way, words in ways.items()}
        exact, elements = means["all words"][0], sum(parameter.numel() for parameter in parameters)
        for way, (mean, sent) in means.items():
            error = float((mean - exact).double().norm() / exact.double().norm())
            lost = int(((mean == 0) & (exact != 0)).sum()) / int((exact != 0).sum())
            found[way].append((error, lost, sent / elements))
        for parameter, gradient in zip(parameters, exact.split([each.numel() for each in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
    return [
        Errors(model, way, max(each[0] for each in rows), *(statistics.fmean(each[i] for each in rows) for i in (1, 2)))
        for way, rows in found.items()
    ]


def _means(batches: Sequence[Sequence[torch.Tensor]], words: int) -> tuple[torch.Tensor, int]:
    """The mean of all parameters' gradients in one tensor, and the number of words sent; `words` -1 adds floats."""
    means, sent = [], 0
    for parts in zip(*batches, strict=True):
        flat = [part.flatten() for part in parts]
        if words < 0:
            means.append(functools.reduce(torch.add, flat) / MICROBATCHES)
            sent += means[-1].numel()
            continue
        total = Sum(flat[0].numel(), words)
        for part in flat:
            total.add(part)
        mean, count = total.mean()
        means.append(mean)
        sent += count
    return torch.cat(means), sent


def accumulate(words: int, elements: int) -> dict[str, float]:
    """Seconds to add a micro-batch of normal numbers, by sums of digits and by PyTorch's own add_. They are the
    shortest of many rounds, which other work on the machine affects least."""
    torch.set_num_threads(1)
    parts = [torch.randn(elements) * 1e-3 for _ in range(MICROBATCHES)]
    plain = torch.zeros(elements)
    seconds: dict[str, list[float]] = {"digits": [], "add_": []}
    for _ in range(ROUNDS):
        total = Sum(elements, words)
        for part in parts:
            begin = time.perf_counter()
            total.add(part)
            middle = time.perf_counter()
            plain.add_(part)
            seconds["add_"].append(time.perf_counter() - middle)
            seconds["digits"].append(middle - begin)
    return {name: min(found) for name, found in seconds.items()}
