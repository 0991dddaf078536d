"""Measures the memory of each method of the guide at one worker: `make bench NAMES=memory`.

tracemalloc counts NumPy's arrays, the only large ones: native code writes into them. The gradient itself, of a matrix
and two biases, is not counted, and is the unit. It has few large values, as gradients have, of which the thresholds of
the guide choose some percent.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Mapping, Sequence

import numpy as np

from wiresum.compress import Aggregator, Compressor, Engine, Piece, Segment
from wiresum.compress.arrays import Bytes, Int32Array, Vector
from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.program import Record

SIDE = 512
SCALE = 0.002
STEPS = 3
"""Steps before the measured one: the first has no arrays to use again, and may have wider integers."""


class OneOfMany(Aggregator):
    """The network of worker 0, when all the others send what it sends."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, [0])

    def _sum_words(self, contributions: Sequence[Int32Array]) -> Int32Array:
        total: Int32Array = contributions[0] * np.int32(self.workers)
        return total

    def _maximum(self, contributions: Sequence[Vector]) -> tuple[Vector, int]:
        return contributions[0].copy(), contributions[0].nbytes

    def _gather(self, contributions: Sequence[Bytes]) -> list[Bytes]:
        return list(np.tile(contributions[0], (self.workers, 1)))

    def _deliver(
        self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int
    ) -> dict[int, Bytes]:
        return {destination: parcels[0].copy() for _, destination in routes if destination == 0}


def memory_of(method: Compressor, workers: int, side: int = SIDE) -> tuple[float, float, Engine]:
    """Gradients kept between steps, and held at most in a step, by one of so many workers; and its engine."""
    segments = [Segment((Piece(name, shape),)) for name, shape in (("w", (side, side)), ("a", (side,)), ("b", (side,)))]
    random = np.random.default_rng(1)
    values = SCALE * random.normal(size=side * (side + 2)) * np.exp(random.normal(size=side * (side + 2)))
    gradient = values.astype(np.float32)
    parts = np.split(gradient, [side**2, side**2 + side])
    parameters = {"w": parts[0], "a": parts[1], "b": parts[2]}
    tracemalloc.start()
    try:
        engine = Engine(method, OneOfMany(workers))
        for _ in range(STEPS + 1):
            tracemalloc.reset_peak()
            engine.average(segments, [parts], parameters)
            engine.advance()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept / gradient.nbytes, peak / gradient.nbytes, engine


def records(workers: int) -> list[Record]:
    """The records of all methods of the guide's table."""
    from wiresum.experiments.adaptive_optimizers import METHODS  # which imports PyTorch and matplotlib

    found = {name: memory_of(method, workers) for name, method in METHODS.items()}
    return [{"method": name, "kept": round(kept, 1), "peak": round(peak, 1)} for name, (kept, peak, _) in found.items()]


def main(arguments: Sequence[str]) -> int:
    options = program.Options("memory", __doc__, workers=4, link_mbit=None).parse_args(arguments)
    program.keep(options.json, records(options.workers))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
