"""Fully sharded data parallelism, old and new API: a few steps give the same parameters as in one process."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.ranks.cluster import runs_in

STEPS = 4
BATCH = 12


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.Linear(33, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5)
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 20, generator=generator), torch.randint(0, 5, (BATCH,), generator=generator)


def train(model: torch.nn.Module, rank: int, size: int, loss_scale: float = 1.0) -> list[float]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        features, labels = batch(step)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features[rank::size]), labels[rank::size])
        (loss * loss_scale).backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def trained_alone(loss_scale: float = 1.0) -> torch.nn.Sequential:
    model = network()
    train(model, 0, 1, loss_scale)
    return model


@pytest.mark.parametrize("divide_factor", [None, 7.0])
@runs_in("trio")
def test_fully_shard_matches_one_process(rank: int, size: int, divide_factor: float | None) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor

    model = network()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    for module in model.modules():
        if divide_factor and isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(divide_factor)  # the factor turns sums into PREMUL_SUMs
    before = wiresum.torch.stats()
    train(model, rank, size)
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    alone = trained_alone(size / divide_factor if divide_factor else 1.0)
    for parameter, expected in zip(whole, alone.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
    after = wiresum.torch.stats()
    for name in ("all_gather_single", "reduce_scatter_single"):
        assert after.collectives_network[name] > before.collectives_network[name]
    assert after.collectives_gloo == before.collectives_gloo


@runs_in("trio")
def test_fsdp_matches_one_process(rank: int, size: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        copy.deepcopy(network()), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), device_id=torch.device("cpu")
    )
    before = wiresum.torch.stats()
    train(model, rank, size)
    with FullyShardedDataParallel.summon_full_params(model):
        for parameter, expected in zip(model.parameters(), trained_alone().parameters(), strict=True):
            torch.testing.assert_close(parameter.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    model.clip_grad_norm_(1.0)
    after = wiresum.torch.stats()
    assert after.collectives_network["reduce_scatter_single"] > before.collectives_network["reduce_scatter_single"]


@runs_in("trio")
def test_zero_redundancy_optimizer_matches_one_process(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(network())
    optimiser = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        features, labels = batch(step)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(features[rank::size]), labels[rank::size]).backward()
        optimiser.step()
    for parameter, expected in zip(model.parameters(), trained_alone().parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)
    assert dist.get_backend() == "wiresum"
