"""Distributed proximal gradient descent with compressed gradients: DIANA's algorithm 1 and other methods.

    g_hat = the engine's estimate of the mean of g_i        (compressor, memory: wiresum.compress)
    v     = beta v + g_hat
    x     = prox(x - gamma v)

    VR-DIANA   an unbiased compressor, memory="diana", estimator=LSVRG() or SAGA()
    ISEGA      RandK(1/n, memory="diana")
    IBCD       RandK(1/n)                                   needs grad f_i(x*) = 0
    ISAGA      RandK(1/n, memory="diana"), estimator=SAGA() the whole table is updated, not a block
    EF21       TopK(ratio, memory="diana")
    QSGD       QSGD()

Only gradients travel: every worker computes the same x from the same aggregates. Simulated workers (the default) and a
process group give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wiresum.compress import Aggregator, Compressor, Engine, InProcess, Piece, Segment, Turn
from wiresum.compress.arrays import Vector
from wiresum.compress.checkpoint import description_of, digest_of
from wiresum.convex.estimators import Estimator, Plain
from wiresum.convex.problem import Problem
from wiresum.convex.prox import Proximal

NAME = "x"
ROWS_TENSOR = "rows"


@dataclass(frozen=True)
class Progress:
    """The argument of an observer, which is called before each step and after the last."""

    step: int
    x: Vector
    sent_bytes: float
    """Bytes that each worker has sent so far."""


@dataclass(frozen=True)
class Minimum:
    x: Vector
    steps: int
    sent_bytes: float
    dense_bytes: float
    """Bytes of the same gradients in float32."""


def distributed_minimize(
    problem: Problem,
    method: Compressor,
    *,
    step_size: float | Callable[[int], float],
    steps: int,
    estimator: Estimator | None = None,
    momentum: float = 0.0,
    proximal: Proximal | None = None,
    start: Vector | None = None,
    aggregator: Aggregator | None = None,
    seed: int = 0,
    observe: Callable[[Progress], bool | None] | None = None,
) -> Minimum:
    """Makes at most `steps` steps from `start` (zeros unless given); an observer that returns True ends the descent.

    The step size is a number, or a function of the step, from 0 (`decreasing_steps`).

    Without an aggregator all workers are simulated in this process. With the aggregator of a process group, this
    process is one worker, and all compare their arguments: ValueError at all of them if one differs. A step size that
    is a function is compared at step 0. ValueError if the numbers of workers differ, or if a step size is not positive.
    """
    aggregator = aggregator or InProcess(problem.workers)
    if aggregator.workers != problem.workers:
        raise ValueError(f"the problem is dealt to {problem.workers} workers, and the group has {aggregator.workers}")
    estimator = estimator or Plain()
    engine = Engine(method, aggregator, seed=seed)
    segment = Segment((Piece(NAME, (problem.dimension,)),))
    x: Vector = np.zeros(problem.dimension) if start is None else start.astype(np.float64)
    engine.require_agreement(
        lambda: {
            "step_size": step_size(0) if callable(step_size) else step_size,
            "steps": steps,
            "dimension": problem.dimension,
            "estimator": description_of(estimator),
            "momentum": momentum,
            "proximal": description_of(proximal),
            "start": digest_of({NAME: x}),
        }
    )
    states = [estimator.start(problem, worker, x) for worker in aggregator.local]
    velocity: Vector = np.zeros(problem.dimension)
    for step in range(steps):
        if observe is not None and observe(Progress(step, x, aggregator.traffic.sent_bytes)):
            return _minimum(x, step, aggregator)
        rate = step_size(step) if callable(step_size) else step_size
        if not 0 < rate < math.inf:
            raise ValueError(f"the step size of step {step} is {rate}: it is positive and finite")
        turns = [_turn(seed, step, worker, aggregator.workers) for worker in aggregator.local]
        gradients = [
            [estimator.gradient(problem, turn.worker, x, state, turn)]
            for turn, state in zip(turns, states, strict=True)
        ]
        parameters = {NAME: x} if method.uses_parameters else {}
        estimate = engine.average([segment], gradients, parameters)[0]
        states = [
            estimator.settle(problem, turn.worker, x, state, turn) for turn, state in zip(turns, states, strict=True)
        ]
        velocity = momentum * velocity + estimate
        x = x - rate * velocity
        if proximal is not None:
            x = proximal(x, rate)
        engine.advance()
    if observe is not None:
        observe(Progress(steps, x, aggregator.traffic.sent_bytes))
    return _minimum(x, steps, aggregator)


def _turn(seed: int, step: int, worker: int, workers: int) -> Turn:
    """The turn for the estimator's random numbers, with another tensor's name than the compressor's."""
    return Turn(seed, step, worker, workers, ROWS_TENSOR, (), np.dtype(np.float64))


def _minimum(x: Vector, steps: int, aggregator: Aggregator) -> Minimum:
    return Minimum(x, steps, aggregator.traffic.sent_bytes, 4.0 * len(x) * steps)
