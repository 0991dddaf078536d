"""Experiment 13: every compressor under AdamW, which divides each value of the gradient by its own size.

The compressors' theory is for SGD: errors are small relative to the whole gradient. AdamW takes as large a step for
small values as for large ones, and so amplifies the errors in small values. Each compressor trains the network of
experiment 5 by layer under SGD and under AdamW, with the same rates and images; the final training loss is compared
with the loss of fp32. docs/compress.md has this table, and a claim compares it with the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import wiresum.compress as wc
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Curve, Report
from wiresum.experiments.network import Digits, network, train

FP32 = "Identity()"
METHODS: dict[str, wc.Compressor] = {
    text: eval(text, vars(wc))
    for text in (
        FP32,
        "IntDIANA(bits=16)",
        "IntDIANA(bits=8)",
        'IntDIANA(bits=8, scale="estimate")',
        "IntSGD(bits=8)",
        'IntSGD(bits=16, scale="estimate")',
        "Quantiser(bits=8, block=256)",
        "DIANA()",
        'DIANA(norm="inf", block=64)',
        "QSGD()",
        "TernGrad()",
        "TernGrad(clip=2.5)",
        "Natural()",
        "OwnScale(QSGD())",
        "SignMajority()",
        "PowerSGD(2)",
        "RandKSameSeed(0.2)",
        "RandKPartition()",
        "RandK(0.2)",
        "QuantisedRandK(0.3, QSGD())",
        "TopK(0.1)",
        "TopK(0.01)",
        'TopK(0.1, memory="diana")',
        "Threshold(0.01)",
        "AdaptiveThreshold(0.1)",
        "BlockTopK(0.1, block=16)",
        "BlockTopKRatio(0.1, block=16)",
        "BlockThreshold(0.05, block=16)",
        "BlockRandomK(0.1, block=16)",
        "GTopK(0.1)",
        "GTopK(0.01)",
        'GTopK(0.1, memory="momentum-correction")',
    )
}
"""The methods, by the expressions that make them."""
SGD, ADAMW = OPTIMIZERS = ("SGD", "AdamW")
RATES = {SGD: 0.4, ADAMW: 4e-3}
SIGNS_RATE = 0.006
"""Learning rate of SignMajority under SGD, since the norm of its result does not depend on the gradient's."""
EVERY_STEPS = 4
AT_MOST = {
    "IntDIANA(bits=16)": 1.01,
    "IntDIANA(bits=8)": 1.1,
    "IntSGD(bits=8)": 1.1,
    "Quantiser(bits=8, block=256)": 1.1,
    "Natural()": 1.1,
    'IntDIANA(bits=8, scale="estimate")': 1.3,
}
"""The largest factor between a method's loss and fp32's, up or down, under either optimizer."""
TRAINS = 0.9
"""Threshold of training: the last loss of a method that trains is at most this fraction of the initial loss."""
GUIDE = Path(__file__).parents[3] / "docs" / "compress.md"
GUIDE_FACTOR = 1.2
"""Tolerance (a factor) for the guide's figures, since processors differ in the last bits."""


def run(*, workers: int = 4, epochs: int = 3, names: Sequence[str] = tuple(METHODS)) -> Report:
    names = [FP32, *(name for name in names if name != FP32)]
    curves = {(name, kind): trained(name, kind, workers, epochs) for name in names for kind in OPTIMIZERS}
    relative = {key: curve.last / curves[FP32, key[1]].last for key, curve in curves.items()}

    def draw(figure: Figure) -> None:
        for axes, kind in zip(figure.subplots(1, 2), OPTIMIZERS, strict=True):
            shown = [curves[name, kind] for name in SHOWN if name in names]
            figures.logarithmic(axes, shown, title=f"{kind}: loss", unit="over all training images")

    return Report(
        f"Every compressor under AdamW: {workers} workers, {curves[FP32, ADAMW].steps[-1]} steps",
        ["method", *(f"{kind}: loss" for kind in OPTIMIZERS), *(f"{kind}: times fp32's" for kind in OPTIMIZERS)],
        [
            [
                name,
                *(f"{curves[name, kind].last:.3f}" for kind in OPTIMIZERS),
                *(f"{relative[name, kind]:.2f}" for kind in OPTIMIZERS),
            ]
            for name in names
        ],
        _claims(curves, relative),
        draw,
    )


def _claims(curves: dict[tuple[str, str], Curve], relative: dict[tuple[str, str], float]) -> list[Claim]:
    names = list(dict.fromkeys(name for name, _ in relative))
    untrained = {key: curve.last / curve.values[0] for key, curve in curves.items()}
    slowest = max(untrained, key=lambda key: untrained[key])
    table = guide_table()
    apart = {key: max(value / table[key[0]][key[1]], table[key[0]][key[1]] / value) for key, value in relative.items()}
    worst = max(apart, key=lambda key: apart[key])
    bounded = [(name, bound) for name, bound in AT_MOST.items() if name in names]
    return [
        *(Claim(f"{name} under {kind}: loss relative to fp32", relative[name, kind], 1 / bound, bound)
          for name, bound in bounded for kind in OPTIMIZERS),
        Claim(f"slowest method, {slowest[0]} under {slowest[1]}: final loss / initial loss",
              untrained[slowest], at_most=TRAINS),
        Claim(f"largest factor between a result and the guide's table ({worst[0]} under {worst[1]})", apart[worst],
              at_most=GUIDE_FACTOR),
    ]  # fmt: skip


def guide_table() -> dict[str, dict[str, float]]:
    """The table of docs/compress.md, by method: the loss divided by fp32's with each optimizer, and the gradients that
    are kept between steps, and at the peak (`make bench NAMES=memory`)."""
    rows = re.findall(r"^\| `(.+)`" + r" \| ([\d.]+)" * 4 + r" \|$", GUIDE.read_text(), re.MULTILINE)
    return {name: dict(zip((*OPTIMIZERS, "kept", "peak"), map(float, values), strict=True)) for name, *values in rows}


SHOWN = (FP32, "IntDIANA(bits=16)", "IntDIANA(bits=8)", 'IntDIANA(bits=8, scale="estimate")', "QSGD()", "PowerSGD(2)",
         "TopK(0.1)", "GTopK(0.1)")  # fmt: skip


def trained(name: str, kind: str, workers: int, epochs: int) -> Curve:
    """Trains, and returns the curve of the loss over all training images."""
    digits, curve = Digits.load(1), Curve(name)
    curve.add(0, digits.training_loss(network(1)))

    def observe(step: int, model: nn.Module, engine: wc.Engine) -> None:
        if step % EVERY_STEPS == 0:
            curve.add(step, digits.training_loss(model))

    def optimizer_of(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, rate) if kind == ADAMW else torch.optim.SGD(parameters, rate)

    is_direction = kind == SGD and isinstance(METHODS[name], wc.SignMajority)
    train(
        METHODS[name],
        workers=workers,
        epochs=epochs,
        rate=SIGNS_RATE if is_direction else RATES[kind],
        optimizer_of=optimizer_of,
        granularity="layer",
        observe=observe,
    )
    return curve
