"""Outer steps: simulated workers follow a reference in plain PyTorch; real ones, over Gloo and over a switch, have the
bits of simulated ones; and workers that differ, are lost or have values that are not finite raise errors."""

from __future__ import annotations

import copy
import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.optim import SGD, AdamW

import wiresum.compress as wc
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Int32Array
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.cluster import Cluster
from wiresum_lab.ranks.on_device import prepare

from .methods import METHODS as EVERY_METHOD

FOUR_BITS = wc.Quantiser(7, bits=8, memory="error-feedback")
"""15 values, which is 4 bits each, and 8 bits on the wire, in which the sum over 18 workers has room."""
METHODS = {
    "32 bits": wc.IntSGD(32),
    "16 bits": wc.IntSGD(16),
    "8 bits": wc.IntSGD(8, memory="error-feedback"),
    "4 bits": FOUR_BITS,
    "largest values": wc.TopK(0.2),
    "ratio": wc.BlockTopKRatio(0.5, block=4),  # it uses parameters
}
"""Those that tests compare bit by bit; EVERY_METHOD has the others."""
LAYERS = (9, 12, 7, 3)


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(LAYERS))).to(dtype)


def nesterov(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def averaging(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return SGD(parameters, lr=1.0)


class Halving(SGD):
    """An optimizer that changes gradients in place, as some clip them."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, 0.7, 0.9)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= 2
        super().step(closure)


class Worker:
    """A model with its inner optimizer, and batches that are a function of worker and step."""

    def __init__(self, number: int, model: nn.Module) -> None:
        self.number, self.model = number, model
        self.optimizer = AdamW(model.parameters(), lr=0.02)

    def loss(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10_000 * self.number + step)
        dtype = next(self.model.parameters()).dtype
        inputs = torch.randn(8, LAYERS[0], generator=generator).to(dtype)
        loss: torch.Tensor = (self.model(inputs) - inputs[:, : LAYERS[-1]].sin()).square().sum()
        return loss

    def train(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()
        self.optimizer.step()


class Simulated:
    """Workers in this process."""

    def __init__(
        self,
        method: wc.Compressor,
        *,
        workers: int = 3,
        aggregator: wc.InProcess | None = None,
        outer_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = nesterov,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        # Different models: training begins with that of worker 0.
        self.workers = [Worker(number, network(number, dtype)) for number in range(workers)]
        models = [worker.model for worker in self.workers]
        group = aggregator or wc.InProcess(workers)
        self.outer = wc.OuterSteps(models, outer_optimizer, method, group=group, **options)

    def run(self, steps: int) -> list[bool]:
        changed = []
        for _ in range(steps):
            for worker in self.workers:
                worker.train(self.outer.steps)
            changed.append(self.outer.step())
        return changed

    def state(self) -> dict[str, Any]:
        """A checkpoint, through a file."""
        states = [{"model": w.model.state_dict(), "optimizer": w.optimizer.state_dict()} for w in self.workers]
        file = io.BytesIO()
        torch.save({"outer": self.outer.state_dict(), "workers": states}, file)
        file.seek(0)
        state: dict[str, Any] = torch.load(file)
        return state

    def load(self, state: dict[str, Any]) -> None:
        for worker, own in zip(self.workers, state["workers"], strict=True):
            worker.model.load_state_dict(own["model"])
            worker.optimizer.load_state_dict(own["optimizer"])
        self.outer.load_state_dict(state["outer"])

    def values(self) -> list[dict[str, torch.Tensor]]:
        """All parameters: those of the last outer step, then those of each worker."""
        own = [dict(worker.model.named_parameters()) for worker in self.workers]
        return [{name: p.detach().clone() for name, p in one.items()} for one in (self.outer.parameters, *own)]


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and bits([one]) == bits([other])
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)


def reference(
    workers: int, steps: int, fragments: Sequence[Sequence[str]], *, every: int, delay: int, alpha: float
) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Streaming DiLoCo as in arXiv 2501.18512, algorithm 2, with SGD with Nesterov's momentum written out. Yields all
    parameters after each step, as `Simulated.values` does."""
    own = [Worker(number, network(0, torch.float64)) for number in range(workers)]
    local = [dict(worker.model.named_parameters()) for worker in own]
    overall = {name: p.detach().clone() for name, p in local[0].items()}
    momentum: dict[str, torch.Tensor] = {}
    sent: dict[int, dict[str, torch.Tensor]] = {}
    for t in range(1, steps + 1):
        for worker in own:
            worker.train(t - 1)
        for p, names in enumerate(fragments):
            offset = p * every // len(fragments)
            if (t - offset) % every == 0:
                sent[t] = {name: sum(overall[name] - mine[name].detach() for mine in local) / workers for name in names}
            if (t - delay - offset) % every == 0 and t - delay > 0:
                for name, delta in sent.pop(t - delay).items():
                    momentum[name] = 0.9 * momentum[name] + delta if name in momentum else delta
                    overall[name] = overall[name] - 0.7 * (delta + 0.9 * momentum[name])
                    for mine in local:
                        kept = alpha if delay else 0.0
                        mine[name].data = kept * mine[name].data + (1 - kept) * overall[name]
        yield [{name: p.detach().clone() for name, p in one.items()} for one in (overall, *local)]


@pytest.mark.parametrize(
    ("every", "fragments", "delay", "alpha"),
    [(1, 1, 0, 0.5), (3, 1, 0, 0.5), (4, 1, 3, 0.5), (6, 3, 0, 0.5), (7, 3, 1, 0.25), (6, 2, 2, 0.0)],
)
def test_workers_follow_the_reference(every: int, fragments: int, delay: int, alpha: float) -> None:
    options = {"every": every, "delay": delay, "alpha": alpha}
    simulated = Simulated(wc.Identity(), dtype=torch.float64, fragments=fragments, **options)
    names = simulated.outer._fragments
    assert len(names) == fragments and sorted(chain(*names)) == sorted(simulated.outer.parameters)
    changes = []
    for t, expected in enumerate(reference(3, 24, names, **options), 1):
        before = simulated.values()
        if simulated.run(1)[0]:
            changes.append(t)
        assert same_bits(simulated.values()[0], before[0]) is (t not in changes)
        for found, wanted in zip(simulated.values(), expected, strict=True):
            for name, value in found.items():
                torch.testing.assert_close(value, wanted[name], rtol=1e-11, atol=1e-13)
    starts = [t for t in range(1, 25) if any(t % every == p * every // fragments for p in range(fragments))]
    assert changes == [t + delay for t in starts if t + delay <= 24]


def test_outer_steps_of_rate_1_after_each_step_are_averages_of_parameters() -> None:
    simulated = Simulated(wc.Identity(), every=1, outer_optimizer=averaging, dtype=torch.float64)
    models = [worker.model for worker in simulated.workers]
    for step in range(5):
        for worker in simulated.workers:
            worker.train(step)
        means = [torch.stack(same).mean(0) for same in zip(*(list(m.parameters()) for m in models), strict=True)]
        assert simulated.outer.step()
        for model in models:
            for parameter, mean in zip(model.parameters(), means, strict=True):
                torch.testing.assert_close(parameter.detach(), mean.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_every_method_makes_outer_steps_towards_less_loss(name: str) -> None:
    """The mean of SignMajority has values of 1 and -1, and needs a rate of its own."""
    rate = 0.01 if name == "sign majority" else 1.0
    simulated = Simulated(EVERY_METHOD[name], every=2, outer_optimizer=lambda parameters: SGD(parameters, lr=rate))
    first, *_ = simulated.workers
    before = first.loss(1000)
    simulated.run(30)
    assert first.loss(1000) < before


def test_layers_are_dealt_so_that_fragments_are_about_as_large() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4), nn.Linear(4, 20))  # 6, 12 and 100 values
    outer = wc.OuterSteps([model], nesterov, wc.IntSGD(16), every=2, fragments=2, group=wc.InProcess(1))
    assert outer._fragments == [["2.weight", "2.bias"], ["1.weight", "1.bias", "0.weight", "0.bias"]]


# Real workers


def in_worker(rank: int, size: int, name: str, options: dict[str, Any]) -> tuple[bytes, bytes, str]:
    worker = Worker(rank, network(rank))
    outer = wc.OuterSteps(worker.model, nesterov, METHODS[name], **options)
    for step in range(9):
        worker.train(step)
        outer.step()
    return bits(outer.parameters.values()), bits(worker.model.parameters()), str(outer.report())


def bits(tensors: Any) -> bytes:
    return b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize(
    "options", [{"every": 3}, {"every": 4, "fragments": 2, "delay": 1}], ids=["plain", "streaming"]
)
@pytest.mark.parametrize("name", METHODS)
def test_workers_have_the_same_bits_as_each_other_and_as_simulated_ones(
    trio: Cluster, name: str, options: dict[str, Any]
) -> None:
    simulated = Simulated(METHODS[name], **options)
    simulated.run(9)
    overall, *own = simulated.values()
    found = trio.run(in_worker, name, options)
    assert [one for one, _, _ in found] == [bits(overall.values())] * 3
    assert [one for _, one, _ in found] == [bits(one.values()) for one in own]
    if "delay" not in options:
        assert {one for _, one, _ in found} == {bits(overall.values())}, "9 is a multiple of 3"


def printed_in_the_guide() -> str:
    guide = (Path(__file__).parents[3] / "docs" / "compress.md").read_text()
    section = guide.partition("## Outer steps (DiLoCo)")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(program)


def guide_in_worker(rank: int, size: int, program: str) -> tuple[bytes, int, float]:
    worker = Worker(rank, network(rank))
    data = [torch.randn(8, LAYERS[0], generator=torch.Generator().manual_seed(100 * rank + n)) for n in range(200)]
    names: dict[str, Any] = {"net": worker.model, "optimizer": worker.optimizer, "data": data}
    names["loss"] = lambda net, batch: net(batch).square().sum()
    exec(program, names)
    report = names["outer"].report()
    return bits(worker.model.parameters()), report.steps, report.sent_bytes


def test_the_guides_program_trains_and_sends_a_400th(switched: Cluster) -> None:
    """In 200 steps there are two outer ones; the start is one more sum, of 32 bits."""
    found = switched.run(guide_in_worker, printed_in_the_guide())
    size = sum(parameter.numel() for parameter in network().parameters())
    assert len({parameters for parameters, _, _ in found}) == 1
    for _, steps, sent_bytes in found:
        assert steps == 200
        assert 0 <= sent_bytes - 4 * size - 200 * 4 * size / 400 <= 2 * 100, "and maxima, and flags"


def test_the_report_counts_what_travels() -> None:
    outer = Simulated(wc.IntSGD(8), every=5, fragments=2).outer
    size = sum(parameter.numel() for parameter in outer.parameters.values())
    begun = outer.report().sent_bytes
    assert begun == 4 * size, "the start is a sum of all parameters"
    for _ in range(10):
        outer.step()
    report = outer.report()
    pieces = len(outer.parameters)  # each has a maximum of 8 bytes, and each sum a flag
    assert 0 <= report.sent_bytes - begun - 2 * size - 2 * 8 * pieces <= 2 * 4 * (pieces + 2)
    assert (report.steps, report.dense_bytes) == (10, 10 * 4 * size)


# Overlap


class Gate(wc.InProcess):
    """Sums that wait until they are let through, or fail."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.opened, self.asked = threading.Event(), 0
        self.error: Exception | None = None

    def _sum_words(self, contributions: Sequence[Int32Array]) -> Int32Array:
        self.asked += 1
        if self.asked > 1:  # the first one is the start's
            self.opened.wait()
        if self.error is not None:
            raise self.error
        return super()._sum_words(contributions)


def test_a_sum_travels_while_inner_steps_run_and_is_applied_when_it_is_due() -> None:
    gate, options = Gate(3), {"every": 6, "delay": 3}
    held = Simulated(wc.IntSGD(16), aggregator=gate, **options)
    assert held.run(8) == [False] * 8, "these steps do not wait for the sum"
    gate.opened.set()
    assert held.run(10) == [True, *[False] * 5, True, *[False] * 3]
    prompt = Simulated(wc.IntSGD(16), **options)
    prompt.run(18)
    assert same_bits(held.values(), prompt.values())


@pytest.mark.parametrize("delay", [0, 2])
def test_an_error_of_the_sum_is_raised_when_it_is_due_and_changes_nothing(delay: int) -> None:
    gate = Gate(3)
    gate.opened.set()
    options = {"every": 4, "delay": delay}
    simulated = Simulated(FOUR_BITS, aggregator=gate, **options)
    simulated.run(4 + delay)
    before = simulated.values()[0], copy.deepcopy(simulated.outer.state_dict())
    simulated.run(3 - delay)
    gate.error = ConnectionError("the switch is gone")
    simulated.run(delay)
    with pytest.raises(ConnectionError, match="the switch is gone"):
        simulated.run(1)
    after = simulated.outer.state_dict()
    assert after.pop("steps") == before[1].pop("steps") + 4
    assert same_bits(simulated.values()[0], before[0]) and str(after) == str(before[1])
    gate.error = None
    simulated.outer.restore()
    assert all(same_bits(mine, before[0]) for mine in simulated.values())
    assert any(simulated.run(4))


# Checkpoints


@pytest.mark.parametrize("name", ["8 bits", "4 bits", "32 bits"])
def test_a_checkpoint_continues_bit_for_bit_also_with_a_sum_in_flight(name: str) -> None:
    options = {"every": 6, "fragments": 2, "delay": 2}
    expected = Simulated(METHODS[name], **options)
    first = Simulated(METHODS[name], **options)
    for _ in range(16):
        expected.run(1)
    for at in (7, 8, 9, 10):  # at 6 and 9 a sum begins, which is due at 8 and 11
        first.run(at - first.outer.steps)
        state = first.state()
        assert (state["outer"]["in_flight"] is not None) is (at in (7, 9, 10))
        second = Simulated(METHODS[name], seed=5, **options)
        second.run(2)
        second.load(state)
        second.run(16 - at)
        assert same_bits(second.values(), expected.values()), at
        assert same_bits(second.outer.state_dict(), expected.outer.state_dict())
    first.run(6)
    assert same_bits(first.values(), expected.values()), "saving changes nothing"


def test_a_state_in_hand_does_not_change_as_training_goes_on() -> None:
    simulated = Simulated(METHODS["8 bits"], every=4, delay=3, outer_optimizer=Halving)
    simulated.run(9)
    state = simulated.outer.state_dict()
    kept = copy.deepcopy(state)
    simulated.run(8)
    assert same_bits(state, kept)
    simulated.outer.load_state_dict(state)
    simulated.run(8)
    assert same_bits(state, kept)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"every": 7}, "outer steps.every is 7 in the state and 6 here"),
        ({"delay": 1}, "outer steps.delay is 1 in the state and 0 here"),
        ({"alpha": 0.25}, "outer steps.alpha is 0.25 in the state and 0.5 here"),
        ({"fragments": 2}, "outer steps.fragments is"),
        ({"outer_optimizer": averaging, "method": wc.IntSGD(8)}, "method.bits is 8 in the state and 16 here"),
        ({"outer_optimizer": lambda p: AdamW(p, 0.1)}, "outer steps.optimizer is"),
        ({"workers": 2}, "it is of 2 workers, and here are 3"),
        ({"dtype": torch.float64}, "outer steps.parameter.0.0.weight is '[12, 9] of float64' in the state"),
    ],
)
def test_a_state_of_something_else_is_refused_and_nothing_is_loaded(other: dict[str, Any], text: str) -> None:
    given = {"method": wc.IntSGD(16), "every": 6, "dtype": torch.float32, **other}
    there, here = Simulated(**given), Simulated(wc.IntSGD(16), every=6)
    there.run(6)
    here.run(13)
    before = here.outer.state_dict(), here.values()
    with pytest.raises(ValueError, match="nothing of it was loaded") as error:
        here.outer.load_state_dict(there.outer.state_dict())
    assert text in str(error.value)
    assert same_bits((here.outer.state_dict(), here.values()), before)


def test_a_state_is_refused_unless_it_is_complete() -> None:
    outer = Simulated(wc.IntSGD(16), every=6).outer
    state = outer.state_dict()
    del state["steps"]
    for wrong, text in ((state, "the state lacks 'steps'"), (None, "the state is NoneType")):
        with pytest.raises(ValueError, match=text):
            outer.load_state_dict(wrong)  # type: ignore[arg-type]


# Refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, r"every \(0\) and fragments \(1\) are at least 1"),
        ({"every": 2, "fragments": 0}, r"fragments \(0\) are at least 1"),
        ({"every": 2, "fragments": 3}, r"below every // fragments, 2 // 3"),
        ({"every": 7, "fragments": 2, "delay": 3}, r"7 // 2, .*; it is 3"),
        ({"every": 2, "delay": -1}, "it is -1"),
        ({"every": 2, "alpha": 1.0}, "at least 0 and below 1, not 1.0"),
        ({"every": 9, "fragments": 4}, "3 layers with parameters do not make 4 fragments"),
        ({"every": 2, "optimizer_of": lambda p: SGD(p[:1], 0.1)}, "must have the parameters"),
        ({"every": 2, "optimizer_of": torch.optim.LBFGS}, "LBFGS does not train"),
        ({"every": 2, "method": wc.TopK(0.1, memory="momentum-correction")}, "both the memory"),
        ({"every": 2, "model": network().bfloat16()}, r"'0.0.weight' is \[12, 9\] of bfloat16 .*torch.autocast"),
        ({"every": 2, "model": nn.Tanh()}, "no trainable parameter"),
    ],
)
def test_arguments_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"model": network(), "optimizer_of": nesterov, "method": wc.IntSGD(8), "group": wc.InProcess(1), **options}
    model = given.pop("model")
    with pytest.raises(ValueError, match=text):
        wc.OuterSteps(model, given.pop("optimizer_of"), given.pop("method"), **given)


def test_there_is_a_model_for_each_simulated_worker() -> None:
    with pytest.raises(ValueError, match="1 models for 3 local workers"):
        wc.OuterSteps([network()], nesterov, wc.IntSGD(8), every=2, group=wc.InProcess(3))


def differ_in_worker(rank: int, size: int) -> list[str]:
    """The errors of workers whose arguments differ, one of which refuses, and that come apart later."""
    texts = []
    for every, dtype in ((2 + (rank == 1), torch.float32), (2, torch.float16 if rank == 1 else torch.float32)):
        with pytest.raises(ValueError, match="OuterSteps") as error:
            wc.OuterSteps(network(dtype=dtype), nesterov, wc.IntSGD(8), every=every)
        texts.append(str(error.value))
    changes: list[Callable[[wc.OuterSteps, nn.Module], object]] = [
        lambda outer, model: setattr(outer, "steps", outer.steps + 2),
        lambda outer, model: outer.parameters["0.0.bias"].data.add_(1e-7),
        lambda outer, model: setattr(next(model.parameters()), "data", torch.zeros(2, 2)),
    ]
    for change in changes:
        model = network()
        outer = wc.OuterSteps(model, nesterov, wc.IntSGD(8), every=2)
        outer.step()
        outer.step()
        if rank == 1:
            change(outer, model)
        with pytest.raises(ValueError, match="engines' options and states") as error:
            outer.step()
            outer.step()
        texts.append(str(error.value))
    return texts


def test_workers_that_differ_all_raise_the_same_error(trio: Cluster) -> None:
    first, *others = trio.run(differ_in_worker)
    assert others == [first] * 2
    wanted = ["every (ranks 0, 2 have 2; rank 1 has 3)", "[12, 9] of float16"]
    wanted += ["steps (", "parameters of the last outer step (", "parameter.0.0.weight (ranks 0, 2 have"]
    for text, part in zip(first, wanted, strict=True):
        assert part in text, text


def sharded_in_worker(rank: int, size: int) -> None:
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(
        distribute_tensor(model.weight.detach(), init_device_mesh(model.weight.device.type, (size,)))
    )
    with pytest.raises(ValueError, match=r"'weight' is sharded \(FSDP\)"):
        wc.OuterSteps(model, nesterov, wc.IntSGD(8), every=2)


def test_sharded_parameters_are_refused(trio: Cluster) -> None:
    trio.run(sharded_in_worker)


# Not finite


def not_finite_in_worker(rank: int, size: int, options: dict[str, Any]) -> str:
    worker = Worker(rank, network())
    outer = wc.OuterSteps(worker.model, nesterov, FOUR_BITS, **options)
    for step in range(9):
        worker.train(step)
        outer.step()
    before = copy.deepcopy((outer.parameters, outer.optimizer.state_dict(), outer.engine.state_dict()))
    if rank == 1:
        next(worker.model.parameters()).data[0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match="not finite after inner step 12") as error:
        for _ in range(4):
            outer.step()
    after = outer.engine.state_dict()
    assert after.pop("step") == before[2].pop("step") + 1
    assert same_bits(tuple_of(outer.parameters, outer.optimizer.state_dict(), after), tuple_of(*before))
    outer.restore()
    assert all(map(torch.equal, worker.model.parameters(), outer.parameters.values()))
    worker.optimizer = AdamW(worker.model.parameters(), lr=0.02)
    for step in range(outer.steps, outer.steps + 4):
        worker.train(step)
        outer.step()
    assert all(parameter.isfinite().all() for parameter in worker.model.parameters())
    assert not same_bits(dict(outer.parameters), dict(before[0]))
    return str(error.value) + bits(outer.parameters.values()).hex()


def tuple_of(parameters: Any, optimizer: Any, engine: Any) -> tuple[Any, ...]:
    return dict(parameters), optimizer, str(engine)


@pytest.mark.parametrize("options", [{"every": 4}, {"every": 4, "delay": 1}], ids=["plain", "delay"])
def test_values_that_are_not_finite_at_one_worker_are_an_error_at_all(trio: Cluster, options: dict[str, Any]) -> None:
    found = trio.run(not_finite_in_worker, options)
    assert [text.count("at another worker") for text in found] == [1, 0, 1]
    assert all(text.startswith("0.0.weight have values that are not finite") for text in found)
    assert len({text.partition("worker:")[2] for text in found}) == 1


# Buffers, and what is not trained


def test_buffers_and_frozen_parameters_are_equal_at_the_start_alone() -> None:
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)) for _ in range(2)]
    for number, model in enumerate(models):
        model[2].weight.requires_grad_(False).fill_(number + 1)
        model[1].running_mean.fill_(number + 1)
        model[1].num_batches_tracked.fill_(number + 1)
    outer = wc.OuterSteps(models, nesterov, wc.IntSGD(8), every=2, group=wc.InProcess(2))
    assert same_bits(dict(models[0].state_dict()), dict(models[1].state_dict()))
    assert models[1][2].weight.tolist() == [[1.0] * 4] and "2.weight" not in outer.parameters
    models[1][1].running_mean.fill_(5)
    models[1][2].weight.data.fill_(6)
    assert [outer.step(), outer.step()] == [False, True]
    assert models[0][1].running_mean.tolist() == [1.0] * 4
    assert models[1][1].running_mean.tolist() == [5.0] * 4 and models[1][2].weight.tolist() == [[6.0] * 4]


# A worker is lost, or joins


def goes_on_in_worker(rank: int, size: int, marks: str) -> bytes:
    """Rank 2 is lost while the others wait for a sum. They go on with a group of two."""
    worker = Worker(rank, network())
    outer = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], every=4, delay=1)
    for step in range(10):
        worker.train(step)
        outer.step()
    last = bits(outer.parameters.values())
    Path(marks, str(rank)).touch()
    if rank == 2:
        threading.Event().wait()  # waits until the process is killed
    with pytest.raises(dist.DistBackendError, match="rank 2"):
        for _ in range(3):
            outer.step()
    assert bits(outer.parameters.values()) == last, "that is, as after the last outer step"
    dist.shrink_group([2])
    again = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], every=4, delay=1)
    again.load_state_dict(outer.state_dict(), world_size_changed=True)
    again.synchronize()
    assert bits(again.parameters.values()) == bits(worker.model.parameters()) == last
    assert again.steps == outer.steps
    for step in range(again.steps, again.steps + 9):
        worker.train(step)
        again.step()
    return bits(again.parameters.values())


def test_after_a_loss_the_others_go_on_from_the_last_outer_step(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with SwitchProcess(tmp_path) as switch, Cluster(switch, 3, tmp_path, prepare=prepare()) as cluster:
        cluster.start(goes_on_in_worker, str(marks))
        wait_until(lambda: len(list(marks.iterdir())) == 3, "all came to the loss")
        cluster.kill(2)
        one, other = cluster.collect(ranks=[0, 1])
    assert one == other


def joins_in_worker(rank: int, size: int) -> list[bytes]:
    """Ranks 1 and 2 train alone; then rank 0, which has no state, joins them."""
    pair = dist.new_group([1, 2])
    worker = Worker(rank, network(rank))
    options: dict[str, Any] = {"every": 3, "fragments": 2, "delay": 0}
    state = None
    if rank:
        outer = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], group=pair, **options)
        for step in range(8):
            worker.train(step)
            outer.step()
        state = outer.state_dict()
    everyone = wc.OuterSteps(worker.model, nesterov, METHODS["8 bits"], **options)
    if state is not None:
        everyone.load_state_dict(state, world_size_changed=True)
        with pytest.raises(RuntimeError, match="synchronize"):
            everyone.state_dict()
    everyone.synchronize()
    assert everyone.steps == 8
    found = [bits(everyone.parameters.values()), bits(worker.model.parameters())]
    if state is not None:
        assert found[0] == bits(state["parameters"].values())
        assert same_bits(everyone.optimizer.state_dict(), state["optimizer"])
    for step in range(8, 14):
        worker.train(step)
        everyone.step()
    return [*found, bits(everyone.parameters.values())]


def test_a_worker_that_joins_takes_the_state_of_the_others(trio: Cluster) -> None:
    first, *others = trio.run(joins_in_worker)
    assert others == [first] * 2
    assert first[0] == first[1] != first[2]


def test_any_aggregator_serves() -> None:
    """A group of one worker makes the outer steps of its own pseudo-gradients."""
    aggregator: Aggregator = wc.InProcess(1)
    model = network()
    outer = wc.OuterSteps(model, averaging, wc.IntSGD(32), every=1, group=aggregator)
    moved = [parameter.detach() + np.float32(0.5) for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), moved, strict=True):
            parameter.copy_(value)
    assert outer.step()
    for parameter, value in zip(model.parameters(), moved, strict=True):
        torch.testing.assert_close(parameter.detach(), value)
