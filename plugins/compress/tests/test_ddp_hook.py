"""DistributedDataParallel with compressed gradients, in real processes, over Gloo and over a switch."""

from __future__ import annotations

import copy
import io
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.compress as wc
from wiresum.compress.ddp_hook import Granularity
from wiresum.compress.memory import memory_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.cluster import Cluster

from .methods import METHODS

STEPS = 6
BUCKET_MB = 0.01
GRANULARITIES: tuple[Granularity, ...] = ("layer", "bucket", "model")


class Network(torch.nn.Module):
    """Several buckets of BUCKET_MB, a branch that some inputs skip, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 6, 3)
        self.hidden = torch.nn.Linear(6 * 6 * 6, 40)
        self.detour = torch.nn.Linear(40, 40)
        self.output = torch.nn.Linear(40, 10)
        self.frozen = torch.nn.Parameter(torch.ones(10), requires_grad=False)

    def forward(self, images: torch.Tensor, detour: bool = True) -> torch.Tensor:
        hidden = torch.relu(self.hidden(torch.relu(self.convolution(images)).flatten(1)))
        if detour:
            hidden = hidden + torch.relu(self.detour(hidden))
        logits: torch.Tensor = self.output(hidden) * self.frozen
        return logits


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels are a function of the images, so that there is something to learn."""
    images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(100 * rank + step))
    return images, (images.mean(dim=(1, 2, 3)) > 0).long()


class Run:
    """A model, its optimizer and its compression at one worker."""

    def __init__(self, method: wc.Compressor, granularity: Granularity = "layer", **options: Any) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET_MB, **options)
        momentum = 0.0 if memory_of(method.memory).has_momentum else 0.5
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=momentum)
        self.attachment = wc.attach(self.model, self.optimizer, method, granularity=granularity, seed=3)

    def train(self, rank: int, steps: range, **forward: Any) -> float:
        """Trains, and returns the last step's loss."""
        loss = torch.zeros(())
        for step in steps:
            images, labels = batch(rank, step)
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(images, **forward), labels)
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    def bits(self) -> bytes:
        return b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in self.model.parameters())


def same_everywhere(mine: bytes) -> bool:
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    return all(other == mine for other in everybody)


SENT = ("identity", "IntDIANA", "QSGD", "TopK", "RandK, partition", "block random-k")
RESTARTED = ("identity", "IntDIANA, by estimates", "PowerSGD", "TopK, quantised down")
"""A method for each kind of state."""


def train_some(rank: int, size: int) -> dict[str, float]:
    ratios = {}
    for name in SENT:
        run = Run(METHODS[name])
        before = run.bits()
        run.train(rank, range(STEPS))
        assert run.bits() != before, name
        assert same_everywhere(run.bits()), name
        report = run.attachment.report()
        assert report.steps == STEPS
        ratios[name] = report.ratio
    return ratios


def test_methods_train_with_the_same_bits_at_all_workers_and_report_what_they_sent(trio: Cluster) -> None:
    for mine in trio.run(train_some):
        assert mine["identity"] == pytest.approx(1, rel=0.01)
        assert mine["IntDIANA"] == pytest.approx(4, rel=0.05)  # the maximum and a flag for each layer
        assert mine["QSGD"] == pytest.approx(4 / (1 + 8 / 64), rel=0.1)
        assert mine["TopK"] > 3  # at worst all three workers' tenths are disjoint
        assert mine["RandK, partition"] > 2.5
        assert mine["block random-k"] > 9, "the same blocks everywhere, whose numbers do not travel"


def without_loss(rank: int, size: int) -> None:
    torch.manual_seed(0)
    plain = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.5)
    for step in range(STEPS):
        images, labels = batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(plain(images), labels).backward()
        optimizer.step()
    for granularity, memory in zip(GRANULARITIES, ("none", "error-feedback", "diana"), strict=True):
        run = Run(wc.Identity(memory=memory), granularity)
        run.train(rank, range(STEPS))
        for ours, theirs in zip(run.model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_without_loss_every_granularity_trains_as_plain_ddp_does(trio: Cluster) -> None:
    trio.run(without_loss)


def reloaded(run: Run) -> Any:
    file = io.BytesIO()
    torch.save(run.attachment.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def continues(rank: int, size: int) -> list[str]:
    """Returns the methods that do not continue bit for bit."""
    apart = []
    for at, name in enumerate(RESTARTED):
        granularity: Granularity = ("layer", "model")[at % 2]
        straight = Run(METHODS[name], granularity)
        straight.train(rank, range(3))
        model, optimizer = (copy.deepcopy(one.state_dict()) for one in (straight.model, straight.optimizer))
        compression = reloaded(straight)
        straight.train(rank, range(3, 6))
        restarted = Run(METHODS[name], granularity)
        restarted.model.load_state_dict(model)
        restarted.optimizer.load_state_dict(optimizer)
        restarted.attachment.load_state_dict(compression)
        restarted.train(rank, range(3, 6))
        if restarted.bits() != straight.bits() or restarted.attachment.report().steps != 6:
            apart.append(name)
    return apart


def test_by_layer_and_by_model_a_checkpoint_continues_bit_for_bit(switched: Cluster) -> None:
    assert switched.run(continues) == [[]] * 3


def common_is_the_mean(run: Run, group: dist.ProcessGroup | None = None) -> bool:
    state = run.attachment.state_dict()["engine"]
    consistent = True
    for name, common in state["common"].items():
        total = state["own"][0]["shift"][name].clone()
        dist.all_reduce(total, group=group)
        consistent &= bool(torch.allclose(total / dist.get_world_size(group), common, atol=1e-5))
    return consistent


def changes_size(rank: int, size: int, name: str) -> list[tuple[bool, bool]]:
    """Three workers, then only ranks 1 and 2, then three again."""
    run, seen = Run(METHODS[name]), []
    run.train(rank, range(3))
    parameters, state = run.model.state_dict(), reloaded(run)
    pair = dist.new_group([1, 2])
    if rank > 0:
        fewer = Run(METHODS[name], process_group=pair)
        fewer.model.load_state_dict(parameters)
        fewer.attachment.load_state_dict(state, world_size_changed=True)
        fewer.attachment.synchronize()
        seen.append((common_is_the_mean(fewer, pair), fewer.attachment.state_dict()["steps"] == 3))
        fewer.train(rank, range(3, 6))
        parameters, state = fewer.model.state_dict(), reloaded(fewer)
    parts = [parameters]
    dist.broadcast_object_list(parts, src=1)
    more = Run(METHODS[name])
    more.model.load_state_dict(parts[0])
    if rank > 0:
        more.attachment.load_state_dict(state, world_size_changed=True)
    more.attachment.synchronize()
    seen.append((common_is_the_mean(more), more.attachment.state_dict()["steps"] == 6))
    more.train(rank, range(6, 9))
    seen.append((common_is_the_mean(more), same_everywhere(more.bits())))
    return seen


@pytest.mark.parametrize("name", ["IntDIANA, by estimates", "TopK", "PowerSGD"])
def test_the_number_of_workers_may_change_if_allowed(trio: Cluster, name: str) -> None:
    assert [all(map(all, seen)) for seen in trio.run(changes_size, name)] == [True] * 3


def one_state_for_two(rank: int, size: int) -> tuple[str, bool]:
    """Both workers of a smaller group load the state that rank 0 saved."""
    run = Run(METHODS["TopK"])
    run.train(rank, range(2))
    states = [reloaded(run)]
    dist.broadcast_object_list(states, src=0)
    pair = dist.new_group([0, 1])
    if rank == 2:
        return "", True
    fewer = Run(METHODS["TopK"], process_group=pair)
    fewer.attachment.load_state_dict(states[0], world_size_changed=True)
    try:
        fewer.attachment.synchronize()
    except ValueError as error:
        text = str(error)
    try:
        fewer.train(rank, range(1))
    except RuntimeError as error:
        return text, "synchronize()" in str(error)
    return text, False


def test_one_workers_state_cannot_be_loaded_by_two(switched: Cluster) -> None:
    for text, is_held in switched.run(one_state_for_two)[:2]:
        assert "several have loaded worker 0's state" in text
        assert is_held


def bits_of(state: Any) -> Any:
    """A state in a form that can be compared."""
    if isinstance(state, torch.Tensor):
        return state.dtype, tuple(state.shape), state.numpy().tobytes()
    if isinstance(state, dict):
        return {name: bits_of(part) for name, part in state.items()}
    return [bits_of(part) for part in state] if isinstance(state, list) else state


def loads_of_others(rank: int, size: int) -> dict[str, str]:
    """The error for each wrong state; "" where it was accepted, or changed something."""

    def attached(net: torch.nn.Module, method: wc.Compressor | None = None, **options: Any) -> wc.Attachment:
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attachment = wc.attach(model, optimizer, method or wc.TopK(0.5), **options)
        for _ in range(2):
            model(torch.ones(2, 6)).square().mean().backward()
        return attachment

    here = attached(torch.nn.Linear(6, 4))
    states = {
        "method": attached(torch.nn.Linear(6, 4), wc.IntDIANA(8)).state_dict(),
        "granularity": attached(torch.nn.Linear(6, 4), granularity="model").state_dict(),
        "names": attached(torch.nn.Sequential(torch.nn.Linear(6, 4))).state_dict(),
        "layers": attached(torch.nn.Linear(6, 4), leave_out=["bias"]).state_dict(),
    }
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, here.state_dict())
    states["entry"] = {name: part for name, part in here.state_dict().items() if name != "steps"}
    texts, before = {}, bits_of(here.state_dict())
    for name, state in states.items():
        try:
            here.load_state_dict(state)
        except ValueError as error:
            texts[name] = str(error) if bits_of(here.state_dict()) == before else ""
    here.load_state_dict(everybody[rank])
    return texts


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(switched: Cluster) -> None:
    for texts in switched.run(loads_of_others):
        for name, text in {
            "method": "method is IntDIANA in the state and TopK here",
            "granularity": "granularity is 'model' in the state and 'layer' here",
            "names": "the state's model lacks 'bias', 'weight'; the state's model has in addition '0.bias', '0.weight'",
            "layers": "the state's model lacks 'bias'",
            "entry": "the state lacks 'steps'",
        }.items():
            assert text in texts[name]


def special_models(rank: int, size: int) -> list[bool]:
    same = []
    run = Run(METHODS["TopK"], "model", gradient_as_bucket_view=True)
    for step in range(4):
        images, labels = batch(rank, step)
        with run.model.no_sync():
            torch.nn.functional.cross_entropy(run.model(images), labels).backward()
        torch.nn.functional.cross_entropy(run.model(images), labels).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    same.append(same_everywhere(run.bits()) and run.attachment.report().steps == 4)
    for dtype in (torch.bfloat16, torch.float64):
        model = DistributedDataParallel(torch.nn.Linear(20, 30).to(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        wc.attach(model, optimizer, METHODS["IntDIANA"], granularity="model")
        for step in range(3):
            optimizer.zero_grad()
            model(torch.full((4, 20), step + rank + 1.0, dtype=dtype)).square().mean().backward()
            optimizer.step()
        flat = torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])
        same.append(same_everywhere(flat.cpu().numpy().tobytes()))
    return same


def test_accumulation_and_other_precisions(switched: Cluster) -> None:
    assert switched.run(special_models) == [[True] * 3] * 3


UNUSED_METHODS = ("IntDIANA", "TopK", "gTop-k", "gTop-k, momentum corrected", "TopK, EF21", "PowerSGD",
                  "TopK, quantised down")  # fmt: skip


def kept(run: Run, layer: str) -> Any:
    """The memories of a layer's parameters."""
    state = run.attachment.state_dict()["engine"]
    stores = [*state["own"][0].values(), state["common"]]
    return bits_of([{name: one for name, one in store.items() if name.startswith(layer)} for store in stores])


def unused_everywhere(rank: int, size: int, options: dict[str, Any]) -> list[str]:
    """The methods that change a memory for what DDP throws away, or a gradient that DDP leaves alone."""
    wrong = []
    for at, name in enumerate(UNUSED_METHODS):
        run = Run(METHODS[name], GRANULARITIES[at % 3], find_unused_parameters=True, **options)
        for step in range(6):
            used_by = [{0, 1, 2}, {}, {1}, {}, {}, {0, 2}][step]
            before = kept(run, "detour")
            run.optimizer.zero_grad(set_to_none=step % 2 == 0)
            detour = [None if p.grad is None else p.grad.clone() for p in run.model.module.detour.parameters()]
            images, labels = batch(rank, step)
            if step == 4:  # a use under no_sync counts
                used_by = {2}
                with run.model.no_sync():
                    torch.nn.functional.cross_entropy(run.model(images, detour=rank == 2), labels).backward()
            uses = rank in used_by and step != 4
            torch.nn.functional.cross_entropy(run.model(images, detour=uses), labels).backward()
            after = [p.grad for p in run.model.module.detour.parameters()]
            same = all(
                (one is None and other is None) or (one is not None and other is not None and torch.equal(one, other))
                for one, other in zip(detour, after, strict=True)
            )
            if (kept(run, "detour") == before and same) != (not used_by):
                wrong.append(f"{name}, step {step}")
            run.optimizer.step()
        if not same_everywhere(run.bits()):
            wrong.append(f"{name}: models differ")
    return wrong


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=str)
def test_a_parameter_that_no_worker_used_keeps_its_memories_and_its_gradient(
    switched: Cluster, options: dict[str, Any]
) -> None:
    assert switched.run(unused_everywhere, options) == [[]] * 3


def fail(gradient: torch.Tensor) -> None:
    raise KeyError("a bug in the backward pass")


def unused_after_failure(rank: int, size: int, synced: bool) -> tuple[bool, bool]:
    """A pass that uses the detour fails when the detour's gradients are there, and the next one does not use it.
    Returns whether the memories of the detour changed, and whether the gradients are the same everywhere."""
    run = Run(METHODS["IntDIANA"], find_unused_parameters=True)
    run.train(rank, range(2))
    images, labels = batch(rank, 2)
    handle = run.model.module.convolution.weight.register_hook(fail)
    with nullcontext() if synced else run.model.no_sync(), pytest.raises(KeyError, match="a bug"):
        torch.nn.functional.cross_entropy(run.model(images), labels).backward()
    handle.remove()
    if synced:  # DDP cannot be used any more
        with pytest.raises(RuntimeError, match="finished reduction in the prior iteration"):
            run.model(images)
        state = run.attachment.state_dict()
        run.attachment.detach()
        again = Run(METHODS["IntDIANA"], find_unused_parameters=True)
        again.model.load_state_dict(run.model.state_dict())
        again.attachment.load_state_dict(state)
        run = again
    before = kept(run, "detour")
    torch.nn.functional.cross_entropy(run.model(images, detour=False), labels).backward()
    gradients = [p.grad.numpy().tobytes() for p in run.model.parameters() if p.grad is not None]
    return kept(run, "detour") != before, same_everywhere(b"".join(gradients))


@pytest.mark.parametrize("synced", [True, False])
def test_what_a_pass_that_failed_has_used_counts_as_in_ddp(switched: Cluster, synced: bool) -> None:
    """DDP counts it if it was under no_sync, since its gradients are accumulated."""
    assert switched.run(unused_after_failure, synced) == [(not synced, True)] * 3


def static(rank: int, size: int) -> tuple[list[float], bool, bool]:
    """The bytes sent in each step, whether the unused layer has no gradient, and whether the models are equal."""
    run, sent = Run(METHODS["IntDIANA"], static_graph=True), [0.0]
    for step in range(3):
        run.train(rank, range(step, step + 1), detour=False)
        sent.append(run.attachment.report().sent_bytes)
    without = all(parameter.grad is None for parameter in run.model.module.detour.parameters())
    return np.diff(sent).tolist(), without, same_everywhere(run.bits())


def test_a_static_graph_counts_once_what_it_uses(switched: Cluster) -> None:
    for (first, second, third), without, same in switched.run(static):
        assert first > second == third
        assert without and same


class Embedded(torch.nn.Module):
    """An embedding with sparse gradients, and a layer with dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(50, 8, sparse=True)
        self.output = torch.nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.embedding(words))
        return logits


def embeds(rank: int, size: int, granularity: Granularity) -> tuple[bool, bool, float]:
    """Returns True if the sparse gradient is the mean, True if a part of the dense one was sent, and the bytes counted
    as dense."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Embedded(), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = wc.attach(model, optimizer, wc.TopK(0.25), granularity=granularity)
    expected = torch.zeros(50, 8)
    for other in range(size):
        alone = Embedded()
        alone.load_state_dict(model.module.state_dict())
        alone(words_of(other)).square().sum().backward()
        assert alone.embedding.weight.grad is not None
        expected += alone.embedding.weight.grad.to_dense() / size
    model(words_of(rank)).square().sum().backward()
    rows, dense = model.module.embedding.weight.grad, model.module.output.weight.grad
    assert rows is not None and rows.is_sparse and dense is not None
    optimizer.step()
    close = torch.allclose(rows.to_dense(), expected, atol=1e-5)
    return close, 0 < int(dense.count_nonzero()) < dense.numel(), attachment.report().dense_bytes


def words_of(rank: int) -> torch.Tensor:
    return torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("granularity", ["layer", "model"])
def test_sparse_gradients_are_averaged_uncompressed(trio: Cluster, granularity: Granularity) -> None:
    assert trio.run(embeds, granularity) == [(True, True, 4 * 36)] * 3


def overlapping(rank: int, size: int) -> tuple[int, bool, bool]:
    """Delays each exchange until the first layer's gradient is computed, which is computed last."""
    run = Run(METHODS["IntDIANA"])
    run.train(rank, range(2))
    computed, estimates, in_time = threading.Event(), run.attachment.engine.estimates, []

    def estimates_after(*arguments: Any, **options: Any) -> Any:
        in_time.append(computed.wait(PATIENCE_S / 2))
        return estimates(*arguments, **options)

    run.attachment.engine.estimates = estimates_after  # type: ignore[method-assign]
    run.model.module.convolution.bias.register_hook(lambda gradient: computed.set())
    run.train(rank, range(2, 3))
    return len(in_time), all(in_time), same_everywhere(run.bits())


def test_buckets_are_exchanged_while_the_gradients_of_other_layers_are_computed(trio: Cluster) -> None:
    for exchanges, in_time, same in trio.run(overlapping):
        assert exchanges >= 2
        assert in_time, "the backward pass waited for an exchange"
        assert same


@dataclass(frozen=True)
class Loud(wc.IntegerCompressor):
    """A compressor whose integers do not fit their bits in one bucket of the second step, at one worker."""

    def bits_at(self, turn: wc.Turn) -> int:
        return 8

    def compress(self, vector: Any, turn: wc.Turn) -> Any:
        is_loud = turn.step == 1 and turn.worker == 1 and turn.tensor == "detour.bias"
        return np.full(turn.size, 100 if is_loud else 1, np.int32)

    def decompress(self, integers: Any, turn: wc.Turn, contributors: int) -> Any:
        return (integers / contributors).astype(turn.dtype)


def excess(rank: int, size: int) -> tuple[str, bool]:
    run = Run(Loud())
    run.train(rank, range(1))
    try:
        run.train(rank, range(1, 2))
    except OverflowError as error:
        text = str(error)
    following = Run(METHODS["IntDIANA"])
    following.train(rank, range(2))
    return text, same_everywhere(following.bits())


def test_all_workers_raise_if_one_workers_integers_do_not_fit_and_the_group_goes_on(trio: Cluster) -> None:
    text = (
        "Loud made integers beyond 42 (worker 1: 100 for 'detour.bias'): the sum over 3 workers may not fit in 8 bits"
    )
    for mine, same in trio.run(excess):
        assert mine == f"{text}. Use more bits"
        assert same


def loses_buckets(rank: int, size: int) -> None:
    """The hook gets buckets whose memory is gone."""

    def free(attachment: wc.Attachment, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        bucket.buffer().untyped_storage().resize_(0)
        return wc.compression_hook(attachment, bucket)

    free.__annotations__ = {}  # DDP accepts only annotations that are classes
    model = DistributedDataParallel(Network())
    model.register_comm_hook(wc.Attachment(model, torch.optim.SGD(model.parameters(), lr=0.05), wc.TopK(0.5)), free)
    images, _ = batch(rank, 0)
    with pytest.raises(ValueError, match="bytes of its storage, which has 0"):
        model(images).sum().backward()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3


def test_a_bucket_without_its_memory_is_refused(switched: Cluster) -> None:
    switched.run(loses_buckets)


def test_a_report_as_text() -> None:
    report = wc.Report(steps=10, sent_bytes=2.5e6, received_bytes=5e6, dense_bytes=1e7)
    assert str(report) == "10 steps: sent 2.50 MB instead of 10.00 MB, 4.0 times less"
    assert wc.Report(0, 0.0, 0.0, 0.0).ratio == 1
