"""Helpers of the compressors' tests: exchanges of one tensor between simulated workers, and statistics over
many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wiresum.compress import Aggregator, Batch, Compressor, InProcess, Outcome, Sparse, Turn

SIGMAS = 6.0
"""Deviations of a normal value: beyond six with probability 2e-9, so that thousands of them stay within at 99.999%."""

Array = npt.NDArray[Any]


def vectors(workers: int, shape: tuple[int, ...] = (60,), *, seed: int = 5, dtype: Any = np.float64) -> list[Array]:
    """Different vectors, whose entries differ greatly in size."""
    generator = np.random.default_rng(seed)
    size = int(np.prod(shape))
    scales = np.exp(generator.normal(size=size))
    return [(generator.normal(size=size) * scales + 0.3).astype(dtype) for _ in range(workers)]


def exchange(
    compressor: Compressor,
    values: Sequence[Array],
    *,
    step: int = 0,
    shape: tuple[int, ...] | None = None,
    aggregator: Aggregator | None = None,
    length: float | None = None,
    state: dict[str, Array] | None = None,
) -> Outcome:
    """Sends one tensor of each worker through an aggregator."""
    aggregator = aggregator or InProcess(len(values))
    turns = [
        [
            Turn(
                seed=1,
                step=step,
                worker=worker,
                workers=aggregator.workers,
                tensor="x",
                shape=shape or (len(vector),),
                dtype=vector.dtype,
                length=length,
                parameters=np.ones_like(vector) if compressor.uses_parameters else None,
            )
        ]
        for worker, vector in zip(aggregator.local, values, strict=True)
    ]
    outcome = compressor.exchange(Batch(turns, [[vector] for vector in values], [state or {}]), aggregator)
    size = len(values[0])
    means = [_dense(mean, size) for mean in outcome.means]
    own = [[_dense(one, size) for one in row] for row in outcome.own]
    return Outcome(means, own, outcome.states, outcome.clamped)


def _dense(vector: Array | Sparse, size: int) -> Array:
    return vector.dense(size) if isinstance(vector, Sparse) else vector


def assert_unbiased(compressor: Compressor, values: Sequence[Array], *, steps: int = 300) -> None:
    """The mean over many steps is the workers' mean, each coordinate within SIGMAS standard errors. If one of two
    outcomes hardly occurred in a coordinate, the sample cannot give its standard error; a third of the other
    coordinates' is used instead."""
    means = np.stack([exchange(compressor, values, step=step).means[0] for step in range(steps)])
    error = np.abs(means.mean(axis=0) - np.mean(values, axis=0))
    deviation = means.std(axis=0) / math.sqrt(steps)
    deviation = np.maximum(deviation, np.median(deviation) / 3)
    scale = np.abs(values).max()
    assert (error <= SIGMAS * deviation + 1e-6 * scale).all(), float((error / (deviation + 1e-12)).max())
    assert (means.std(axis=0) > 0).any(), "it is not random at all"


def assert_variance_within_omega(compressor: Compressor, values: Sequence[Array], *, steps: int = 200) -> None:
    """The mean over workers of E|C(v)-v|^2 is at most the declared omega times the mean of |v|^2."""
    omega = compressor.omega(len(values[0]), len(values))
    assert omega is not None
    squares = []
    for step in range(steps):
        own = [row[0] for row in exchange(compressor, values, step=step).own]
        squares.append(np.mean([np.sum((mine - value) ** 2) for mine, value in zip(own, values, strict=True)]))
    bound = omega * np.mean([np.sum(value**2) for value in values])
    assert np.mean(squares) <= bound + SIGMAS * np.std(squares) / math.sqrt(steps) + 1e-12


class Unpacked(InProcess):
    """The reference aggregator, which adds integers of 64 bits without packing them into words."""

    def sum(self, contributions: Sequence[Array], bits: int) -> Array:
        total = np.sum([values.astype(np.int64) for values in contributions], axis=0)
        assert np.abs(total).max(initial=0) < 2 ** (bits - 1), "the sum does not fit its bits"
        return total.astype(np.int32)
