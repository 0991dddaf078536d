"""Experiment 20: outer steps in fp32, 16, 8 and 4 bits, against synchronous training with the same tokens.

Sources: DiLoCo (arXiv 2311.08105), and Streaming DiLoCo (arXiv 2501.18512) for fragments, delay and quantised
pseudo-gradients. Each worker has its own part of a text, Python's reference of the language, which comes with every
Python. Synchronous training takes the mean gradient of the same batches, with the same inner optimizer and rates:
AdamW, with warm-up and then a cosine to zero. The outer optimizer is the papers', SGD with Nesterov's momentum and rate
0.7, with a momentum of 0.6 in place of 0.9, which would still move the parameters after so few outer steps. Losses are
of text that no worker trains on.

Numbers of 4 bits travel as 8: a sum over workers needs more bits than its terms.

    python -m wiresum.experiments.outer_steps --layers 6 --width 384    # the same with a larger network
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from wiresum.compress import Compressor, Identity, InProcess, IntSGD, OuterSteps, Quantiser
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Curve, Report
from wiresum.experiments.gpt import CONTEXT, Gpt

SYNCHRONOUS, FP32, STREAMING = "synchronous, fp32", "fp32", "8 bits, 2 fragments, delay"
METHODS: dict[str, Compressor] = {
    FP32: Identity(),
    "16 bits": IntSGD(16),
    "8 bits": IntSGD(8),
    "4 bits": Quantiser(7, bits=8),
    STREAMING: IntSGD(8),
}
"""The compressors of pseudo-gradients. The last but one has levels from -7 to 7."""
BITS = {FP32: 32, "16 bits": 16}
"""Bits of a number on the wire, if not 8."""
WARM_UP = 0.1
"""The part of all steps in which the rate rises."""
HELD_OUT = 0.1
"""The part of the text that no worker trains on."""
EVALUATED = 32
"""Sequences of the held-out text that the loss is of."""
CHARACTERS = 256


@dataclass
class Run:
    curve: Curve
    """Losses over steps."""
    sent_bytes: float = 0.0
    """What a worker has sent, without the parameters at the start, which all ways send."""


@cache
def text() -> torch.Tensor:
    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()))


@dataclass(frozen=True)
class Setup:
    workers: int
    steps: int
    every: int
    layers: int
    width: int
    rate: float
    momentum: float
    """The outer optimizer's momentum."""
    sequences: int
    """Sequences of CONTEXT characters that a worker trains on in a step."""

    def network(self, seed: int) -> Gpt:
        torch.manual_seed(seed)
        return Gpt(CHARACTERS, self.layers, self.width)

    def batch(self, seed: int, step: int, worker: int) -> torch.Tensor:
        """Sequences of the worker's part of the text, each with the character that follows."""
        part = len(text()) * (1 - HELD_OUT) / self.workers
        generator = torch.Generator().manual_seed((1000 * seed + step) * self.workers + worker)
        first = torch.randint(int(part) - CONTEXT, (self.sequences,), generator=generator) + int(worker * part)
        return text()[first[:, None] + torch.arange(CONTEXT + 1)]

    def optimizer(self, model: nn.Module) -> tuple[Optimizer, LambdaLR]:
        optimizer = AdamW(model.parameters(), self.rate)
        rising = max(1, int(WARM_UP * self.steps))
        return optimizer, LambdaLR(
            optimizer,
            lambda step: min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * step / self.steps)),
        )


def loss_of(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(sequences[:, :-1]), sequences[:, 1:].flatten())


def held_out_loss(model: nn.Module) -> float:
    """In nats for each character."""
    begin = math.ceil(len(text()) * (1 - HELD_OUT))
    first = torch.linspace(begin, len(text()) - CONTEXT - 1, EVALUATED).long()
    with torch.no_grad():
        return float(loss_of(model, text()[first[:, None] + torch.arange(CONTEXT + 1)]))


def step(model: nn.Module, optimizer: Optimizer, schedule: LambdaLR, sequences: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss_of(model, sequences).backward()
    optimizer.step()
    schedule.step()


def synchronous(setup: Setup, seed: int) -> Run:
    model = setup.network(seed)
    optimizer, schedule = setup.optimizer(model)
    run = Run(Curve(SYNCHRONOUS))
    for number in range(setup.steps):
        batches = [setup.batch(seed, number, worker) for worker in range(setup.workers)]
        step(model, optimizer, schedule, torch.cat(batches))  # equal batches: the loss is the mean of the workers'
        if (number + 1) % setup.every == 0:
            run.curve.add(number + 1, held_out_loss(model))
    run.sent_bytes = 4.0 * parameters_of(model) * setup.steps
    return run


def with_outer_steps(setup: Setup, seed: int, name: str) -> Run:
    models = [setup.network(seed) for _ in range(setup.workers)]
    inner = [setup.optimizer(model) for model in models]
    options: dict[str, Any] = {"fragments": 2, "delay": max(1, setup.every // 10)} if name == STREAMING else {}
    outer = OuterSteps(
        models,
        lambda parameters: SGD(parameters, lr=0.7, momentum=setup.momentum, nesterov=setup.momentum > 0),
        METHODS[name],
        every=setup.every,
        group=InProcess(setup.workers),
        seed=seed,
        **options,
    )
    begun, run = outer.report().sent_bytes, Run(Curve(name))
    evaluated = setup.network(seed)
    for number in range(setup.steps):
        for worker, (model, (optimizer, schedule)) in enumerate(zip(models, inner, strict=True)):
            step(model, optimizer, schedule, setup.batch(seed, number, worker))
        outer.step()
        if (number + 1) % setup.every == 0:
            evaluated.load_state_dict(outer.parameters)
            run.curve.add(number + 1, held_out_loss(evaluated))
    outer.restore()  # which waits for the sum in flight: it counts
    run.sent_bytes = outer.report().sent_bytes - begun
    return run


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def run(
    *,
    workers: int = 4,
    steps: int = 200,
    every: int = 10,
    seeds: int = 3,
    layers: int = 2,
    width: int = 64,
    rate: float = 4e-3,
    momentum: float = 0.6,
    sequences: int = 4,
    within: float = 0.05,
    names: Sequence[str] = tuple(METHODS),
    said: Callable[[str], object] = lambda text: None,
) -> Report:
    """`within` is how far the losses may be above synchronous training's, relative to them."""
    setup = Setup(workers, steps, every, layers, width, rate, momentum, sequences)
    runs: dict[str, list[Run]] = {}
    for seed in range(1, seeds + 1):
        for name in (SYNCHRONOUS, *names):
            one = synchronous(setup, seed) if name == SYNCHRONOUS else with_outer_steps(setup, seed, name)
            runs.setdefault(name, []).append(one)
            said(f"{name}, seed {seed}: {one.curve.last:.4f}")
    size = parameters_of(setup.network(1))
    losses = {name: np.array([one.curve.last for one in of_seeds]) for name, of_seeds in runs.items()}
    megabytes = {name: of_seeds[0].sent_bytes / 1e6 for name, of_seeds in runs.items()}

    def over(name: str, other: str) -> float:
        return float(losses[name].mean() / losses[other].mean())

    def draw(figure: Figure) -> None:
        by_step, by_bytes = figure.subplots(1, 2)
        for (name, of_seeds), colour in zip(runs.items(), figures.COLOURS, strict=False):
            at = of_seeds[0].curve.steps
            mean = np.mean([one.curve.values for one in of_seeds], axis=0)
            by_step.plot(at, mean, label=name, color=colour, linewidth=1.5)
            by_bytes.plot(np.array(at) * megabytes[name] / steps, mean, label=name, color=colour, linewidth=1.5)
        by_bytes.set_xscale("log")
        figures.label(by_step, title="loss of held-out text, means over seeds", unit="nats for each character")
        figures.label(by_bytes, title="the same over bytes", unit="", over="MB that a worker sends")
        by_bytes.get_legend().remove()

    return Report(
        f"Outer steps: {size:,} parameters, {workers} workers, {steps} steps, an outer step after each {every}",
        ["way", "loss", "loss / synchronous", "MB sent", "synchronous MB / MB"],
        [
            [
                name,
                f"{of_way.mean():.3f} ({of_way.min():.3f} to {of_way.max():.3f})",
                f"{over(name, SYNCHRONOUS):.3f}",
                f"{megabytes[name]:.2f}",
                f"{megabytes[SYNCHRONOUS] / megabytes[name]:.1f}",
            ]
            for name, of_way in losses.items()
        ],
        [
            *(Claim(f"{name}: loss / synchronous", over(name, SYNCHRONOUS), at_most=1 + within) for name in names),
            *(Claim(f"{name}: loss / that of fp32 outer steps", over(name, FP32), at_most=1.01)
              for name in names if name not in (FP32, STREAMING)),
            *(Claim(f"{name}: bytes / synchronous bytes, times the inner steps of an outer one",
                    megabytes[name] / megabytes[SYNCHRONOUS] * every, bits / 32, bits / 32 * 1.03)
              for name, bits in ((name, BITS.get(name, 8)) for name in names)),
        ],
        draw,
    )  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Runs the experiment with another size.")
    for name, value in (run.__kwdefaults__ or {}).items():
        if isinstance(value, (int, float)):
            parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    parser.add_argument("--names", nargs="+", default=list(METHODS), choices=METHODS, help="default: all")
    options = vars(parser.parse_args(arguments))
    torch.set_num_threads(1)
    report = run(**options, said=lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{report.title}\n\n{report.table()}\n")
    for claim in report.claims:
        print(f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim}")


if __name__ == "__main__":
    main(sys.argv[1:])
