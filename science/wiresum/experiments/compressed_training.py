"""Experiment 7: accuracy of a convolutional network over bytes, and over time on slow links, for each method.

All methods compress by layer and see the same images in the same order; accuracies are means over seeds. Bytes are the
engine's counters; wire.py measures bytes on the wire, and compares its means with the simulated means. Time is
computed: the larger of bytes sent and received over links of LINK_MBIT, plus LATENCY_S for each round, without
computation. Training without compression is shown with sums of 32, 16 and 8 bits through the switch, and over a ring of
workers, whose links carry 2 (N - 1)/N of a tensor. (`make bench NAMES=time-to-loss` measures time on shaped links.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from torch import nn

import wiresum.compress as wc
from wiresum.experiments import dense_sums, figures
from wiresum.experiments.dense_sums import DenseSums, granularity_of
from wiresum.experiments.experiment import Claim, Report, spread
from wiresum.experiments.network import Digits, convolutional_network, train
from wiresum.experiments.wire import Transfer, measure

LINK_MBIT = 100.0
LATENCY_S = 1e-4
POINTS = 4.0
"""How many percentage points a method's accuracy may be from uncompressed training's."""
DENSE, RING = "fp32, switch", "fp32, ring"
EVERY_STEPS = 20
WIRE_STEPS = 5
VALIDATION_IMAGES = 180
BEYOND = (-0.1, 0.2)
"""Range of the uncounted bytes on the wire, relative to fp32's bytes: headers and answers, less blocks of zeros."""
MEGABYTE = 1e6
COLOURS = mpl.colormaps["tab20"]


@dataclass(frozen=True)
class Method:
    compressor: wc.Compressor
    rate: float
    """Learning rate, chosen on validation images (rates.py)."""


METHODS: dict[str, Method] = {
    DENSE: Method(wc.Identity(), 0.3),
    "plain sums, 16 bits": Method(DenseSums(16), 0.3),
    "plain sums, 8 bits": Method(DenseSums(8), 0.3),
    "IntDIANA, 8 bits": Method(wc.IntDIANA(8), 0.3),
    "IntSGD, 8 bits": Method(wc.IntSGD(8), 0.3),
    "DIANA, blocks": Method(wc.DIANA(block=64), 0.3),
    "QSGD": Method(wc.QSGD(block=64), 0.3),
    "TernGrad": Method(wc.TernGrad(), 0.3),
    "natural": Method(wc.Natural(), 0.3),
    "sign majority": Method(wc.SignMajority(), 0.006),
    "PowerSGD": Method(wc.PowerSGD(2), 0.6),
    "RandK 20%, DIANA": Method(wc.RandK(0.2, memory="diana"), 0.15),
    "PermK": Method(wc.RandKPartition(memory="diana"), 0.3),
    "quantised RandK": Method(wc.QuantisedRandK(0.3, wc.Quantiser(7, block=64)), 0.3),
    "Top-k 1%": Method(wc.TopK(0.01), 0.6),
    "threshold": Method(wc.Threshold(0.02), 0.6),
    "gTop-k 1%": Method(wc.GTopK(0.01), 0.6),
    "gTop-k 1%, tree": Method(wc.GTopK(0.01, mode="tree"), 0.6),
}
COMPRESSED = tuple(name for name in METHODS if name != DENSE)


@dataclass
class Run:
    """Accuracy, bytes and time after each recorded step."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    """Accuracy in percent of the test images."""
    megabytes: list[float] = field(default_factory=list)
    """The larger of the megabytes that a worker has sent and received."""
    seconds: list[float] = field(default_factory=list)
    """Computed time on the links."""

    def add(self, step: int, accuracy: float, transferred_bytes: float, rounds: int) -> None:
        self.steps.append(step)
        self.accuracy.append(accuracy)
        self.megabytes.append(transferred_bytes / MEGABYTE)
        self.seconds.append(transferred_bytes * 8 / (LINK_MBIT * 1e6) + rounds * LATENCY_S)

    def seconds_to(self, accuracy: float) -> float:
        """Time until the accuracy is first reached; infinite if it is never reached."""
        reached = [time for time, one in zip(self.seconds, self.accuracy, strict=True) if one >= accuracy]
        return min(reached, default=float("inf"))


def run(*, workers: int = 4, epochs: int = 9, seeds: int = 3, names: Sequence[str] = COMPRESSED) -> Report:
    """Runs the experiment. Curves are of the first seed; each seed has its own split of the images."""
    dense = trained(METHODS[DENSE], workers=workers, epochs=epochs)
    size = sum(parameter.numel() for parameter in convolutional_network(1).parameters())
    runs = {
        DENSE: uncompressed(dense, 4 * size, rounds=dense_sums.ROUNDS),
        RING: uncompressed(dense, 8 * size * (workers - 1) / workers, rounds=2 * (workers - 1)),
        **{name: trained(METHODS[name], workers=workers, epochs=epochs) for name in names},
    }
    for name in names:
        if isinstance(method := METHODS[name].compressor, DenseSums):
            runs[name] = uncompressed(runs[name], size * method.bits / 8, rounds=dense_sums.ROUNDS)
    last = dense.accuracy[-1]
    level = last - POINTS
    others = {name: _accuracies(METHODS[name], workers, epochs, seeds) for name in (DENSE, *names)}
    accuracies = {name: np.array([runs[name].accuracy[-1], *rest]) for name, rest in others.items()}
    accuracies[RING] = accuracies[DENSE]
    below = {name: float(np.mean(accuracies[DENSE] - accuracies[name])) for name in names}
    summed = [name for name in names if adds(METHODS[name].compressor)]
    worst = max(names, key=lambda name: below[name])
    on_wire = _on_wire(names, workers)
    beyond = [(max(one.sent, one.received) - max(one.sent_counted, one.received_counted)) / (4 * size)
              for one in on_wire.values()]  # fmt: skip
    slowest = max(runs[name].seconds_to(level) for name in names if "8 bits" in name)
    claims = [
        Claim(f"worst method, {worst}: accuracy points below fp32, mean over seeds", below[worst],
              at_most=POINTS),
        Claim("uncounted bytes on the wire / fp32's bytes, minimum over methods", min(beyond), *BEYOND),
        Claim("the same, maximum over methods", max(beyond), *BEYOND),
        *(Claim(f"{name}: bytes on the wire / fp32's bytes",
                max(one.sent, one.received) / (4 * size), 0.25, 0.35)
          for name, one in on_wire.items() if "8 bits" in name),
        Claim("values of means through the switch that differ from the simulation's, all methods",
              sum(one.differing for one in on_wire.values()), at_most=0),
        Claim("methods that the network sums: largest bytes / fp32's bytes through the switch",
              max(runs[name].megabytes[-1] / runs[DENSE].megabytes[-1] for name in summed), at_most=1),
        Claim(f"slowest method with 8-bit integers: time to {level:.0f}% / fp32's through the switch",
              slowest / runs[DENSE].seconds_to(level), at_most=1 / 2),
        Claim("the same / fp32's over a ring", slowest / runs[RING].seconds_to(level), at_most=1 / 3),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        by_bytes, by_time = figure.subplots(1, 2)
        for at, (name, one) in enumerate(runs.items()):
            style = {
                "color": COLOURS(at % COLOURS.N),
                "linestyle": "--" if name in (DENSE, RING) else "-",
                "label": name,
            }
            by_bytes.plot(one.megabytes, one.accuracy, linewidth=1.2, **style)
            by_time.plot(one.seconds, one.accuracy, linewidth=1.2, **style)
        for axes, unit in ((by_bytes, "MB over a worker's link"), (by_time, f"s on links of {LINK_MBIT:g} Mbit/s")):
            axes.set_xscale("log")
            axes.set_ylim(bottom=50)
            figures.label(axes, title="test accuracy", unit="%", over=unit)
        by_bytes.get_legend().remove()
        by_time.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))

    return Report(
        f"A convolutional network with each method: {workers} workers, {size:,} parameters, {dense.steps[-1]} steps",
        [
            "method",
            "test accuracy, %",
            "MB over a worker's link",
            "kB a step on the wire",
            "s on the links",
            f"s to {level:.0f}%",
        ],
        [
            [
                name,
                spread(accuracies[name]),
                f"{one.megabytes[-1]:.1f}",
                f"{max(on_wire[name].sent, on_wire[name].received) / 1e3:.1f}" if name in on_wire else "-",
                f"{one.seconds[-1]:.2f}",
                f"{one.seconds_to(level):.2f}",
            ]
            for name, one in runs.items()
        ],
        claims,
        draw,
    )


def adds(compressor: wc.Compressor) -> bool:
    """Whether the network adds the method's values. In a partition and in a gather, each link carries the values of all
    workers."""
    return compressor.trait is not wc.Trait.GATHER and not isinstance(compressor, wc.RandKPartition)


def uncompressed(run: Run, step_bytes: float, *, rounds: int) -> Run:
    """The records of a run with other bytes and rounds in each step."""
    result = Run()
    for step, accuracy in zip(run.steps, run.accuracy, strict=True):
        result.add(step, accuracy, step * step_bytes, step * rounds)
    return result


def _accuracies(method: Method, workers: int, epochs: int, seeds: int) -> list[float]:
    """Final accuracies of the seeds after the first."""
    return [trained(method, workers=workers, epochs=epochs, seed=seed).accuracy[-1] for seed in range(2, seeds + 1)]


def _on_wire(names: Sequence[str], workers: int) -> dict[str, Transfer]:
    """Transfers on the wire, by method, without the tree, whose messages do not go through the switch."""
    through_switch = {name: METHODS[name].compressor for name in names if not _is_tree(name)}
    transfers = measure(list(through_switch.values()), workers=workers, steps=WIRE_STEPS)
    return dict(zip(through_switch, transfers, strict=True))


def _is_tree(name: str) -> bool:
    compressor = METHODS[name].compressor
    return isinstance(compressor, wc.GTopK) and compressor.mode == "tree"


def trained(method: Method, *, workers: int, epochs: int, batch: int = 8, seed: int = 1) -> Run:
    digits, result = Digits.load(seed, validation=VALIDATION_IMAGES), Run()

    def observe(step: int, model: nn.Module, engine: wc.Engine) -> None:
        if step % EVERY_STEPS == 0:
            traffic = engine.aggregator.traffic
            transferred_bytes = max(traffic.sent_bytes, traffic.received_bytes)
            result.add(step, digits.accuracy(model), transferred_bytes, traffic.rounds)

    train(
        method.compressor,
        workers=workers,
        epochs=epochs,
        rate=method.rate,
        batch=batch,
        granularity=granularity_of(method.compressor),
        make=convolutional_network,
        validation=VALIDATION_IMAGES,
        observe=observe,
        seed=seed,
    )
    return result
