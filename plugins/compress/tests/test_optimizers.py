"""Every optimizer of `torch.optim` with the compression that the guide recommends: it trains as well as without, or is
refused. The classes are enumerated: one that a later PyTorch adds has no entry in OPTIONS, and fails here until
somebody has checked it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import wiresum.compress as wc
from wiresum_lab.ranks.cluster import Cluster

FOUND = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.5}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}],
    "Adam": [{"lr": 3e-3}],
    "AdamW": [{"lr": 3e-3}, {"lr": 3e-3, "amsgrad": True}],
    "Adamax": [{"lr": 5e-3}],
    "NAdam": [{"lr": 2e-3}],
    "RAdam": [{"lr": 1e-2}],
    "Adagrad": [{"lr": 2e-2}],
    "Adadelta": [{"lr": 1.0}],
    "Adafactor": [{"lr": 3e-2}],
    "ASGD": [{"lr": 0.5}],
    "RMSprop": [{"lr": 2e-3}, {"lr": 1e-3, "momentum": 0.5, "centered": True}],
    "Muon": [{"lr": 2e-2}],
}
"""Rates with which each optimizer trains without compression."""
REFUSED = {"LBFGS": "curvature", "Rprop": "sign of each value"}
SPARSE_ONLY = {"SparseAdam"}
STEPS = 60
WARM_UP_STEPS = 10
APART = {16: 0.01, 8: 0.06}
"""The relative difference allowed between the last losses with and without compression, by bits."""


def network(biased: bool) -> torch.nn.Sequential:
    torch.manual_seed(0)
    sizes = [(20, 32), (32, 32), (32, 5)]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in sizes:
        layers += [torch.nn.Linear(inputs, outputs, bias=biased), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def examples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of very different sizes, with labels that are a function of them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 20, generator=generator) * torch.logspace(-1.5, 0.5, 20)
    teacher = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs @ teacher).argmax(1)


def last_loss(rank: int, kind: str, options: dict[str, Any], method: wc.Compressor | None) -> float:
    """The loss after STEPS steps with two groups of parameters, a learning rate that rises from zero, weight decay, and
    gradients of two accumulated passes."""
    model = DistributedDataParallel(network(biased=kind != "Muon"), bucket_cap_mb=0.005)
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": options["lr"] / 2}, {"params": others}]
    decay = {"weight_decay": 1e-3}
    optimizer = getattr(torch.optim, kind)(groups, **options, **decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / WARM_UP_STEPS))
    attachment = None if method is None else wc.attach(model, optimizer, method)
    loss_of = torch.nn.functional.cross_entropy
    for step in range(STEPS):
        parts = [examples(1000 + 100 * step + 10 * rank + part, 16) for part in range(2)]
        optimizer.zero_grad()
        with model.no_sync():
            (loss_of(model(parts[0][0]), parts[0][1]) / 2).backward()
        (loss_of(model(parts[1][0]), parts[1][1]) / 2).backward()
        optimizer.step()
        schedule.step()
    assert attachment is None or attachment.report().steps == STEPS
    inputs, labels = examples(7, 1000)
    with torch.no_grad():
        return float(loss_of(model.module(inputs), labels))


def losses(rank: int, size: int, kind: str, options: dict[str, Any]) -> dict[int, float]:
    """The losses by bits: 0 means without compression, and -1 before training."""
    inputs, labels = examples(7, 1000)
    with torch.no_grad():
        before = float(torch.nn.functional.cross_entropy(network(biased=kind != "Muon")(inputs), labels))
    methods: dict[int, wc.Compressor | None] = {0: None, **{bits: wc.IntDIANA(bits=bits) for bits in APART}}
    return {-1: before, **{bits: last_loss(rank, kind, options, method) for bits, method in methods.items()}}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind in FOUND for options in OPTIONS.get(kind, [])], ids=str
)
def test_the_compression_recommended_first_trains_as_fp32_does(
    switched: Cluster, kind: str, options: dict[str, Any]
) -> None:
    for mine in switched.run(losses, kind, options):
        assert mine[0] < 0.8 * mine[-1], "it trains without compression"
        for bits, part in APART.items():
            assert mine[bits] == pytest.approx(mine[0], rel=part), mine


def test_every_optimizer_of_this_pytorch_is_tested_or_refused() -> None:
    unknown = set(FOUND) - set(OPTIONS) - set(REFUSED) - SPARSE_ONLY
    assert not unknown, "does it train with compressed gradients? Give it an entry in OPTIONS, or let attach refuse it"


def attempts(rank: int, size: int) -> dict[str, str]:
    texts = {}
    for kind in REFUSED:
        model = DistributedDataParallel(network(biased=True))
        optimizer = getattr(torch.optim, kind)(model.parameters())
        try:
            wc.attach(model, optimizer, wc.IntDIANA(bits=16))
        except ValueError as error:
            texts[kind] = str(error)
        # The refused attempts left no hooks.
        wc.attach(model, torch.optim.AdamW(model.parameters()), wc.IntDIANA(bits=16))
    return texts


def test_optimizers_that_need_exact_gradients_are_refused_with_the_reason(switched: Cluster) -> None:
    for texts in switched.run(attempts):
        for kind, reason in REFUSED.items():
            assert texts[kind].startswith(f"{kind} does not train with compressed gradients: ")
            assert reason in texts[kind]


def sparse_adam(rank: int, size: int) -> None:
    """Trains an embedding, whose sparse gradients are not compressed."""
    trained = []
    for method in (None, wc.IntDIANA(bits=8)):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.EmbeddingBag(50, 8, sparse=True))
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.05)
        if method is not None:
            wc.attach(model, optimizer, method)
        for step in range(5):
            words = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            model(words).square().sum().backward()
            optimizer.step()
        trained.append(model.module.weight.detach())
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-4, atol=1e-6)


def test_sparse_adam_gets_uncompressed_gradients(switched: Cluster) -> None:
    switched.run(sparse_adam)
