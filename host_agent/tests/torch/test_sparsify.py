"""Sparsifiers: what each chooses, and that over steps nothing of a gradient is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from cluster import Cluster
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.torch.sparsify import (
    BlockRandomK,
    BlockThreshold,
    BlockTopK,
    BlockTopKRatio,
    BucketBlocks,
    Sparsifier,
    SparsifierState,
    attach,
)

# Each sparsifier by itself.


def blocks_of(gradient: list[float], *, parameters: list[float] | None = None, rank: int = 0) -> BucketBlocks:
    values = torch.tensor(gradient)
    owners = [torch.tensor(parameters) if parameters else torch.ones_like(values)]
    return BucketBlocks(values, owners, block=2, draw=(5,), rank=rank)


GRADIENT = [3.0, 4.0, 0.0, 1.0, -6.0, 8.0, 0.5]


def test_norms_are_of_blocks_and_the_last_one_may_be_shorter() -> None:
    blocks = blocks_of(GRADIENT)
    assert len(blocks) == 4
    assert blocks.gradient_norms().tolist() == [5, 1, 10, 0.5]


def test_an_element_that_is_not_finite_makes_its_block_the_largest() -> None:
    norms = blocks_of([1.0, float("nan"), 1.0, 1.0, float("-inf"), 0.0]).gradient_norms()
    assert norms.isinf().tolist() == [True, False, True]


def test_top_k_takes_the_largest_and_at_least_one() -> None:
    assert BlockTopK(0.5).choose(blocks_of(GRADIENT)).tolist() == [True, False, True, False]
    assert BlockTopK(0.01).choose(blocks_of(GRADIENT)).tolist() == [False, False, True, False]


def test_top_k_ratio_measures_by_the_parameters() -> None:
    blocks = blocks_of(GRADIENT, parameters=[3.0, 4.0, 0.0, 0.1, 60.0, 80.0, 0.0])
    assert BlockTopKRatio(0.5).choose(blocks).tolist() == [False, True, False, True]


def test_threshold_takes_what_reaches_it_and_maybe_nothing() -> None:
    assert BlockThreshold(5.0).choose(blocks_of(GRADIENT)).tolist() == [True, False, True, False]
    assert not BlockThreshold(11.0).choose(blocks_of(GRADIENT)).any()


def test_random_k_takes_the_same_blocks_everywhere_unless_told_otherwise() -> None:
    chosen = [BlockRandomK(0.1).choose(blocks_of([1.0] * 400, rank=rank)) for rank in range(2)]
    assert torch.equal(*chosen)
    assert chosen[0].sum() == 20
    own = [BlockRandomK(0.1, independent=True).choose(blocks_of([1.0] * 400, rank=rank)) for rank in range(2)]
    assert not torch.equal(*own)


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5, float("nan")])
def test_a_ratio_that_is_no_share_is_refused(ratio: float) -> None:
    for kind in (BlockTopK, BlockTopKRatio, BlockRandomK):
        with pytest.raises(ValueError, match="share"):
            kind(ratio)
    with pytest.raises(ValueError, match="threshold"):
        BlockThreshold(-1.0)


# In DDP.

SPARSIFIERS: list[Sparsifier] = [
    BlockTopK(0.05),
    BlockTopKRatio(0.05),
    BlockThreshold(0.05),
    BlockRandomK(0.05),
    BlockRandomK(0.05, independent=True),
]


def network() -> torch.nn.Module:
    """Several buckets, with parameters that do not begin where blocks do."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(50, 701), torch.nn.Tanh(), torch.nn.Linear(701, 10))


def wrapped(group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    return DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.1)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 50, generator=generator)
    return torch.nn.functional.mse_loss(model(inputs), inputs[:, :10].sin())


def train(model: torch.nn.Module, rank: int, steps: range, rate: float = 0.2) -> list[float]:
    losses = []
    for step in steps:
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_of(model, rank, step)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * parameter.grad)
        losses.append(float(loss))
    return losses


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def everybody(tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
    gathered = [torch.zeros_like(tensor) for _ in range(size)]
    dist.all_gather(gathered, tensor)
    return gathered


def residual_of(state: SparsifierState, model: DistributedDataParallel) -> torch.Tensor:
    residuals = state.state_dict()["residuals"]
    return torch.cat([residuals[name].reshape(-1) for name, _ in model.module.named_parameters()])


def conserves(rank: int, size: int, sparsifier: Sparsifier) -> None:
    model = wrapped()
    alone = network()
    state = attach(model, sparsifier)
    before = torch.zeros_like(flat(alone))
    for step in range(3):
        alone.load_state_dict(model.module.state_dict())
        for parameter in [*model.parameters(), *alone.parameters()]:
            parameter.grad = None
        loss_of(model, rank, step).backward()
        loss_of(alone, rank, step).backward()
        mine = torch.cat([p.grad.reshape(-1) for p in alone.parameters() if p.grad is not None])
        arrived = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        held = residual_of(state, model)
        sent = mine + before - held
        # Each element is either sent or held back, as it is: never a part of it.
        assert ((sent == 0) | (held == 0)).all()
        torch.testing.assert_close(arrived, torch.stack(everybody(sent, size)).mean(0), rtol=1e-5, atol=1e-6)
        before = held
    assert 0 < state.blocks_sent < state.blocks


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_what_arrives_and_what_is_held_back_make_up_the_gradient(trio: Cluster, sparsifier: Sparsifier) -> None:
    trio.run(conserves, sparsifier)


def learns(rank: int, size: int, sparsifier: Sparsifier) -> None:
    model = wrapped()
    attach(model, sparsifier)
    losses = train(model, rank, range(60))
    dense = wrapped()
    dense_losses = train(dense, rank, range(60))
    assert losses[-1] < dense_losses[0] / 2
    assert all(torch.equal(other, flat(model)) for other in everybody(flat(model), size))


@pytest.mark.parametrize("sparsifier", [BlockTopK(0.1), BlockRandomK(0.2)], ids=repr)
def test_training_gets_there_with_a_tenth_of_the_blocks(trio: Cluster, sparsifier: Sparsifier) -> None:
    trio.run(learns, sparsifier)


def skips_blocks(rank: int, size: int) -> None:
    model = wrapped()
    attach(model, BlockRandomK(0.1))
    train(model, rank, range(2))  # buckets are made anew after the first step
    before = wiresum.torch.stats().network
    train(model, rank, range(2, 5))
    after = wiresum.torch.stats().network
    assert before is not None and after is not None
    blocks = flat(model).numel() / 360
    skipped = after.sparse.blocks_skipped - before.sparse.blocks_skipped
    assert skipped > 3 * 0.8 * blocks
    assert after.sparse.bytes_saved > before.sparse.bytes_saved


def test_blocks_that_nobody_chose_are_not_sent(trio: Cluster) -> None:
    trio.run(skips_blocks)


def matches_gloo(rank: int, size: int) -> None:
    results = []
    for group in (None, dist.new_group(backend="gloo")):
        model = wrapped(group)
        attach(model, BlockRandomK(0.2), block=100, seed=9)
        train(model, rank, range(6))
        results.append(flat(model))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_sums_are_those_of_gloo(trio: Cluster) -> None:
    trio.run(matches_gloo)


def resumes(rank: int, size: int) -> None:
    through = wrapped()
    state = attach(through, BlockTopK(0.1))
    train(through, rank, range(5))
    saved: dict[str, Any] = {"model": {k: v.clone() for k, v in through.module.state_dict().items()}}
    saved["sparsifier"] = state.state_dict()
    later = wrapped()
    later.module.load_state_dict(saved["model"])
    resumed = attach(later, BlockTopK(0.1))
    resumed.load_state_dict(saved["sparsifier"])
    # One step for the buckets to be made anew, so that both cut their gradients in the same blocks.
    for model in (through, later):
        train(model, rank, range(5, 6), rate=0.0)
    resumed.load_state_dict(state.state_dict())
    train(through, rank, range(6, 10))
    train(later, rank, range(6, 10))
    assert torch.equal(flat(through), flat(later))
    assert resumed.step == state.step == 10


def test_a_checkpoint_holds_all_that_training_goes_on_with(trio: Cluster) -> None:
    trio.run(resumes)


def refuses_foreign_state(rank: int, size: int) -> str:
    state = attach(wrapped(), BlockTopK(0.1))
    try:
        state.load_state_dict({"step": 1, "seed": 0, "residuals": {"0.weight": torch.zeros(3)}})
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_state_of_another_model_is_refused(trio: Cluster) -> None:
    assert all("'0.weight'" in text and "(701, 50)" in text for text in trio.run(refuses_foreign_state))


def overflows(rank: int, size: int) -> None:
    model = wrapped()
    state = attach(model, BlockRandomK(0.01))
    loss = loss_of(model, rank, 0) * (float("inf") if rank == 0 else 1.0)
    loss.backward()
    assert all(p.grad is not None and not torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(torch.isfinite(residual).all() for residual in state.state_dict()["residuals"].values())


def test_an_overflow_at_one_worker_is_seen_by_all_and_not_kept(trio: Cluster) -> None:
    trio.run(overflows)
