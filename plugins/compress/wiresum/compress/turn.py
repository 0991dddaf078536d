"""What a compressor knows about one tensor of one worker in one step, besides the values; its randomness above all.

Randomness is a function, not a stream: the generator is Philox, whose output is a hash of a key and a counter. The key
comes from the seed and the tensor's name, the counter from index, worker, step and stream. So a step that is repeated
repeats its randomness, a worker can compute what another one draws, and any part of a draw can be computed alone, by
any number of threads. The native core has the one definition of it (host_agent/src/numeric/stochastic.hpp).
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
"""The worker whose randomness everybody draws."""


@dataclass(frozen=True)
class Turn:
    """One tensor, one worker, one step. Equal at all workers but for `worker`."""

    seed: int
    step: int
    worker: int
    workers: int
    tensor: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.floating[Any]]
    shared: Vector | None = None
    """The maximum over workers of what the compressor's `statistic` gave."""
    length: float | None = None
    """The root mean square of the lengths of this tensor's last estimates, for compressors with `uses_length`; None
    before the first, and where all were zero."""
    parameters: Vector | None = None
    """The model's values where the gradient's are, for compressors with `uses_parameters`."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def common(self) -> Turn:
        """The same turn with the randomness that all workers share."""
        return replace(self, worker=COMMON)

    def of(self, worker: int) -> Turn:
        """The turn of another worker."""
        return replace(self, worker=worker)

    def uniform(self, count: int, *, stream: int = 0, first: int = 0) -> npt.NDArray[np.float64]:
        """Numbers `first` to `first + count` of a sequence in [0, 1), multiples of 2^-32."""
        return np.multiply(self._words(count, stream, first), 2.0**-32, dtype=np.float64)

    def signs(self, count: int, *, stream: int = 0) -> npt.NDArray[np.float64]:
        """+1 or -1, evenly."""
        return np.where(self._words(count, stream, 0) >> 31, 1.0, -1.0)

    def subset(self, size: int, count: int, *, stream: int = 0) -> Indices:
        """`count` of the numbers below `size`, ascending, each subset equally likely."""
        return np.sort(self.permutation(size, stream=stream)[:count])

    def permutation(self, size: int, *, stream: int = 0) -> Indices:
        """The numbers below `size` in an order that is equally likely as any other. Not to be written to."""
        if self.worker == COMMON:
            return _common_permutation(self.seed, self.step, self.tensor, size, stream)
        return self._permutation(size, stream)

    def draw(self, stream: int = 0) -> native.Draw:
        """What native functions derive this turn's randomness from."""
        return (*_key(self.seed, self.tensor), self.worker, self.step, stream)

    def _permutation(self, size: int, stream: int) -> Indices:
        """The order of random keys of 64 bits. In place of its lowest bits each key has its number: so no two are
        alike, and keys can be sorted as they are, which takes half the time that sorting numbers by key does."""
        number_mask = np.uint64((1 << size.bit_length()) - 1)
        keys = self._words(2 * size, stream, 0).view(np.uint64)
        keys = keys & ~number_mask | np.arange(size, dtype=np.uint64)
        keys.sort()
        order: Indices = (keys & number_mask).astype(np.int64)
        return order

    def _words(self, count: int, stream: int, first: int) -> npt.NDArray[np.uint32]:
        return native.random_words(self.draw(stream), first, count)


@functools.lru_cache(maxsize=2)
def _common_permutation(seed: int, step: int, tensor: str, size: int, stream: int) -> Indices:
    """All workers' parts of one order are asked for one after the other."""
    turn = Turn(seed, step, COMMON, 0, tensor, (), np.dtype(np.float64))
    order = turn._permutation(size, stream)
    order.flags.writeable = False
    return order


@functools.lru_cache(maxsize=65536)
def _key(seed: int, tensor: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}\0{tensor}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
