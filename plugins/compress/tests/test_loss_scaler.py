"""Training with a loss scaler, clipped gradients and AdamW: each method gives the bits of the same training without the
scaler, though a step is skipped and the scale changes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

import wiresum.compress as wc
from wiresum.compress.groups import aggregator_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.cluster import Cluster

from .methods import METHODS
from .test_ddp_hook import Run, batch, same_everywhere

FOLLOWING = [name for name, method in METHODS.items() if method.follows_scale]
INEXACT = {"IntSGD, by estimates", "IntDIANA, by estimates"}
"""Methods whose scale has the paper's epsilon, in the units of the gradient."""
STEPS = 9
POISONED_STEP, POISONED_RANK = 5, 1
START_SCALE = 2.0**8
GROWTH_INTERVAL = 3


def train(run: Run, rank: int, scaler: torch.amp.GradScaler | None) -> list[float]:
    """Returns the scales. Without a scaler the poisoned step is skipped by hand."""
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=4e-3)
    scales = []
    for step in range(STEPS):
        images, labels = batch(rank, step)
        if (step, rank) == (POISONED_STEP, POISONED_RANK):
            images[0] = float("inf")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(run.model(images), labels)
        if scaler is None:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            if step != POISONED_STEP:
                optimizer.step()
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def with_and_without(rank: int, size: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        run = Run(METHODS[name])
        train(run, rank, None)
        plain, expected = run.model, run.bits()
        run = Run(METHODS[name])
        scaler = torch.amp.GradScaler(
            torch.ones(()).device.type, init_scale=START_SCALE, growth_interval=GROWTH_INTERVAL
        )
        run.attachment.detach()
        run.attachment = wc.attach(run.model, run.optimizer, METHODS[name], seed=3, scaler=scaler)
        scales = train(run, rank, scaler)
        pairs = zip(run.model.parameters(), plain.parameters(), strict=True)
        found[name] = {
            "scales": scales,
            "same bits": run.bits() == expected,
            "same everywhere": same_everywhere(run.bits()),
            "apart": max(float((one - other).detach().abs().max()) for one, other in pairs),
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_method_gives_the_same_bits_with_a_loss_scaler_as_without(switched: Cluster, part: int) -> None:
    """The scale doubles every third step, and halves when an Inf makes all workers skip a step."""
    ranks = switched.run(with_and_without, FOLLOWING[part::4], timeout_s=2 * PATIENCE_S)
    for mine in ranks:
        for name, found in mine.items():
            assert found["scales"] == [256, 256, 512, 512, 512, 256, 256, 256, 512], name
            assert found["same everywhere"], name
            if name in INEXACT:
                assert found["apart"] < 1e-2, name
            else:
                assert found["same bits"], name


def refusals(rank: int, size: int) -> list[str]:
    texts = []
    refused = [
        *(METHODS[name] for name in METHODS if name not in FOLLOWING),
        wc.TopK(0.1, memory=wc.ErrorFeedback(clip=1.0)),
        wc.TopK(0.1, down=wc.Threshold(0.1)),
    ]
    for method in refused:
        run = Run(METHODS["identity"])
        run.attachment.detach()
        with pytest.raises(ValueError) as error:
            wc.attach(run.model, run.optimizer, method, scaler=torch.amp.GradScaler(torch.ones(()).device.type))
        texts.append(str(error.value))
    return texts


def test_a_method_that_compares_gradients_with_a_fixed_value_is_refused_with_a_loss_scaler(switched: Cluster) -> None:
    for texts in switched.run(refusals):
        assert [text.split()[0] for text in texts] == ["Threshold", "BlockThreshold", "SignMajority", "a", "Threshold"]
        assert "clip with torch.nn.utils.clip_grad_norm_ after scaler.unscale_(optimizer)" in texts[3]


def skipped_for_another_reason(rank: int, size: int, plain: str) -> bool:
    """An Inf that compression does not see: in a parameter that is left out, or in a sparse gradient."""
    torch.manual_seed(0)
    table = torch.nn.Embedding(10, 4, sparse=plain == "rows")
    network = torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    leave_out = ["0.weight"] if plain == "left out" else []
    attachment = wc.attach(model, optimizer, wc.TopK(0.2), leave_out=leave_out)

    def step(at: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(100 * rank + at)
        optimizer.zero_grad()
        output = model(torch.randint(0, 10, (5, 2), generator=generator))
        if at == 3 and rank == 1:
            table.weight.register_hook(lambda gradient: gradient * float("inf"))
        output.square().sum().backward()
        return attachment.state_dict()["engine"]["own"][0]["residual"]

    before = [step(at) for at in range(3)][-1]
    kept = step(3)
    assert any(not p.grad.to_dense().isfinite().all() for p in model.parameters() if p.grad is not None)
    return all(bool((kept[name] == before[name]).all()) for name in before) and len(before) > 0


@pytest.mark.parametrize("plain", ["left out", "rows"])
def test_an_inf_in_what_is_not_compressed_changes_no_memory(switched: Cluster, plain: str) -> None:
    assert switched.run(skipped_for_another_reason, plain) == [True] * 3


def repeated_after_failure(rank: int, size: int) -> bool:
    """A pass whose first bucket has an Inf, and whose second bucket fails; then another pass, with a wrapper of DDP of
    its own, since DDP makes none after one that failed."""
    run = Run(METHODS["TopK"])
    run.train(rank, range(2))
    engine = run.attachment.engine
    residuals, estimates, calls = engine.state_dict()["own"][0]["residual"], engine.estimates, []

    def failing(segments: Any, gradients: Any, parameters: Any, **options: Any) -> Any:
        calls.append(len(segments))
        if len(calls) > 1:
            raise ConnectionError("the second bucket fails")
        gradients[0][0][0].fill(np.inf)
        return estimates(segments, gradients, parameters, **options)

    engine.estimates = failing  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="the second bucket fails"):
        run.train(rank, range(2, 3))
    engine.estimates = estimates  # type: ignore[method-assign]
    run.model = torch.nn.parallel.DistributedDataParallel(run.model.module)
    gc.collect()  # the old wrapper still has hooks at the parameters
    run.model.register_comm_hook(run.attachment, wc.compression_hook)
    run.train(rank, range(3, 4))
    now = engine.state_dict()["own"][0]["residual"]
    return all(bool((now[name] != residuals[name]).any()) for name in residuals)


def test_a_pass_that_failed_does_not_keep_the_next_one_from_changing_memories(switched: Cluster) -> None:
    assert switched.run(repeated_after_failure) == [True] * 3


def restarted_without_a_file(rank: int, size: int, name: str, without: int) -> tuple[bool, int, list[float]]:
    """Trains; then one worker has lost its compression state."""
    device = torch.ones(()).device.type
    run = Run(METHODS[name])
    run.attachment.detach()
    scaler = torch.amp.GradScaler(device, init_scale=START_SCALE, growth_interval=GROWTH_INTERVAL)
    run.attachment = wc.attach(run.model, run.optimizer, METHODS[name], seed=3, scaler=scaler)
    train(run, rank, scaler)
    again = Run(METHODS[name])
    again.attachment.detach()
    fresh = torch.amp.GradScaler(device, init_scale=2.0**16, growth_interval=GROWTH_INTERVAL)
    again.attachment = wc.attach(again.model, again.optimizer, METHODS[name], seed=3, scaler=fresh)
    again.model.load_state_dict(run.model.state_dict())
    if rank != without:
        again.attachment.load_state_dict(run.attachment.state_dict())
    again.attachment.synchronize()
    taken = again.attachment.state_dict()
    fresh.load_state_dict(scaler.state_dict())
    train(again, rank, fresh)
    everybody: list[Any] = [None] * size
    torch.distributed.all_gather_object(everybody, taken["scale"])
    return same_everywhere(again.bits()), taken["steps"], everybody


@pytest.mark.parametrize(("name", "without"), [("IntDIANA", 0), ("TopK", 2)])
def test_a_worker_without_a_state_takes_the_scale_of_the_others(switched: Cluster, name: str, without: int) -> None:
    """The last step had the scale from before the scaler's last change."""
    expected = (True, STEPS, [256.0] * 3)
    assert switched.run(restarted_without_a_file, name, without) == [expected] * 3


def memories_of_two_scales(rank: int, size: int) -> list[tuple[float, float]]:
    """One rank has memories of another scale. Returns the shift over that at scale 1, and the common shift."""
    found = []
    segments = [wc.Segment((wc.Piece("x", (4,)),))]
    for other in (0, 1):
        engine = wc.Engine(wc.Identity(memory=wc.Shift(0.5)), aggregator_of())
        engine.average(segments, [[np.full(4, rank + 1.0)]])
        engine.advance()
        if rank == other:
            engine.rescale(4.0)
        engine.synchronize(scale=4.0 if rank == other else 1.0)
        state = engine.state_dict()
        found.append((state["own"][0]["shift"]["x"][0] / (0.5 * (rank + 1)), float(state["common"]["x"][0])))
    return found


def test_memories_of_several_scales_are_brought_to_that_of_the_furthest_worker(switched: Cluster) -> None:
    assert switched.run(memories_of_two_scales) == [[(4.0, 4.0), (1.0, 1.0)]] * 3
