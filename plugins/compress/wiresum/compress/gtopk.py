"""gTop-k: the k largest entries of the sum of all workers' top k (arXiv 1901.04359).

mode="exact" (the default): the sparse vectors are added in full, then all workers choose the same k entries of the sum.
The workers' memories keep the values that were not chosen, so nothing is lost.

mode="tree" is the published algorithm: workers merge in pairs, and each merge keeps k entries of the sum of two; then
the result goes back down the tree. The root receives 2k log2 N numbers (k values and k indices a merge) and sends as
many. If an inner merge drops a contribution, but its coordinate reaches the result by another path, the memory counts
the contribution as sent, and it is lost. The published algorithm has this defect, so `exact` is the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Bytes, Indices, Int32Array, Sparse, Vector, is_ascending_below, is_finite
from wiresum.compress.compressor import (
    Batch,
    Outcome,
    Reader,
    SparseCompressor,
    each,
    nowhere_finite,
    require_indexable,
)
from wiresum.compress.memory import Memory
from wiresum.compress.native import largest, places_among
from wiresum.compress.ratio import Ratio, require_ratio
from wiresum.compress.sparse import TopK
from wiresum.compress.turn import Turn


@dataclass(frozen=True)
class GTopK(SparseCompressor):
    """gTop-k. `bits` is the width of values on the wire in mode "exact", 16 or 32; the memory keeps the rounding
    error."""

    ratio: Ratio
    mode: Literal["exact", "tree"] = field(default="exact", kw_only=True)
    bits: Literal[16, 32] = field(default=32, kw_only=True)
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        require_ratio(self.ratio)
        if self.mode not in ("exact", "tree"):
            raise ValueError(f'the mode is "exact" or "tree", not {self.mode!r}')
        if self.bits not in (16, 32):
            raise ValueError(f"a value of the sum has 16 or 32 bits, not {self.bits}")
        if self.mode == "tree" and self.bits != 32:
            raise ValueError('mode="tree" sends values unchanged: bits are for mode="exact"')

    @property
    def value_bits(self) -> int:
        return self.bits

    def count(self, turn: Turn) -> int:
        return TopK(self.ratio).count(turn)

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        return TopK(self.ratio).compress(vector, turn)

    def kept(self, totals: Int32Array, turn: Turn) -> Indices:
        return largest(totals, self.count(turn))

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        return super().exchange(batch, aggregator) if self.mode == "exact" else self._tree(batch, aggregator)

    def _tree(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        turns, finite = batch.turns[0], batch.finite()
        mine = each(self.compress, batch.cleaned(finite), batch.turns)
        for row, fines in zip(mine, finite, strict=True):
            for message, fine in zip(row, fines, strict=True):
                if not fine:
                    message.values[...] = np.nan
        held = dict(zip(aggregator.local, mine, strict=True))
        up = rounds_up(aggregator.workers)
        for routes in up:
            for worker, messages in self._deliver(routes, held, turns, aggregator).items():
                held[worker] = [_merge(*one) for one in zip(held[worker], messages, turns, strict=True)]
        for routes in reversed(up):
            back = [(destination, source) for source, destination in routes]
            held.update(self._deliver(back, held, turns, aggregator))
        messages = held[aggregator.local[0]]
        means: list[Vector | Sparse] = [
            Sparse(message.indices, message.values / turn.dtype.type(turn.workers))
            if is_finite(message.values)
            else nowhere_finite(turn)
            for message, turn in zip(messages, turns, strict=True)
        ]
        own = [[_only(message.indices, one) for message, one in zip(messages, row, strict=True)] for row in mine]
        return Outcome(means, own, batch.states)

    def _deliver(
        self, routes: list[tuple[int, int]], held: dict[int, list[Sparse]], turns: list[Turn], aggregator: Aggregator
    ) -> dict[int, list[Sparse]]:
        parcels = {worker: _write(messages, turns) for worker, messages in held.items()}
        nbytes = len(next(iter(parcels.values())))
        arrived = aggregator.deliver(routes, parcels, nbytes)
        return {worker: self._read_messages(parcel, turns) for worker, parcel in arrived.items()}

    def _read_messages(self, parcel: Bytes, turns: list[Turn]) -> list[Sparse]:
        reader, messages = Reader(parcel), []
        for turn in turns:
            indices = reader.take(self.count(turn), "<i4").astype(np.int64)
            # These indices come from another worker, and will be positions in a vector.
            if len(indices) != self.count(turn) or not is_ascending_below(indices, turn.size):
                raise ValueError(f"another worker's indices of '{turn.tensor}' do not ascend below {turn.size}")
            messages.append(Sparse(indices, reader.take(self.count(turn), turn.dtype)))
        return messages


def rounds_up(workers: int) -> list[list[tuple[int, int]]]:
    """Pairs of source and destination by round, for ceil(log2 N) rounds, after which worker 0 has everything."""
    strides = [1 << level for level in range((workers - 1).bit_length())]
    return [
        [(worker + stride, worker) for worker in range(0, workers, 2 * stride) if worker + stride < workers]
        for stride in strides
    ]


def _merge(one: Sparse, other: Sparse, turn: Turn) -> Sparse:
    """The k largest entries of the sum of two sparse vectors, by ascending index. NaN counts as the largest, so that it
    reaches all workers."""
    indices, where = np.unique(np.concatenate([one.indices, other.indices]), return_inverse=True)
    values: Vector = np.zeros(len(indices), turn.dtype)
    np.add.at(values, where, np.concatenate([one.values, other.values]))
    chosen = largest(values, len(one.values))
    return Sparse(indices[chosen], values[chosen])


def _only(chosen: Indices, message: Sparse) -> Sparse:
    kept = places_among(message.indices, chosen) >= 0
    return Sparse(message.indices[kept], message.values[kept])


def _write(messages: list[Sparse], turns: list[Turn]) -> Bytes:
    parts = []
    for message, turn in zip(messages, turns, strict=True):
        require_indexable(turn)
        parts += [message.indices.astype("<i4").view(np.uint8), message.values.astype(turn.dtype).view(np.uint8)]
    return np.concatenate(parts)
