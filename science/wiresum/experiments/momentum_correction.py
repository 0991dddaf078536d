"""Experiment 8: momentum and sparse gradients.

Source: gTop-k (arXiv 1901.04359), which trains with the methods of Deep Gradient Compression (arXiv 1712.01887).
Residuals are sent late, and an optimizer's momentum then applies them for many steps. Momentum correction moves the
momentum to the workers, before they choose; factor masking resets it for values that were sent; the warm-up sends more
in the first steps, when gradients change fast; local clipping limits a single gradient's part in the residuals. The
methods are added one by one, and each step is compared with the papers' algorithms in plain NumPy (numpy_reference.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Compressor, Engine, GTopK, Identity, InProcess, MomentumCorrection, WarmUp
from wiresum.compress.ratio import count_of
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Report, spread
from wiresum.experiments.global_top_k import loss_curve
from wiresum.experiments.network import (
    Digits,
    accuracies_of,
    gradients_of_workers,
    network,
    segments_of,
    train,
    train_with_seeds,
)
from wiresum.experiments.numpy_reference import MomentumCorrected

RATIO = 0.01
STAGES = (0.25, 0.0625, 0.015625)
"""Ratios of the warm-up's stages, an epoch each, as in the papers."""
MOMENTUM = 0.9
RATE = 0.1
"""Learning rate in the claim that compares losses with momentum SGD."""
CLIP = 2.0
EPOCHS = 30
"""Epochs after which accuracies are claimed."""
POINTS = 4.0
"""How many percentage points a mean accuracy may be from dense training's, with three seeds."""
PRECISION = 1e-6
BATCH = 8


@dataclass(frozen=True)
class Method:
    compressor: Compressor
    rate: float
    """Learning rate, chosen from 0.1, 0.2 and 0.4 on validation images."""
    momentum: float = 0.0
    """The optimizer's momentum."""


def methods(epoch_steps: int) -> dict[str, Method]:
    """The methods by name, each of which adds one change to the method before."""
    warm = WarmUp(RATIO, epoch_steps, STAGES)
    return {
        "dense": Method(Identity(), 0.2, MOMENTUM),
        "gTop-k, momentum in the optimizer": Method(GTopK(RATIO), 0.1, MOMENTUM),
        "momentum correction": Method(GTopK(RATIO, memory=MomentumCorrection(MOMENTUM, masking=False)), 0.1),
        "and factor masking": Method(GTopK(RATIO, memory=MomentumCorrection(MOMENTUM)), 0.1),
        "and warm-up": Method(GTopK(warm, memory=MomentumCorrection(MOMENTUM)), 0.2),
        "and local clipping": Method(GTopK(warm, memory=MomentumCorrection(MOMENTUM, clip=CLIP)), 0.2),
    }


def run(*, workers: int = 8, epochs: int = EPOCHS, seeds: int = 3) -> Report:
    epoch_steps = len(Digits.load(1).images) // (BATCH * workers)
    compared = methods(epoch_steps)
    runs = {
        name: train_with_seeds(
            one.compressor,
            seeds,
            workers=workers,
            epochs=epochs,
            rate=one.rate,
            momentum=one.momentum,
            batch=BATCH,
        )
        for name, one in compared.items()
    }
    accuracies = accuracies_of(runs)
    whole = compared["and local clipping"].compressor
    assert isinstance(whole, GTopK)
    claims = [
        *(Claim(f"{name}: largest difference to the papers' algorithm in any step / largest value",
                _apart(method, workers), at_most=PRECISION)
          for name, method in _variants(whole).items()),
        Claim("everything sent, nothing masked: largest relative difference of losses to momentum SGD",
              _apart_from_momentum_sgd(workers), at_most=1e-4),
        Claim.equal("values in the means of the first steps of all stages of the warm-up, in total",
                    _values_sent(whole, workers, epoch_steps), _values_expected()),
    ]  # fmt: skip
    if epochs >= EPOCHS:
        claims += [
            Claim(f"{name}: accuracy points below dense training, mean over seeds",
                  float(np.mean(accuracies["dense"] - found)), -POINTS, POINTS)
            for name, found in accuracies.items() if name != "dense"
        ]  # fmt: skip

    def draw(figure: Figure) -> None:
        curves = [loss_curve(name, of_seeds[0]) for name, of_seeds in runs.items()]
        figures.logarithmic(figure.subplots(), curves, title="training loss, smoothed", unit="cross-entropy")

    return Report(
        f"gTop-k with momentum {MOMENTUM:g}: {workers} workers, {len(runs['dense'][0].losses)} steps",
        ["method", "test accuracy, %", "of dense float32"],
        [
            [
                name,
                spread(accuracies[name]),
                f"{of_seeds[0].sent_bytes / of_seeds[0].dense_bytes:.1%}",
            ]
            for name, of_seeds in runs.items()
        ],
        claims,
        draw,
    )


def _variants(whole: GTopK) -> dict[str, GTopK]:
    warm = WarmUp(RATIO, 3, STAGES)
    masked = MomentumCorrection(MOMENTUM, clip=CLIP)
    return {
        "exact": replace(whole, ratio=warm, memory=masked),
        "exact, not masked": replace(whole, ratio=warm, memory=replace(masked, masking=False)),
        "tree": replace(whole, ratio=warm, memory=masked, mode="tree"),
        "not clipped": replace(whole, ratio=warm, memory=MomentumCorrection(MOMENTUM)),
    }


def _apart(method: GTopK, workers: int, *, steps: int = 18, batch: int = 16) -> float:
    """The largest difference from the reference in any step, divided by the reference's largest value.

    Both run independently, with the same gradients of a network whose parameters do not change.
    """
    digits, model, engine = Digits.load(1), network(1), Engine(method, InProcess(workers))
    segments = segments_of(model, "model")
    memory, warm = method.memory, method.ratio
    assert isinstance(memory, MomentumCorrection) and isinstance(warm, WarmUp)
    reference = MomentumCorrected(
        workers, segments[0].size, momentum=memory.momentum, masking=memory.masking, clip=memory.clip or np.inf
    )
    apart = 0.0
    for step in range(steps):
        gradients = gradients_of_workers(digits, model, seed=step, workers=workers, batch=batch)
        vectors = [np.concatenate(one).astype(np.float64) for one in gradients]
        count = count_of(warm.at(step), segments[0].size)
        expected = reference.step(vectors, count, tree=method.mode == "tree") / workers
        estimate = engine.average(segments, [[vector] for vector in vectors])[0]
        engine.advance()
        apart = max(apart, float(np.abs(estimate - expected).max() / np.abs(expected).max()))
    return apart


def _apart_from_momentum_sgd(workers: int) -> float:
    """The largest relative difference of the losses in an epoch from those of momentum SGD."""
    everything = GTopK(1.0, memory=MomentumCorrection(MOMENTUM, masking=False))
    ours = train(everything, workers=workers, epochs=1, rate=RATE, batch=BATCH).losses
    theirs = train(Identity(), workers=workers, epochs=1, rate=RATE, momentum=MOMENTUM, batch=BATCH).losses
    return float(np.max(np.abs(np.divide(ours, theirs) - 1)))


def _values_sent(method: GTopK, workers: int, epoch_steps: int) -> float:
    """How many values are in the means of each stage's first step, and of the first step after the stages, in total."""
    segments, total = segments_of(network(1), "model"), 0
    engine = Engine(method, InProcess(workers))
    for stage in range(len(STAGES) + 1):
        engine.step = stage * epoch_steps
        vectors = [np.random.default_rng([stage, worker]).normal(size=segments[0].size) for worker in range(workers)]
        total += int(np.count_nonzero(engine.average(segments, [[vector] for vector in vectors])[0]))
    return total


def _values_expected() -> float:
    size = segments_of(network(1), "model")[0].size
    return float(sum(round(ratio * size) for ratio in (*STAGES, RATIO)))
