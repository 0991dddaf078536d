"""The context of one tensor of one worker in one step, and its random numbers.

The random generator has no state: it is Philox, a hash of a key (seed and tensor's name) and a counter (index, worker,
step and stream). A repeated step therefore has the same random numbers, a worker can compute the numbers of another
worker, and any part of the sequence can be computed alone. host_agent/src/numeric/stochastic.hpp defines the generator.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wiresum.compress import native
from wiresum.compress.arrays import Indices, Vector

COMMON = (1 << 32) - 1
"""Worker number in the counter of random numbers that all workers share."""


@dataclass(frozen=True)
class Turn:
    """The context of one tensor of one worker in one step. Only `worker` differs between workers."""

    seed: int
    step: int
    worker: int
    workers: int
    tensor: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.floating[Any]]
    shared: Vector | None = None
    """The maximum over workers of the compressor's `statistic`."""
    length: float | None = None
    """The root mean square (a moving average) of the norms of this tensor's last estimates, for compressors with
    `uses_length`; None before the first estimate, and if all were zero."""
    parameters: Vector | None = None
    """The model's values of this tensor, for compressors with `uses_parameters`; else None."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def common(self) -> Turn:
        """This turn with the random numbers that all workers share."""
        return self.of(COMMON)

    def of(self, worker: int) -> Turn:
        return replace(self, worker=worker)

    def uniform(self, count: int, *, stream: int = 0, first: int = 0) -> npt.NDArray[np.float64]:
        """Numbers `first` to `first + count` of a sequence in [0, 1), multiples of 2^-32."""
        return np.multiply(native.random_words(self.draw(stream), first, count), 2.0**-32, dtype=np.float64)

    def signs(self, count: int, *, stream: int = 0) -> npt.NDArray[np.float64]:
        """Random numbers +1 and -1 with equal probability."""
        return np.where(native.random_words(self.draw(stream), 0, count) >> 31, 1.0, -1.0)

    def subset(self, size: int, count: int, *, stream: int = 0) -> Indices:
        """A random subset of `count` numbers below `size`, ascending."""
        return np.sort(self.permutation(size, stream=stream)[:count])

    def permutation(self, size: int, *, stream: int = 0) -> Indices:
        """A random permutation of the numbers below `size`; read-only."""
        return (_common_permutation if self.worker == COMMON else _permutation)(self.draw(stream), size)

    def draw(self, stream: int = 0) -> native.Draw:
        """Key and counter of this turn's random numbers."""
        return (*_key(self.seed, self.tensor), self.worker, self.step, stream)


def _permutation(draw: native.Draw, size: int) -> Indices:
    """The sort order of random 64-bit keys.

    Each key's lowest bits are replaced by its position, so all keys differ and can be sorted in place, which takes half
    the time of an argsort.
    """
    number_mask = np.uint64((1 << size.bit_length()) - 1)
    keys = native.random_words(draw, 0, 2 * size).view(np.uint64)
    keys = keys & ~number_mask | np.arange(size, dtype=np.uint64)
    keys.sort()
    order: Indices = (keys & number_mask).astype(np.int64)
    order.flags.writeable = False
    return order


_common_permutation = functools.lru_cache(maxsize=2)(_permutation)
"""A cache of permutations that all workers share: RandKPartition reads every worker's part of the same one."""


@functools.lru_cache(maxsize=65536)
def _key(seed: int, tensor: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}\0{tensor}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
