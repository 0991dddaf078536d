"""One rank of the benchmark of time to loss: a process that trains small models, in one way after another.

    begin MODEL WAY SEED    makes a model, its optimizer and the way's hook
    train STEPS             gives the times of start and end, and the bytes over the star's device
    loss                    gives the mean loss of the batches that this rank evaluates

A training is a function of its model, way and seed. All ways of a model start from the same parameters, see the same
batches, and have the same learning rates. Between outer steps ranks differ, and each gives its own loss.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, AdamW, Optimizer

import wiresum.compress as wc
import wiresum.torch
from wiresum.compress.compressor import Trait
from wiresum.compress.ddp_hook import Granularity
from wiresum.compress.memory import memory_of
from wiresum.experiments.adaptive_optimizers import FP32, RATES, SIGNS_RATE
from wiresum.experiments.adaptive_optimizers import METHODS as EXPRESSIONS
from wiresum_lab.benchmarks import models
from wiresum_lab.benchmarks.models import Task
from wiresum_lab.ranks import rank
from wiresum_lab.ranks.rank import main
from wiresum_lab.ranks.ranks import GLOO

OUTER_STEPS = {"outer-steps": wc.IntSGD(32), "outer-steps-8": wc.IntSGD(8)}
"""Ways without DistributedDataParallel, with outer steps after each OUTER_EVERY steps, and their compressors."""
OUTER_EVERY = 20
EVALUATED = 4
"""Batches that each rank evaluates, the same ones at each time and for each seed."""
WARM_UP_STEPS = 10
"""Steps in which the learning rate rises to its value, where it stays, so that no way's rates depend on how many steps
it takes."""
RANK = 2
SLOTS = 256
"""Slots of each group, as many as the default group has."""

WIRESUM, DENSE_16, DENSE_8 = "wiresum", "wiresum-16", "wiresum-8"
DENSE = {DENSE_16: wiresum.torch.Options(bits=16, slots=SLOTS), DENSE_8: wiresum.torch.Options(bits=8, slots=SLOTS)}
"""Options of groups that sum with fewer bits, without compression: the backend's own formats."""
FP16_HOOK, POWERSGD_HOOK = HOOKS = ("gloo-fp16", "gloo-powersgd")
"""PyTorch's own hooks, which run over Gloo here."""


def _name(expression: str) -> str:
    """A word for a method's expression: options and commands are words."""
    return re.sub(r"\W+", "-", expression.lower()).strip("-")


METHODS: dict[str, wc.Compressor] = {_name(text): method for text, method in EXPRESSIONS.items() if text != FP32}
"""The methods of the guide's table of optimizers, over Wiresum."""
TITLES = {
    GLOO: "fp32, Gloo",
    WIRESUM: "fp32, wiresum",
    DENSE_16: "16-bit sums",
    DENSE_8: "8-bit sums",
    **{way: f"an outer step after each {OUTER_EVERY}, {method.bits} bits" for way, method in OUTER_STEPS.items()},
    FP16_HOOK: "PyTorch's fp16 hook, Gloo",
    POWERSGD_HOOK: f"PyTorch's PowerSGD hook, rank {RANK}, Gloo",
    **{_name(text): f"`{text}`" for text in EXPRESSIONS if text != FP32},
}
"""All ways, and how tables call them."""


def has_momentum(way: str) -> bool:
    """Whether the way's memory has momentum, so that the optimizer may not."""
    return way in METHODS and memory_of(METHODS[way].memory).has_momentum


def sgd(parameters: Iterable[torch.nn.Parameter], way: str) -> Optimizer:
    """The norm of SignMajority's result does not depend on the gradient's: it has a rate of its own."""
    signs = isinstance(METHODS.get(way), wc.SignMajority)
    return SGD(parameters, 0.1 * (SIGNS_RATE / RATES["SGD"] if signs else 1), 0.0 if has_momentum(way) else 0.9)


def nesterov(parameters: Iterable[torch.nn.Parameter]) -> Optimizer:
    """The outer optimizer, with less momentum than DiLoCo's 0.9, which is for more outer steps than there are here."""
    return SGD(parameters, lr=0.7, momentum=0.6, nesterov=True)


GPT, CNN, CLICKS = "gpt", "cnn", "clicks"
MODELS: dict[str, tuple[str, Callable[[bool], Task], Callable[[Iterable[torch.nn.Parameter], str], Optimizer]]] = {
    GPT: (
        "GPT, AdamW",
        lambda _: models.gpt(layers=2, width=96, sequences=8),
        lambda parameters, _: AdamW(parameters, 4e-3),
    ),
    CNN: ("CNN, SGD", lambda _: models.cnn(hidden=512, smoothing=0.1), sgd),
    CLICKS: (
        "embeddings, Adagrad",
        lambda sparse: models.clicks(10_000, (256, 256), sparse=sparse),
        lambda parameters, _: Adagrad(parameters, 0.05),
    ),
}
"""For each model its title, the function that makes it with sparse gradients or without, and its optimizer in a way:
0.25, 0.27 and 0.72 million parameters, of the last 0.64 in embeddings."""


def is_refused(model: str, way: str) -> bool:
    """Whether `attach` refuses the way: AdamW has momentum, too."""
    return model == GPT and has_momentum(way)


class Rank(rank.Rank):
    def __init__(self, device: str) -> None:
        # Data is read, and scikit-learn imported, before there is a job: that can hold Python's lock for minutes.
        for _, task_of, _ in MODELS.values():
            task_of(True)
        super().__init__(device, **DENSE)
        self._attachment: wc.Attachment | None = None
        self._outer: wc.OuterSteps | None = None

    def begin(self, model: str, way: str, seed: int) -> None:
        if self._attachment is not None:
            self._attachment.detach()
        torch.manual_seed(seed)
        _, task_of, optimizer_of = MODELS[model]
        self._task = task_of(way not in HOOKS)  # PyTorch's hooks take no sparse gradients
        group = self.groups[GLOO] if way in HOOKS else self.groups.get(way, dist.group.WORLD)
        # With several buckets PowerSGD's hook hangs over Gloo: it sums in callbacks, in another order at each rank.
        bucket_mb = 25 if way == POWERSGD_HOOK else None
        self._model: torch.nn.Module = self._task.model
        if way not in OUTER_STEPS:
            self._model = DistributedDataParallel(self._model, process_group=group, bucket_cap_mb=bucket_mb)
        self._optimizer = optimizer_of(self._model.parameters(), way)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(1, (step + 1) / WARM_UP_STEPS)
        )
        self._batches = torch.Generator().manual_seed(1000 * seed + self.rank)
        fixed = torch.Generator().manual_seed(self.rank)
        self._evaluated = [self._task.draw(fixed) for _ in range(EVALUATED)]
        self._attachment = self._outer = None
        if isinstance(self._model, DistributedDataParallel):
            self._attachment = self._compression(self._model, way, seed, group)
        else:
            self._outer = wc.OuterSteps(self._model, nesterov, OUTER_STEPS[way], every=OUTER_EVERY, seed=seed)

    def _compression(self, model: DistributedDataParallel, way: str, seed: int, group: Any) -> wc.Attachment | None:
        if way == FP16_HOOK:
            model.register_comm_hook(group, fp16_compress_hook)
        elif way == POWERSGD_HOOK:
            state = PowerSGDState(group, RANK, start_powerSGD_iter=2, random_seed=seed)  # 2 is the least
            model.register_comm_hook(state, powerSGD_hook)
        elif way in METHODS:
            method = METHODS[way]
            together: Granularity = "model" if method.trait is Trait.SPARSE else "layer"
            return wc.attach(model, self._optimizer, method, granularity=together, seed=seed)
        return None

    def train(self, steps: int) -> dict[str, Any]:
        before, start_ns = self._bytes(), time.monotonic_ns()
        for _ in range(steps):
            self._optimizer.zero_grad()
            inputs, targets = self._task.draw(self._batches)
            self._task.criterion(self._model(inputs), targets).backward()
            self._optimizer.step()
            self._schedule.step()
            if self._outer is not None:
                self._outer.step()
        end_ns = time.monotonic_ns()
        sent, received = (after - earlier for after, earlier in zip(self._bytes(), before, strict=True))
        return {"start_ns": start_ns, "end_ns": end_ns, "bytes_sent": sent, "bytes_received": received}

    def loss(self) -> float:
        with torch.no_grad():
            return statistics.fmean(float(self._task.loss(batch)) for batch in self._evaluated)


if __name__ == "__main__":
    main(Rank)
