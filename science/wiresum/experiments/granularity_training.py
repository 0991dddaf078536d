"""Experiment 11: accuracy by layer and over the entire model, for each of the paper's compressors.

Source: arXiv 1911.08250: the same training twice, compressed by layer and over the entire model, without a memory.
Experiment 6 has the errors that explain the results. A threshold gives the same training twice, but for rounding; an
adaptive threshold sends at least the largest value of each layer, or of the model. Top-k has three ratios, since in the
paper the better granularity changes with the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import QSGD, AdaptiveThreshold, Compressor, RandK, TernGrad, Threshold, TopK
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Report, spread
from wiresum.experiments.network import Training, train_with_seeds

RANDOM, TOP, TOP_FEW, TOP_MANY, THRESHOLD, ADAPTIVE, TERNARY, LEVELS = NAMES = (
    "RandK 10%",
    "Top-k 1%",
    "Top-k 0.05%",
    "Top-k 10%",
    "threshold",
    "adaptive threshold",
    "TernGrad",
    "QSGD, 15 levels",
)
COMPRESSORS: dict[str, Compressor] = {
    RANDOM: RandK(0.1),
    TOP: TopK(0.01, memory="none"),
    TOP_FEW: TopK(0.0005, memory="none"),
    TOP_MANY: TopK(0.1, memory="none"),
    THRESHOLD: Threshold(0.01, memory="none"),
    ADAPTIVE: AdaptiveThreshold(memory="none"),
    TERNARY: TernGrad(),
    LEVELS: QSGD(15, block=None),
}
RATES = dict.fromkeys(NAMES, 0.4) | {RANDOM: 0.05, TERNARY: 0.1, LEVELS: 0.2}
"""Learning rates, smaller for noisier methods, and the same for both granularities."""
CLASSES = 10
EPOCHS = 12
"""Epochs after which accuracies are claimed."""
POINTS = 5.0
"""How many percentage points the mean accuracies of a compressor may be apart, with three seeds."""
SAME = 1e-3
"""Largest difference between the losses of equal trainings in the first epoch: sums are rounded on different scales.
Later, a value on the threshold is sent in one of the trainings only, and then they diverge."""


def run(*, workers: int = 4, epochs: int = EPOCHS, seeds: int = 3, names: Sequence[str] = NAMES) -> Report:
    by_layer, of_model = (
        {
            name: train_with_seeds(
                COMPRESSORS[name], seeds, workers=workers, epochs=epochs, rate=RATES[name], granularity=granularity
            )
            for name in names
        }
        for granularity in ("layer", "model")
    )
    ahead = {name: _accuracy(by_layer[name]) - _accuracy(of_model[name]) for name in names}
    claims = [
        Claim(f"{THRESHOLD}: largest difference between the losses of both trainings, first epoch",
              max(_apart(*both, epochs) for both in zip(by_layer[THRESHOLD], of_model[THRESHOLD], strict=True)),
              at_most=SAME),
        Claim(f"{ADAPTIVE}: bytes sent by layer / of the entire model",
              _sent(by_layer[ADAPTIVE]) / _sent(of_model[ADAPTIVE]), at_least=5),
    ]  # fmt: skip
    if epochs >= EPOCHS:
        claims += [
            *(Claim(f"{name}: accuracy points by layer above the entire model, mean over seeds",
                    ahead[name], -POINTS, POINTS) for name in names if name not in (ADAPTIVE, TOP_FEW)),
            Claim(f"{TOP_FEW}: accuracy points by layer above the entire model, mean over seeds",
                  ahead[TOP_FEW], at_least=10),
            Claim(f"{TOP_FEW}: last loss by layer / of the entire model, maximum over seeds",
                  max(_last_loss(mine) / _last_loss(other)
                      for mine, other in zip(by_layer[TOP_FEW], of_model[TOP_FEW], strict=True)), at_most=0.95),
            Claim(f"{ADAPTIVE}: accuracy points by layer above the entire model, mean over seeds",
                  ahead[ADAPTIVE], at_least=50),
            Claim(f"{ADAPTIVE}, entire model: last loss / loss of guessing, minimum over seeds",
                  min(_last_loss(one) for one in of_model[ADAPTIVE]) / math.log(CLASSES), 0.95, 1.05),
        ]  # fmt: skip

    def draw(figure: Figure) -> None:
        figures.granularities(
            figure.subplots(),
            {name: (_accuracy(by_layer[name]), _accuracy(of_model[name])) for name in names},
            title=f"after {epochs} epochs",
            unit="test accuracy, %",
        )

    return Report(
        f"Accuracy by layer and over the entire model: {workers} workers, no memory",
        ["compressor", "by layer, %", "entire model, %", "sent by layer", "sent of the entire model"],
        [
            [
                name,
                *(spread([one.accuracy for one in trainings[name]]) for trainings in (by_layer, of_model)),
                *(f"{_sent(trainings[name]):.1%}" for trainings in (by_layer, of_model)),
            ]
            for name in names
        ],
        claims,
        draw,
    )


def _accuracy(trainings: Sequence[Training]) -> float:
    return float(np.mean([one.accuracy for one in trainings]))


def _sent(trainings: Sequence[Training]) -> float:
    """The bytes sent, relative to dense float32."""
    return trainings[0].sent_bytes / trainings[0].dense_bytes


def _apart(one: Training, other: Training, epochs: int) -> float:
    first = slice(len(one.losses) // epochs)
    return float(np.max(np.abs(np.subtract(one.losses[first], other.losses[first]))))


def _last_loss(one: Training) -> float:
    """The mean loss of the last twentieth of all steps."""
    return float(np.mean(one.losses[-(len(one.losses) // 20) :]))
