"""Experiment 14: fixed scaling factors, as in SwitchML, that train with 32, 16 and 8 bits.

Source: SwitchML (NSDI 2021), section 3.7 and its appendix on numbers: a worker sends round(f g), and the sum is divided
by f. If f is too small, gradients become zeros; if f is too large, integers do not fit. In between, the sum of n
workers is wrong by at most n/(2f). The paper's figure of accuracy over f has a wide plateau for 32 bits; with fewer
bits the plateau is narrower. A scale from the maximum of each tensor (`IntSGD`) needs no factor.

The paper's integers overflow; integers here are clamped to the largest that fits (compress_design.md).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Engine, Identity, InProcess, IntSGD, Turn, packing
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.compress.compressor import IntegerCompressor
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Report
from wiresum.experiments.network import Digits, Training, gradients_of_workers, network, segments_of, train

BITS = (32, 16, 8)
EXPONENTS = tuple(range(-1, 13))
"""Base-10 logarithms of the factors."""
WITHIN = 0.02
"""Tolerance: a factor trains if the last loss exceeds fp32's by at most this fraction."""
PLATEAU = {32: 6, 16: 2}
"""The least number of factors that train, by bits."""


@dataclass(frozen=True)
class FixedScale(IntegerCompressor):
    """Sends round(f v), with the same f for all tensors and steps."""

    factor: float
    bits: int = field(default=32, kw_only=True)

    def bits_at(self, turn: Turn) -> int:
        return self.bits

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        bound = packing.limit(self.bits, turn.workers)
        return np.clip(np.rint(vector.astype(np.float64) * self.factor), -bound, bound).astype(np.int32)

    def clamped(self, vector: Vector, integers: Int32Array, turn: Turn) -> int:
        bound = packing.limit(self.bits, turn.workers)
        return int(np.count_nonzero(np.abs(np.rint(vector.astype(np.float64) * self.factor)) > bound))

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        return (integers / (self.factor * contributors)).astype(turn.dtype)


def run(*, workers: int = 4, epochs: int = 6, exponents: Sequence[int] = EXPONENTS) -> Report:
    options: dict[str, Any] = {"workers": workers, "epochs": epochs, "rate": 0.4}
    plain = train(Identity(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # on clamped integers, which the claims count
        trained = {
            bits: {exponent: train(FixedScale(10.0**exponent, bits=bits), **options) for exponent in exponents}
            for bits in BITS
        }
        number_claims = _number_claims(workers)
    by_maximum = {bits: train(IntSGD(bits), **options) for bits in BITS}
    limit = _last_loss(plain) * (1 + WITHIN)
    good = {bits: [e for e, one in trained[bits].items() if _last_loss(one) <= limit] for bits in BITS}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for bits, colour in zip(BITS, figures.COLOURS, strict=False):
            losses = [_last_loss(trained[bits][exponent]) for exponent in exponents]
            axes.plot(exponents, losses, label=f"{bits} bits", color=colour, marker=".")
            axes.axhline(_last_loss(by_maximum[bits]), color=colour, linestyle=":", linewidth=1)
        axes.axhline(_last_loss(plain), color="black", linewidth=1, label="fp32")
        title = "dotted: the scale from each tensor's maximum"
        figures.label(axes, title=title, unit="last training loss", over="log10 of the scaling factor")

    return Report(
        f"Which scaling factors train: {workers} workers, {epochs} epochs",
        ["bits", "factors that train", "loss / fp32's, scale from the maximum", "accuracy with it, %"],
        [
            [
                f"{bits}",
                f"1e{good[bits][0]} to 1e{good[bits][-1]}" if good[bits] else "none",
                f"{_last_loss(by_maximum[bits]) / _last_loss(plain):.3f}",
                f"{by_maximum[bits].accuracy:.1f}",
            ]
            for bits in BITS
        ],
        [*number_claims, *_training_claims(plain, trained, by_maximum, good)],
        draw,
    )


def _number_claims(workers: int) -> list[Claim]:
    """Claims on the bound of the error, and on the factor at which integers stop fitting, with a network's
    gradients."""
    model = network(1)
    gradients = gradients_of_workers(Digits.load(1), model, seed=1, workers=workers, batch=8)
    vectors = [np.concatenate(mine, dtype=np.float64) for mine in gradients]
    largest = max(float(np.abs(vector).max()) for vector in vectors)
    segments, expected = segments_of(model, "model"), np.mean(vectors, axis=0)
    claims = []
    for bits in BITS:
        end = (packing.limit(bits, workers) + 0.5) / largest
        cut = {}
        for part in (0.01, 0.99, 1.01):
            engine = Engine(FixedScale(part * end, bits=bits), InProcess(workers))
            mean = engine.average(segments, [[vector] for vector in vectors])[0]
            cut[part] = engine.clamped
            if part < 1:
                error = float(np.abs(mean - expected).max())
                claims.append(Claim(f"{bits} bits, {part:.0%} of the largest factor: error of the mean / (1/(2f))",
                                    error * 2 * part * end, at_most=1))  # fmt: skip
        claims += [
            Claim(f"{bits} bits: integers cut at 99% of the largest factor", cut[0.99], at_most=0),
            Claim(f"{bits} bits: integers cut at 101% of it", cut[1.01], at_least=1),
        ]
    return claims


def _training_claims(
    plain: Training,
    trained: Mapping[int, Mapping[int, Training]],
    by_maximum: Mapping[int, Training],
    good: Mapping[int, Sequence[int]],
) -> list[Claim]:
    start = plain.losses[0]
    smallest, largest = min(trained[32]), max(trained[32])
    return [
        *(
            Claim(f"{bits} bits: factors that train", len(good[bits]), at_least=least)
            for bits, least in PLATEAU.items()
        ),
        Claim("factors that train with 16 bits, less those with 8", len(good[16]) - len(good[8]), at_least=1),
        Claim("and with 32 bits, less those with 16", len(good[32]) - len(good[16]), at_least=1),
        Claim(f"1e{smallest}: last loss / first, since all integers are 0",
              _last_loss(trained[32][smallest]) / start, 0.9, 1.1),
        Claim(f"1e{largest}, 32 bits: last loss / first, since all integers are cut",
              _last_loss(trained[32][largest]) / start, 0.9, 1.1),
        *(Claim(f"{bits} bits, scale from the maximum: last loss / fp32's",
                _last_loss(by_maximum[bits]) / _last_loss(plain), at_most=1 + WITHIN) for bits in (32, 16)),
    ]  # fmt: skip


def _last_loss(one: Training) -> float:
    """The mean loss of the last twentieth of all steps; infinite if the training diverged."""
    mean = float(np.mean(one.losses[-max(1, len(one.losses) // 20) :]))
    return mean if math.isfinite(mean) else math.inf
