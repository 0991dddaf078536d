"""Gradients that `attach` leaves alone: parameters left out, the first steps, a model after detach, and PyTorch's own
wrappers."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

import wiresum.compress as wc
from wiresum.compress.ddp_hook import Granularity
from wiresum.compress.groups import aggregator_of
from wiresum_lab.ranks.cluster import Cluster

from .methods import METHODS

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10))
    return DistributedDataParallel(layers, bucket_cap_mb=0.002)


def gradients(ddp: DistributedDataParallel, rank: int, step: int = 0) -> dict[str, torch.Tensor]:
    """The gradients after a backward pass over this rank's examples."""
    examples = torch.randn(8, 30, generator=torch.Generator().manual_seed(10 * step + rank))
    ddp.zero_grad()
    ddp(examples).square().mean().backward()
    return {name: p.grad.clone() for name, p in ddp.module.named_parameters() if p.grad is not None}


def means(rank: int, step: int = 0) -> dict[str, torch.Tensor]:
    """The gradients that plain DDP computes from the same examples."""
    return gradients(model(), rank, step)


def optimizer_of(ddp: DistributedDataParallel) -> torch.optim.Optimizer:
    return torch.optim.SGD(ddp.parameters(), lr=0.1)


def names_of_uncompressed(found: dict[str, torch.Tensor], rank: int, step: int = 0) -> list[str]:
    expected = means(rank, step)
    return [name for name in found if torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-7)]


def left_out(rank: int, size: int) -> None:
    method = wc.TopK(0.05)
    for options, whole in (
        ({}, []),
        ({"leave_out": ["*.bias"], "granularity": "bucket"}, ["0.bias", "2.bias"]),
        ({"leave_out": ["2.*"], "elements_min": 41, "granularity": "model"}, ["0.bias", "2.weight", "2.bias"]),
        ({"elements_min": 10_000}, NAMES),
    ):
        ddp = model()
        attachment = wc.attach(ddp, optimizer_of(ddp), method, **options)  # type: ignore[arg-type]
        found = gradients(ddp, rank)
        assert names_of_uncompressed(found, rank) == whole, options
        report = attachment.report()
        assert report.steps == 1 and (report.sent_bytes < report.dense_bytes) == (len(whole) < 4)
    ddp = model()
    with pytest.raises(ValueError, match=r"matches '3\.\*'; they are: 0\.weight, 0\.bias"):
        wc.attach(ddp, optimizer_of(ddp), method, leave_out=["3.*"])


def test_layers_are_left_out_by_name_and_by_size(trio: Cluster) -> None:
    trio.run(left_out)


def later(rank: int, size: int) -> None:
    ddp = model()
    attachment = wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05), start_step=2)
    whole = [names_of_uncompressed(gradients(ddp, rank, step), rank, step) for step in range(3)]
    assert whole == [NAMES, NAMES, []]
    assert attachment.report().steps == 3 and attachment.engine.step == 1
    restored = model()
    other = wc.attach(restored, optimizer_of(restored), wc.TopK(0.05), start_step=2)
    other.load_state_dict(attachment.state_dict())
    assert names_of_uncompressed(gradients(restored, rank), rank) == []


def test_compression_starts_after_some_steps_and_a_checkpoint_remembers_how_many(trio: Cluster) -> None:
    trio.run(later)


def detached(rank: int, size: int) -> None:
    ddp = model()
    optimizer = optimizer_of(ddp)
    first = wc.attach(ddp, optimizer, wc.IntSGD(8))
    with pytest.raises(RuntimeError, match=r"detach\(\) it first"):
        wc.attach(ddp, optimizer, wc.TopK(0.05))
    assert names_of_uncompressed(gradients(ddp, rank), rank) != NAMES
    first.detach()
    first.detach()
    assert names_of_uncompressed(gradients(ddp, rank, 1), rank, 1) == NAMES
    wc.attach(ddp, optimizer, wc.TopK(0.05))
    assert names_of_uncompressed(gradients(ddp, rank, 2), rank, 2) == []


def test_a_model_is_plain_after_detach_and_takes_another_compression(trio: Cluster) -> None:
    trio.run(detached)


def wrapped(rank: int, size: int) -> None:
    ddp = model()
    state = wc.Attachment(ddp, optimizer_of(ddp), wc.Identity())
    ddp.register_comm_hook(state, fp16_compress_wrapper(wc.compression_hook))
    found, expected = gradients(ddp, rank), means(rank)
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], rtol=2e-3, atol=1e-5)
    assert any(not torch.equal(found[name], expected[name]) for name in NAMES), "it went as fp32"
    state.detach()
    torch.testing.assert_close(gradients(ddp, rank)["2.weight"], expected["2.weight"], rtol=2e-3, atol=1e-5)


def test_pytorchs_optimizer_wrappers_work_around_compression(trio: Cluster) -> None:
    trio.run(wrapped)


EMPTY_METHODS = ("identity", "PowerSGD", "RandK", "RandK, same seed", "RandK, partition", "quantised RandK",
                 "TopK, EF21", "TopK, quantised down", "block top-k ratio")  # fmt: skip


class WithEmpty(torch.nn.Module):
    """A layer, and parameters without values; or such a parameter alone."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.ones(0, 4))
        self.layer = torch.nn.Identity() if alone else torch.nn.Linear(6, 5)
        if not alone:
            self.last = torch.nn.Parameter(torch.ones(3, 0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        empty = sum(parameter.sum() for parameter in self.parameters() if parameter.numel() == 0)
        return self.layer(inputs) + empty  # type: ignore[no-any-return]


def with_empty(rank: int, size: int, granularity: Granularity, alone: bool) -> list[str]:
    """The methods that give no gradients like these parameters, or do not go on from a checkpoint. From the second step
    on, DDP has a bucket of empty parameters only."""
    wrong, inputs = [], torch.arange(12.0).reshape(2, 6) + rank
    for name in EMPTY_METHODS:
        nets = [DistributedDataParallel(WithEmpty(alone), bucket_cap_mb=1e-6) for _ in range(3)]
        attachments = []
        for net in nets[:2]:
            net.load_state_dict(nets[2].state_dict())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            attachments.append(wc.attach(net, optimizer, METHODS[name], granularity=granularity))
        for step in range(3):
            if step == 2:
                attachments[1].load_state_dict(attachments[0].state_dict())
            for net in nets if step == 2 else nets[::2]:
                net.zero_grad()
                net(inputs).square().sum().backward()
        found, again, expected = ([p.grad for p in net.parameters()] for net in nets)
        shapes = [p.shape for p in nets[0].parameters()]
        # The first step has other buckets, so by bucket it is compressed in another way.
        continues = granularity == "bucket" or all(map(torch.equal, found, again))
        if [grad.shape for grad in found] != shapes or not continues:
            wrong.append(name)
        if name == "identity":
            torch.testing.assert_close(found, expected)
        assert list(attachments[0].state_dict()["parameters"]) == [n for n, _ in nets[0].module.named_parameters()]
        assert attachments[0].report().steps == 3
    return wrong


@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone"])
@pytest.mark.parametrize("granularity", ["layer", "bucket", "model"])
def test_parameters_without_values_train(switched: Cluster, granularity: Granularity, alone: bool) -> None:
    assert switched.run(with_empty, granularity, alone) == [[]] * 3


def frozen_between(rank: int, size: int, options: dict[str, Any]) -> None:
    """A layer is frozen after DDP has made its buckets, and thawed after some steps."""
    nets = [DistributedDataParallel(model().module, **options) for _ in range(2)]
    for ddp in nets:
        ddp.module[0].requires_grad_(False)
    attachment = wc.attach(nets[0], optimizer_of(nets[0]), wc.TopK(0.05))
    assert list(attachment.state_dict()["parameters"]) == NAMES[2:]
    for step in range(3):
        found, expected = (gradients(ddp, rank, step) for ddp in nets)
        assert list(found) == list(expected) == NAMES[2:]
        assert not torch.allclose(found["2.weight"], expected["2.weight"])
    if "static_graph" not in options:
        for ddp in nets:
            ddp.module[0].requires_grad_(True)
        found, expected = (gradients(ddp, rank) for ddp in nets)
        assert list(found) == list(expected) == NAMES
        torch.testing.assert_close(found["0.weight"], expected["0.weight"])


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_a_layer_may_be_frozen_between_ddp_and_attach(trio: Cluster, options: dict[str, Any]) -> None:
    """It is not compressed, not even when it is thawed."""
    trio.run(frozen_between, options)


def saved(rank: int, size: int) -> None:
    """The whole model, not only its state, is saved and copied, as with PyTorch's own hooks."""
    ddp = model()
    attachment = wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05))
    gradients(ddp, rank)
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(ddp)):
        assert names_of_uncompressed(gradients(other, rank, 1), rank, 1) == NAMES, "the copy is plain"
        wc.attach(other, optimizer_of(other), wc.TopK(0.05))
        assert names_of_uncompressed(gradients(other, rank, 1), rank, 1) == []
    assert names_of_uncompressed(gradients(ddp, rank, 1), rank, 1) == []
    assert attachment.report().steps == 2


def test_an_attached_model_can_be_saved_and_copied(trio: Cluster) -> None:
    trio.run(saved)


def two_models(rank: int, size: int) -> None:
    """Two models, each with its own optimizer, trained in turns like a generator and its critic."""
    both = [model(), model()]
    methods = (wc.QSGD(1), wc.TopK(0.05))
    attachments = [wc.attach(ddp, optimizer_of(ddp), method) for ddp, method in zip(both, methods, strict=True)]
    for step in range(2):
        for ddp in both:
            assert names_of_uncompressed(gradients(ddp, rank, step), rank, step) != NAMES
    assert [attachment.report().steps for attachment in attachments] == [2, 2]
    attachments[0].detach()
    assert names_of_uncompressed(gradients(both[0], rank), rank) == NAMES
    assert names_of_uncompressed(gradients(both[1], rank), rank) == []


def test_several_models_with_optimizers_of_their_own(trio: Cluster) -> None:
    trio.run(two_models)


def failed_passes(rank: int, size: int) -> None:
    ddp = model()
    attachment = wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05))
    gradients(ddp, rank)

    def fail(gradient: torch.Tensor) -> None:
        raise KeyError("a bug in the backward pass")

    # The first layer's gradient is computed last, when a bucket is already being exchanged.
    handle: Any = ddp.module[0].weight.register_hook(fail)
    with pytest.raises(KeyError, match="a bug"):
        gradients(ddp, rank)
    handle.remove()
    attachment.detach()  # waits for the exchanges under way
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    again = model()  # DDP cannot be used after an unfinished pass
    wc.attach(again, optimizer_of(again), wc.TopK(0.05))
    assert names_of_uncompressed(gradients(again, rank), rank) == []


def test_a_backward_pass_that_fails_leaves_the_group_in_order(trio: Cluster) -> None:
    trio.run(failed_passes)


class Named(torch.nn.Module):
    def __init__(self, name: str, outputs: int = 3) -> None:
        super().__init__()
        self.add_module(name, torch.nn.Linear(4, outputs))


def differing(rank: int, size: int) -> dict[str, str]:
    """The error for arguments that differ at the last rank."""
    last, texts = rank == size - 1, {}
    sums = torch.amp.GradScaler("cpu", init_scale=4.0 if last else 2.0)
    for name, method, options in (
        ("seed", wc.RandKSameSeed(0.5), {"seed": int(last)}),
        ("granularity", wc.TopK(0.1), {"granularity": "model" if last else "layer"}),
        ("start_step", wc.TopK(0.1), {"start_step": int(last)}),
        ("leave_out", wc.TopK(0.1), {"leave_out": ["*.bias"] if last else []}),
        ("elements_min", wc.TopK(0.1), {"elements_min": int(last)}),
        ("scaler", wc.TopK(0.1), {"scaler": sums}),
        ("method.type", wc.QSGD() if last else wc.TopK(0.1), {}),
        ("method.levels", wc.QSGD(7 if last else 15), {}),
        ("method.ratio.ratio", wc.GTopK(wc.WarmUp(0.2 if last else 0.1, 3)), {}),
        ("method.memory.alpha", wc.QSGD(memory=wc.Shift(0.2 if last else 0.1)), {}),
        ("method.down", wc.TopK(0.1, down=wc.QSGD() if last else None), {}),
        ("refused", wc.TopK(0.1), {"leave_out": ["no such"] if last else []}),
    ):
        ddp = model()
        try:
            wc.attach(ddp, optimizer_of(ddp), method, **options)  # type: ignore[arg-type]
        except ValueError as error:
            texts[name] = str(error)
        assert names_of_uncompressed(gradients(ddp, rank), rank) == NAMES, "the group and the model can be used"
    for name, options in (("find_unused_parameters", {"find_unused_parameters": last}), ("parameter", {})):
        net = Named("b" if last and name == "parameter" else "a")
        ddp = DistributedDataParallel(net, **options)  # type: ignore[arg-type]
        try:
            wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.1))
        except ValueError as error:
            texts[name] = str(error)
    return texts


def test_arguments_that_differ_are_the_same_error_at_all_workers(trio: Cluster) -> None:
    first, *others = trio.run(differing)
    assert others == [first] * 2
    assert len(first) == 14
    refused = first.pop("refused")
    assert refused.startswith(
        "the arguments of attach() are refused at rank 2, and so at all ranks. rank 2 says: leave_"
    )
    for name, text in first.items():
        assert text.startswith(f"the arguments of attach() must be the same at all ranks, and differ: {name}"), text
        assert "rank 2 has" in text or "ranks 0, 1 have nothing" in text
    assert first["seed"].endswith("seed (ranks 0, 1 have 0; rank 2 has 1)")
    assert "parameter.0 (ranks 0, 1 have 'a.weight: [3, 4] of float32'; rank 2 has 'b.weight" in first["parameter"]


def not_free_at_one(rank: int, size: int) -> list[str]:
    """Rank 1's model has a hook of its own, or rank 1 has not detached. Returns the errors."""

    def foreign(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return allreduce_hook(dist.group.WORLD, bucket)

    foreign.__annotations__ = {}  # DDP accepts only annotations that are classes
    texts = []
    for kind in ("a function", "one of PyTorch's", "compression"):
        ddp = model()
        before = wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05)) if kind == "compression" else None
        if rank != 1 and before is not None:
            before.detach()
        elif rank == 1 and kind == "a function":
            ddp.register_comm_hook(None, foreign)
        elif rank == 1 and kind == "one of PyTorch's":
            ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        with pytest.raises(ValueError) as error:
            wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05))
        texts.append(str(error.value))
        if before is not None:
            before.detach()
            wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05))
        assert (names_of_uncompressed(gradients(ddp, rank), rank) == NAMES) == (before is None)
    return texts


def test_a_model_that_is_not_free_at_one_worker_is_refused_at_all(trio: Cluster) -> None:
    first, *others = trio.run(not_free_at_one)
    assert others == [first] * 2
    for text, why in zip(first, ["foreign), and", "ALLREDUCE), and", "detach() it first"], strict=True):
        assert "the arguments of attach() are refused at rank 1, and so at all ranks" in text
        assert why in text


def loaded_at_some(rank: int, size: int, synchronized: bool) -> str:
    before = model()
    state = wc.attach(before, optimizer_of(before), wc.IntDIANA(8))
    gradients(before, rank)
    after = model()
    attachment = wc.attach(after, optimizer_of(after), wc.IntDIANA(8))
    if rank != 1:
        attachment.load_state_dict(state.state_dict())
    if synchronized:
        attachment.synchronize()
    try:
        gradients(after, rank)
    except ValueError as error:
        return str(error)
    return ""


def test_a_state_that_only_some_workers_have_loaded_is_an_error_at_all(trio: Cluster) -> None:
    texts = trio.run(loaded_at_some, False)
    assert texts == [texts[0]] * 3
    assert "(synchronize() at all workers makes states equal)" in texts[0]
    assert "step (ranks 0, 2 have 1; rank 1 has 0)" in texts[0] and "common state" in texts[0]
    assert trio.run(loaded_at_some, True) == [""] * 3


def engines_differ(rank: int, size: int) -> list[str]:
    texts = []
    segments = [wc.Segment((wc.Piece("x", (4,)),))]
    engines = ((rank, wc.RandKSameSeed(0.5), "x"), (0, wc.QSGD(15 - rank), "x"), (0, wc.QSGD(), f"{rank}"))
    for seed, method, name in engines:
        engine = wc.Engine(method, aggregator_of(), seed=seed)
        try:
            engine.average([wc.Segment((wc.Piece(name, (4,)),))], [[np.ones(4)]])
        except ValueError as error:
            texts.append(str(error))
    engine = wc.Engine(wc.Identity(), aggregator_of())
    assert engine.average(segments, [[np.full(4, float(rank))]])[0].tolist() == [1.0] * 4
    return texts


def test_engines_that_differ_are_an_error_at_all_workers_in_the_first_average(trio: Cluster) -> None:
    first, *others = trio.run(engines_differ)
    assert others == [first] * 2
    for name, text in zip(["seed (", "method.levels (", "segments."], first, strict=True):
        assert f"differ: {name}" in text


def wrong(rank: int, size: int) -> None:
    plain = torch.nn.Linear(3, 3)
    with pytest.raises(TypeError, match="must be a DistributedDataParallel, not a Linear: wrap it"):
        wc.attach(plain, torch.optim.SGD(plain.parameters(), lr=0.1), wc.TopK(0.05))  # type: ignore[arg-type]
    ddp = model()
    with pytest.raises(ValueError, match="layer, bucket or model, not 'tensor'"):
        wc.attach(ddp, optimizer_of(ddp), wc.QSGD(), granularity="tensor")  # type: ignore[arg-type]
    skipping = DistributedDataParallel(torch.nn.Linear(3, 3), skip_all_reduce_unused_params=True)
    with pytest.raises(ValueError, match="use find_unused_parameters=True alone"):
        wc.attach(skipping, optimizer_of(skipping), wc.QSGD())
    twisted = DistributedDataParallel(torch.nn.Linear(3, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"'weight' is complex, .*: train torch.view_as_real of it"):
        wc.attach(twisted, optimizer_of(twisted), wc.QSGD())
    corrected = wc.GTopK(0.1, memory="momentum-correction")
    for kind, momentum in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {"betas": (0.9, 0.99)})):
        with pytest.raises(ValueError, match=rf"and {kind.__name__} have momentum \(0\.9\): create"):
            wc.attach(ddp, kind(ddp.parameters(), lr=0.1, **momentum), corrected)
    fresh = model()
    wc.attach(fresh, torch.optim.AdamW(fresh.parameters(), betas=(0.0, 0.99)), corrected).detach()
    ddp.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    with pytest.raises(RuntimeError, match=r"has a communication hook already .*takes only one"):
        wc.attach(ddp, optimizer_of(ddp), wc.TopK(0.05))


def test_unsupported_models_and_options_are_refused(trio: Cluster) -> None:
    trio.run(wrong)


def test_dir_lists_lazily_imported_names() -> None:
    assert {"attach", "compression_hook", "TopK"} <= set(dir(wc))
