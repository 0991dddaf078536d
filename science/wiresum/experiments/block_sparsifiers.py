"""Experiment 9: block sparsifiers converge with error feedback.

Source: OmniReduce (SIGCOMM'21). On a convex problem each of its four sparsifiers is compared with the same algorithm in
plain NumPy (numpy_reference.py), and the residuals with the bounds of the proofs for error feedback. On a network,
accuracies are compared with those of dense training.

With e' = e + g - C(e + g) and C's contraction delta, |e|^2 <= 4 (1 - delta)/delta^2 max |g|^2 (arXiv 1901.09847, lemma
3). With a threshold on norms, |e|^2 < blocks * threshold^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import wiresum.compress as wc
from wiresum.experiments import figures
from wiresum.experiments.comparison import CHECKED, REFERENCE_SEEDS, Runs
from wiresum.experiments.datasets import Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Report, spread
from wiresum.experiments.network import Training, accuracies_of, network, segments_of, train_with_seeds
from wiresum.experiments.numpy_reference import Array, Choose, block_norms, error_feedback, largest_blocks, of_values

CONDITION = 30.0
BLOCK, RATIO, NORM = 4, 0.25, 0.02
"""Options on the convex problem: 2 of 8 blocks are sent, the last of which is shorter."""
DECAY = 0.02
"""Decay of the step size 1/L / (1 + DECAY k). With a constant step size, error feedback stalls when workers differ."""
NETWORK_BLOCK, NETWORK_RATIO, NETWORK_NORM = 16, 0.1, 0.05
EPOCHS = 30
"""Epochs after which accuracies are claimed."""
POINTS = 2.0
"""How many percentage points a mean accuracy may be below dense training's."""
RANDOM, TOP, TOP_RATIO, THRESHOLD = NAMES = ("block random-k", "block top-k", "block top-k ratio", "block threshold")
ALIKE = 1e-6
"""How far log10 of an error may be from the reference, for methods that are not random."""
CONSERVED = 1e-12
SCHEDULED = 2.0
"""The factor between errors by the units of residuals, which differ while the step size falls."""


def sparsifiers(*, block: int, ratio: float, norm: float) -> dict[str, wc.BlockSparsifier]:
    return {
        RANDOM: wc.BlockRandomK(ratio, block=block),
        TOP: wc.BlockTopK(ratio, block=block),
        TOP_RATIO: wc.BlockTopKRatio(ratio, block=block),
        THRESHOLD: wc.BlockThreshold(norm, block=block),
    }


def run(*, workers: int = 10, steps: int = 1000, every: int = 20, epochs: int = EPOCHS, seeds: int = 3) -> Report:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True)
    step_size = _step_size(task)
    methods = sparsifiers(block=BLOCK, ratio=RATIO, norm=NORM)
    compared = {name: _compared(task, name, method, steps, every) for name, method in methods.items()}
    kept = {name: _held_back(task, method, min(steps, 400)) for name, method in methods.items()}
    forgetful = error_curve(
        f"{TOP}, no memory", task, replace(methods[TOP], memory="none"), step_size=step_size, steps=steps, every=every
    )
    claims = [*compared[RANDOM].claims()]
    claims += [_follows_the_reference(compared[name]) for name in NAMES[1:]]
    claims += [
        Claim(f"{TOP}: |e|^2 / the lemma's bound, maximum over steps",
              max(kept[TOP].over(_lemma(methods[TOP], task))), 1e-3, 1),
        Claim(f"{RANDOM}: |e|^2 / the lemma's bound, mean over steps",
              float(np.mean(kept[RANDOM].over(_lemma(methods[RANDOM], task)))), 1e-3, 1),
        Claim(f"{THRESHOLD}: |e|^2 / (blocks * norm^2), maximum over steps",
              max(kept[THRESHOLD].over(lambda _: -(-task.problem.dimension // BLOCK) * NORM**2)), 1e-3, 1),
        *(Claim(f"{name}: |input - output - residuals| / |output|", one.missing,
                at_most=CONSERVED) for name, one in kept.items()),
        *(Claim(f"{name}: last error / first error", one.curve.last / one.curve.values[0], at_most=1e-2)
          for name, one in compared.items()),
        Claim(f"{TOP}: last error without error feedback / with it",
              forgetful.last / compared[TOP].curve.last, at_least=10),
        Claim(f"{TOP}: last error / with residuals of steps, as in the paper", compared[TOP].curve.last
              / float(_reference(task, TOP, steps, every, in_steps=True)[-1, 0]), 1 / SCHEDULED, SCHEDULED),
    ]  # fmt: skip
    on_network = sparsifiers(block=NETWORK_BLOCK, ratio=NETWORK_RATIO, norm=NETWORK_NORM)
    trainings = {
        name: train_with_seeds(method, seeds, workers=4, epochs=epochs)
        for name, method in {"dense": wc.Identity(), **on_network}.items()
    }
    accuracies = accuracies_of(trainings)
    claims += [] if epochs < EPOCHS else [
        Claim(f"{name}: accuracy points below dense training, mean over seeds",
              float(np.mean(accuracies["dense"] - accuracies[name])), at_most=POINTS)
        for name in NAMES
    ]  # fmt: skip
    claims.append(_bytes_of_random(trainings[RANDOM][0]))

    def draw(figure: Figure) -> None:
        curves = [*(one.curve for one in compared.values()), forgetful]
        figures.logarithmic(figure.subplots(), curves, title=f"{RATIO:.0%} of the blocks", unit=figures.ERROR)

    return Report(
        f"Blocks converge with error feedback: {workers} workers, blocks of {BLOCK}; and a network's, of "
        f"{NETWORK_BLOCK}",
        ["method", f"error after {steps} steps", "test accuracy, %", "of dense float32"],
        [
            [
                name,
                f"{compared[name].curve.last:.1e}" if name in compared else "-",
                spread(accuracies[name]),
                f"{of_seeds[0].sent_bytes / of_seeds[0].dense_bytes:.1%}",
            ]
            for name, of_seeds in trainings.items()
        ],
        claims,
        draw,
    )


def _step_size(task: Task) -> Callable[[int], float]:
    return lambda step: 1 / task.problem.worker_smoothness / (1 + DECAY * step)


def _compared(task: Task, name: str, method: wc.Compressor, steps: int, every: int) -> Runs:
    curve = error_curve(name, task, method, step_size=_step_size(task), steps=steps, every=every)
    return Runs.of([curve], _reference(task, name, steps, every))


def _reference(task: Task, name: str, steps: int, every: int, *, in_steps: bool = False) -> Array:
    return error_feedback(
        task,
        _choice(name, np.random.default_rng(4)),
        step_size=1 / task.problem.worker_smoothness,
        decay=DECAY,
        steps=steps,
        every=every,
        seeds=REFERENCE_SEEDS if name == RANDOM else 1,
        in_steps=in_steps,
    )


def _choice(name: str, generator: np.random.Generator) -> Choose:
    """The choice of a sparsifier, by an independent formula."""

    def choose(values: Array, x: Array) -> npt.NDArray[np.bool_]:
        norms = block_norms(values, BLOCK)
        count = round(RATIO * norms.shape[1])
        scores = {
            RANDOM: np.tile(generator.random(norms.shape[1]), (len(norms), 1)),
            TOP: norms,
            TOP_RATIO: norms / (block_norms(x, BLOCK) + np.finfo(np.float32).tiny),
            THRESHOLD: norms,
        }[name]
        chosen = norms >= NORM if name == THRESHOLD else largest_blocks(scores, count)
        return of_values(chosen, BLOCK, values.shape[1])

    return choose


def _follows_the_reference(runs: Runs) -> Claim:
    places = [round(part * (len(runs.curve.steps) - 1)) for part in (*CHECKED, 1)]
    apart = max(abs(runs.logarithms[0][at] - runs.reference[0][at]) for at in places)
    return Claim(f"{runs.curve.label}: log10 of the error, maximum difference to the reference", apart, at_most=ALIKE)


@dataclass(frozen=True)
class HeldBack:
    """Squares of residuals and gradients by step: |e|^2 after the step, and the largest |g|^2 so far, both means over
    workers."""

    residual_square: list[float]
    gradient_square_max: list[float]
    missing: float
    """The missing mass: |input - output - residuals|_1 divided by |output|_1."""

    def over(self, bound: Callable[[float], float]) -> list[float]:
        """The ratio of |e|^2 to its bound, a function of the largest |g|^2, by step."""
        return [e / bound(g) for e, g in zip(self.residual_square, self.gradient_square_max, strict=True)]


def _held_back(task: Task, method: wc.Compressor, steps: int) -> HeldBack:
    """Runs the descent with an engine, whose memories can be read."""
    problem, step_size = task.problem, _step_size(task)
    segment = wc.Segment((wc.Piece("x", (problem.dimension,)),))
    engine = wc.Engine(method, wc.InProcess(problem.workers))
    x, given, received = np.zeros((3, problem.dimension))
    residuals, largest = [], [0.0]
    for step in range(steps):
        gradients = [problem.gradient(worker, x) for worker in range(problem.workers)]
        estimate = engine.average([segment], [[gradient] for gradient in gradients], {"x": x})[0]
        engine.advance()
        given, received, x = given + np.mean(gradients, axis=0), received + estimate, x - step_size(step) * estimate
        held = [mine["residual"]["x"] for mine in engine.state_dict()["own"]]
        residuals.append(float(np.mean([residual @ residual for residual in held])))
        largest.append(max(largest[-1], float(np.mean([gradient @ gradient for gradient in gradients]))))
    missing = np.abs(given - received - np.mean(held, axis=0)).sum() / np.abs(received).sum()
    return HeldBack(residuals, largest[1:], float(missing))


def _lemma(method: wc.BlockSparsifier, task: Task) -> Callable[[float], float]:
    blocks = -(-task.problem.dimension // BLOCK)
    delta = round(RATIO * blocks) / blocks
    assert method.contraction(task.problem.dimension) == delta, "what is declared is what the lemma is about"
    return lambda gradient_square: 4 * (1 - delta) / delta**2 * gradient_square


def _bytes_of_random(training: Training) -> Claim:
    """Compares the bytes sent with their formula: an exponent, and the values of the chosen blocks, of which the last
    may be shorter."""
    size, steps = segments_of(network(1), "model")[0].size, len(training.losses)
    count, shorter = round(NETWORK_RATIO * -(-size // NETWORK_BLOCK)), -size % NETWORK_BLOCK
    most = steps * (2 + 4 * count * NETWORK_BLOCK)
    return Claim(f"{RANDOM}: bytes sent / bytes of as many whole blocks", training.sent_bytes / most,
                 1 - 4 * shorter * steps / most, 1)  # fmt: skip
