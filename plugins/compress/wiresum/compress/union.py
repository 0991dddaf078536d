"""The sum of sparse vectors over all workers: first the indices travel, then the values, as integers.

An all-gather of the indices (in the code of host_agent/src/numeric/indices.hpp) tells all workers the *union*. Then
there are two ways for the values:

    sum       each worker sends a value for each index of the union, zero where it has none, and the network adds
              them: each link carries as many numbers down as the union has
    gather    an all-gather of the values: each link carries the values of all workers down

The more indices the workers share, the better the sum; `Aggregator.prefers_sum` decides. Both ways give the same bits:
values travel as integers of 32 bits on a common scale, a power of two. With N workers and a largest magnitude below 2^E
(exponents travel with the indices), a value v becomes v * 2^(b - E), rounded to the nearest integer, with b =
floor(log2(floor((2^31 - 1) / N))): the sum of N fits in 32 bits. The rounding error counts as not sent: the memory
keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wiresum.compress import native, packing
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Indices, Int32Array, Sparse, Vector, is_finite
from wiresum.compress.turn import Turn

NOTHING = -(2**15)
"""The exponent of a vector of zeros."""
NOT_FINITE = 2**15 - 1
INDEX_MAX = 2**31 - 1
VALUE_BITS_MAX = 32


def exponent_of(message: Sparse, finite: bool) -> int:
    """The smallest E with all magnitudes below 2^E; NOTHING for zeros; NOT_FINITE if a value, or the vector before
    compression (`finite` False), is not finite."""
    if not finite or not is_finite(message.values):
        return NOT_FINITE
    largest = float(np.abs(message.values).max(initial=0))
    return int(np.frexp(largest)[1]) if largest else NOTHING


@dataclass(frozen=True)
class Places:
    """The result of the first round for one segment; the same at all workers."""

    turn: Turn
    by_worker: list[Indices]
    exponent: int
    """The largest exponent of all workers."""
    bits: int = VALUE_BITS_MAX
    """Bits of a value on the wire: 8, 16 or 32, the same for all segments."""

    @property
    def travels(self) -> bool:
        """True if there are values for a second round."""
        return self.exponent not in (NOTHING, NOT_FINITE)

    def without_values(self) -> Vector | Sparse:
        """The mean if no values travel: NaN if a worker's vector is not finite, else zero."""
        if self.exponent == NOT_FINITE:
            return np.full(self.turn.size, np.nan, self.turn.dtype)
        return _nothing(self.turn)

    def shift(self) -> int:
        """Base-2 logarithm of the scale."""
        return packing.limit(self.bits, self.turn.workers).bit_length() - 1 - self.exponent

    def integers(self, values: Vector) -> Int32Array:
        return np.rint(np.ldexp(values.astype(np.float64), self.shift())).astype(np.int32)

    def values(self, integers: Int32Array, divisor: int = 1) -> Vector:
        """The inverse of `integers`, divided by `divisor`."""
        return (np.ldexp(integers.astype(np.float64), -self.shift()) / divisor).astype(self.turn.dtype)


def sum_over_union(
    places: Sequence[Places],
    messages: Sequence[Sequence[Sparse]],
    aggregator: Aggregator,
    kept: Callable[[Int32Array, Turn], Indices | None],
) -> tuple[list[Vector | Sparse], list[list[Vector | Sparse]]]:
    """The means by segment, and the part of each local worker's message that is in them, by worker and segment.

    `kept` chooses among the sums, as SparseCompressor.kept. A mean is NaN if some worker's values are not finite.
    """
    travelling = [s for s, place in enumerate(places) if place.travels]
    integers = [[places[s].integers(mine[s].values) for s in travelling] for mine in messages]
    indices = [[mine[s].indices for s in travelling] for mine in messages]
    totals = _totals([places[s] for s in travelling], indices, integers, aggregator)
    means = [place.without_values() for place in places]
    own: list[list[Vector | Sparse]] = [[_nothing(place.turn) for place in places] for _ in messages]
    for at, s in enumerate(travelling):
        place, (union, total) = places[s], totals[at]
        chosen = kept(total, place.turn)
        if chosen is not None:
            union, total = union[chosen], total[chosen]
        means[s] = Sparse(union, place.values(total, aggregator.workers))
        for mine, of_worker, values in zip(own, indices, integers, strict=True):
            sent = slice(None) if chosen is None else native.places_among(of_worker[at], union) >= 0
            mine[s] = Sparse(of_worker[at][sent], place.values(values[at][sent]))
    return means, own


def _nothing(turn: Turn) -> Sparse:
    return Sparse(np.zeros(0, np.int64), np.zeros(0, turn.dtype))


def _totals(
    places: Sequence[Places],
    indices: Sequence[Sequence[Indices]],
    integers: Sequence[Sequence[Int32Array]],
    aggregator: Aggregator,
) -> list[tuple[Indices, Int32Array]]:
    """The union of indices and the sums in its order, by segment."""
    counts = [sum(len(place.by_worker[worker]) for place in places) for worker in range(aggregator.workers)]
    if not any(counts):
        return [(np.zeros(0, np.int64), np.zeros(0, np.int32)) for _ in places]
    unions = [native.union_of(place.by_worker, place.turn.size) for place in places]
    length, per_word = sum(map(len, unions)), VALUE_BITS_MAX // places[0].bits
    if length < sum(counts) and aggregator.prefers_sum(-(-length // per_word), -(-max(counts) // per_word)):
        totals = _summed(places, unions, indices, integers, aggregator)
    else:
        totals = _gathered(places, unions, integers, max(counts), aggregator)
    return list(zip(unions, totals, strict=True))


def _summed(
    places: Sequence[Places],
    unions: Sequence[Indices],
    indices: Sequence[Sequence[Indices]],
    integers: Sequence[Sequence[Int32Array]],
    aggregator: Aggregator,
) -> list[Int32Array]:
    contributions = []
    for where, values in zip(indices, integers, strict=True):
        parts = [np.zeros(len(union), np.int32) for union in unions]
        for part, union, mine, own in zip(parts, unions, where, values, strict=True):
            part[native.places_among(mine, union)] = own
        contributions.append(np.concatenate(parts))
    total = aggregator.sum(contributions, places[0].bits)
    return np.split(total, np.cumsum([len(union) for union in unions])[:-1])


def _gathered(
    places: Sequence[Places],
    unions: Sequence[Indices],
    integers: Sequence[Sequence[Int32Array]],
    longest: int,
    aggregator: Aggregator,
) -> list[Int32Array]:
    kind = f"<i{places[0].bits // 8}"
    parcels = []
    for values in integers:
        parcel = np.zeros(longest, kind)
        joined = np.concatenate(values)
        parcel[: len(joined)] = joined
        parcels.append(parcel.view(np.uint8))
    gathered = [parcel.copy().view(kind) for parcel in aggregator.gather(parcels)]
    totals = []
    first = [0] * aggregator.workers
    for place, union in zip(places, unions, strict=True):
        total = np.zeros(len(union), np.int32)
        for worker, indices in enumerate(place.by_worker):
            total[native.places_among(indices, union)] += gathered[worker][first[worker] : first[worker] + len(indices)]
            first[worker] += len(indices)
        totals.append(total)
    return totals
