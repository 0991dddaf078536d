"""Outer steps of simulated workers: they follow a reference in PyTorch, and a checkpoint continues bit for bit."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import wiresum.compress as wc
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Int32Array

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


def bits(tensors: Any) -> bytes:
    return b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)


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


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_parameters_without_values_stay_as_they_are(name: str) -> None:
    models = [nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)) for _ in range(2)]
    for model in models:
        model.register_parameter("empty", nn.Parameter(torch.ones(0, 4)))
    options = {"every": 2, "fragments": 2, "group": wc.InProcess(2)}
    outer = wc.OuterSteps(models, averaging, EVERY_METHOD[name], **options)  # type: ignore[arg-type]
    for _ in range(2):
        for number, parameter in enumerate(chain(*(model.parameters() for model in models))):
            parameter.data += number + 1
        outer.step()
        outer.step()
    state = outer.state_dict()
    assert state["parameters"]["empty"].shape == (0, 4)
    again = wc.OuterSteps(models, averaging, EVERY_METHOD[name], **options)  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert same_bits(again.state_dict(), state)


def test_layers_are_dealt_so_that_fragments_are_about_as_large() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4), nn.Linear(4, 20))  # 6, 12 and 100 values
    outer = wc.OuterSteps([model], nesterov, wc.IntSGD(16), every=2, fragments=2, group=wc.InProcess(1))
    assert outer._fragments == [["2.weight", "2.bias"], ["1.weight", "1.bias", "0.weight", "0.bias"]]


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


class Elsewhere(torch.Tensor):
    """A tensor of another device: NumPy cannot have its memory."""

    def numpy(self, **options: Any) -> Any:
        raise TypeError("use Tensor.cpu() first")

    def cpu(self, **options: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def in_flight() -> tuple[Simulated, dict[str, Any]]:
    """Workers that wait for a sum, and an earlier state that does, too."""
    simulated = Simulated(wc.IntSGD(16), every=4, delay=3)
    simulated.run(9)
    state = simulated.state()["outer"]
    simulated.run(4)
    return simulated, state


def test_a_state_with_a_sum_in_flight_may_be_on_another_device() -> None:
    simulated, state = in_flight()
    expected = copy.deepcopy(state)
    state["in_flight"]["means"] = [mean.as_subclass(Elsewhere) for mean in state["in_flight"]["means"]]
    simulated.outer.load_state_dict(state)
    assert same_bits(simulated.outer.state_dict(), expected)


def without_values(tensors: dict[Any, Any], name: Any) -> None:
    tensors[name] = tensors[name].to("meta")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda state: without_values(state["in_flight"]["means"], -1), NotImplementedError),
        (lambda state: state["in_flight"].pop("due"), KeyError),
        (lambda state: without_values(state["parameters"], "2.0.bias"), NotImplementedError),
        (lambda state: without_values(state["optimizer"]["state"][5], "momentum_buffer"), NotImplementedError),
        (lambda state: state["optimizer"]["param_groups"].pop(), ValueError),
        (lambda state: state["engine"].pop("step"), ValueError),
        (lambda state: state.update(steps="many"), ValueError),
    ],
    ids=["mean", "flight", "parameter", "momentum", "groups", "engine", "steps"],
)
def test_a_state_that_cannot_be_loaded_changes_nothing(
    spoil: Callable[[dict[str, Any]], object], error: type[Exception]
) -> None:
    simulated, state = in_flight()
    before = copy.deepcopy(simulated.outer.state_dict())
    assert before["in_flight"] is not None
    spoil(state)
    with pytest.raises(error):
        simulated.outer.load_state_dict(state)
    assert same_bits(simulated.outer.state_dict(), before)


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
        ({"every": 2, "model": nn.ParameterList([torch.ones(0, 4)])}, "no trainable parameter with a value"),
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
