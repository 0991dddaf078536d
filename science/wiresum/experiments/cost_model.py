"""Experiment 16: gTop-k's cost model over the number of workers P, and over the density.

Source: gTop-k (arXiv 1901.04359), section 3. With alpha for a message, beta for a number, m values and k = rho m:

    dense ring       2 (P - 1) alpha + 2 (P - 1)/P m beta
    top-k gather     log2 P alpha + 2 (P - 1) k beta
    gTop-k tree      2 log2 P alpha + 4 k log2 P beta

The model's messages and numbers are compared with the aggregators' counts. The times are the model's, with the paper's
alpha and beta for 1 Gbit/s and a network of 25 million parameters. Scaling efficiencies follow from them for two times
to compute a step. Last, networks train at several densities.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Engine, GTopK, Identity, InProcess, TopK
from wiresum.compress.ratio import count_of
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Curve, Report
from wiresum.experiments.global_top_k import Root
from wiresum.experiments.network import Digits, convolutional_network, gradients_of_workers, segments_of, train

ALPHA_MS, BETA_MS = 0.436, 3.6e-5
"""The paper's costs of a message and of a number of 4 bytes at 1 Gbit/s."""
PARAMETERS, DENSITY = 25_000_000, 0.001
WORKERS = (4, 8, 16, 32, 64, 128)
COUNTED = (2, 4, 8, 16)
"""Numbers of workers whose traffic is counted."""
DENSITIES = (0.001, 0.005, 0.02, 0.1)
NUMBER_BYTES = 4
RING, GATHER, TREE = "dense ring", "top-k gather", "gTop-k tree"
COMPUTE_MS = (150, 300)
"""Times to compute a step: an assumption, since the model has none."""
PAPER = {RING: (2.7, 12), GATHER: (1.1, 1.7)}
"""The paper's scaling efficiency of gTop-k with 32 workers at 1 Gbit/s, over that of another method: the range of its
networks."""


def model_ms(workers: int, density: float = DENSITY) -> dict[str, float]:
    rounds, k = math.log2(workers), density * PARAMETERS
    return {
        RING: 2 * (workers - 1) * ALPHA_MS + 2 * (workers - 1) / workers * PARAMETERS * BETA_MS,
        GATHER: rounds * ALPHA_MS + 2 * (workers - 1) * k * BETA_MS,
        TREE: 2 * rounds * ALPHA_MS + 4 * k * rounds * BETA_MS,
    }


def efficiency(name: str, compute_ms: float, workers: int = 32) -> float:
    """The fraction of a step in which workers compute."""
    return compute_ms / (compute_ms + model_ms(workers)[name])


def run(*, workers: int = 4, epochs: int = 6) -> Report:
    times = {count: model_ms(count) for count in WORKERS}
    losses = {density: _last_loss(GTopK(density), workers, epochs) for density in DENSITIES}
    dense = _last_loss(Identity(), workers, epochs)
    growth = {name: times[128][name] / times[4][name] for name in (RING, GATHER, TREE)}
    at_32 = {density: model_ms(32, density) for density in DENSITIES}
    claims = [
        *(claim for count in COUNTED for claim in _counted(count)),
        Claim("4 workers: time of the tree / the gather, by the model", times[4][TREE] / times[4][GATHER], 1, 2),
        Claim("128 workers: the same", times[128][TREE] / times[128][GATHER], at_most=0.2),
        Claim("from 4 to 128 workers: growth of the gather's time", growth[GATHER], at_least=30),
        Claim("the same of the tree's, as log2 P", growth[TREE], 3, 4),
        Claim("32 workers, density 0.1: time of the gather / the dense ring",
              at_32[0.1][GATHER] / at_32[0.1][RING], at_least=1),
        Claim("the same of the tree", at_32[0.1][TREE] / at_32[0.1][RING], at_most=1.1),
        Claim("32 workers: density at which the tree takes as long as the ring, 1/(2 log2 P) of it in numbers",
              _even_density(32), 0.08, 0.12),
        *(Claim(f"32 workers, {compute} ms to compute a step: efficiency of the tree / of the {other}",
                efficiency(TREE, compute) / efficiency(other, compute), *PAPER[other])
          for compute in COMPUTE_MS for other in PAPER),
        *(Claim(f"loss at density {low:g} / at density {high:g}", losses[low] / losses[high], at_least=0.97)
          for low, high in itertools.pairwise(DENSITIES)),
        Claim("loss at density 0.1 / dense", losses[0.1] / dense, at_most=1.5),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        curves = [Curve(name, list(WORKERS), [times[count][name] for count in WORKERS]) for name in times[4]]
        figures.logarithmic(left, curves, title=f"density {DENSITY:g}, by the model", unit="ms")
        left.set_xscale("log", base=2)
        left.set_xlabel("workers")
        right.semilogx(DENSITIES, list(losses.values()), marker=".", color=figures.COLOURS[0], label="gTop-k")
        right.axhline(dense, color="black", linewidth=1, label="dense")
        figures.label(right, title=f"{workers} workers: last loss", unit="cross-entropy", over="density")

    return Report(
        f"gTop-k's cost model: {PARAMETERS / 1e6:g} million parameters, 1 Gbit/s",
        ["", *(f"P = {count}, ms" for count in WORKERS)],
        [[name, *(f"{times[count][name]:.1f}" for count in WORKERS)] for name in (RING, GATHER, TREE)]
        + [[f"tree, density {density:g}", *(f"{model_ms(count, density)[TREE]:.1f}" for count in WORKERS)]
           for density in DENSITIES[1:]],
        claims,
        draw,
    )  # fmt: skip


def _even_density(workers: int) -> float:
    """The least density, in steps of 1% of itself, at which the tree is no faster than the ring."""
    density = 1e-3
    while model_ms(workers, density)[TREE] < model_ms(workers, density)[RING]:
        density *= 1.01
    return density


def _counted(workers: int) -> list[Claim]:
    """Claims on one exchange of a network's gradients, whose traffic is counted."""
    digits, model = Digits.load(1), convolutional_network(1)
    segments = segments_of(model, "model")
    gradients = gradients_of_workers(digits, model, seed=1, workers=workers, batch=8)
    vectors = [[np.concatenate(mine)] for mine in gradients]
    k, rounds = count_of(0.01, segments[0].size), workers.bit_length() - 1
    root, plain = Root(workers), InProcess(workers)
    Engine(GTopK(0.01, mode="tree"), root).average(segments, vectors)
    Engine(TopK(0.01), plain).average(segments, vectors)
    return [
        Claim.equal(f"{workers} workers: messages of the tree, one after the other", root.traffic.rounds, 2 * rounds),
        Claim.equal(f"{workers} workers: numbers through its root", root.numbers, 4 * k * rounds),
        Claim(f"{workers} workers, top-k through the network: bytes received / those of the gather",
              plain.traffic.received_bytes / (2 * workers * k * NUMBER_BYTES), at_most=0.9),
    ]  # fmt: skip


def _last_loss(method: GTopK | Identity, workers: int, epochs: int) -> float:
    """The mean loss of the last tenth of all steps."""
    losses = train(method, workers=workers, epochs=epochs).losses
    return float(np.mean(losses[-max(1, len(losses) // 10) :]))
