"""The base classes of compressors, and the three ways in which compressed tensors are aggregated.

A compressor is an immutable description, the same at all workers. The form of its messages decides its base class:

    IntegerCompressor    integers on a common scale: the network adds them                 (trait dense-int)
    SparseCompressor     values and their indices: the sum of sparse vectors               (trait sparse)
    GatherCompressor     bytes that cannot be added: an all-gather                         (trait gather)

A method of several rounds (PowerSGD, gTop-k) implements `exchange` itself, with the help of these.

`exchange` aggregates a batch of segments (tensors) at once, so that compression by layer needs no more round trips than
compression of a whole bucket. Its only side effect is on the traffic counters: the caller keeps the memories,
and updates them from the outcome (engine.py).

An Inf or NaN must reach all workers, or a loss scaler would skip the step at some of them only. Integers have no NaN,
so each exchange has a flag beside the values; if a worker sets this flag, all workers get NaN as the mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from wiresum.compress import native, packing
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Bytes, Indices, Int32Array, Sparse, Vector, is_finite
from wiresum.compress.memory import Memory
from wiresum.compress.turn import Turn
from wiresum.compress.union import INDEX_MAX, VALUE_BITS_MAX, Places, exponent_of, sum_over_union

T = TypeVar("T")

State: TypeAlias = dict[str, Vector]
"""Vectors, by name, that a compressor keeps from step to step for one segment; the same at all workers."""


class Trait(Enum):
    DENSE_INT = "dense-int"
    SPARSE = "sparse"
    GATHER = "gather"


def each(function: Callable[..., T], *rows: Sequence[Sequence[Any]]) -> list[list[T]]:
    """Calls the function for every local worker and segment; arguments and results are indexed [worker][segment]."""
    return [[function(*one) for one in zip(*of_worker, strict=True)] for of_worker in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Batch:
    """The input of one exchange: `vectors[i][s]` is segment s of the i-th local worker."""

    turns: list[list[Turn]]
    vectors: list[list[Vector]]
    states: list[State]
    """The compressor's common state, by segment."""

    def finite(self) -> list[list[bool]]:
        return each(is_finite, self.vectors)

    def cleaned(self, finite: list[list[bool]]) -> list[list[Vector]]:
        """The vectors, with zeros in place of each vector that is not finite."""
        return each(lambda vector, fine: vector if fine else np.zeros_like(vector), self.vectors, finite)


@dataclass(frozen=True)
class Outcome:
    means: Sequence[Vector | Sparse]
    """The mean over workers, by segment, as all of them decode it. Indices of a sparse mean ascend."""
    own: Sequence[Sequence[Vector | Sparse]]
    """The part of `Batch.vectors` that is in the mean, by local worker and segment. A memory keeps the rest."""
    states: list[State]
    """The compressor's common state for the next step, by segment."""
    clamped: int = 0
    """How many integers of local workers were clamped to their bits."""


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """A compression method and its options. `omega` and `contraction` give the constants of the convergence theory."""

    trait: ClassVar[Trait]
    follows_scale: ClassVar[bool] = True
    """True if the estimate of s times the gradient is s times the estimate, so that a loss scaler can be used."""
    uses_parameters: ClassVar[bool] = False
    """True if the method needs `turn.parameters`."""

    memory: str | Memory = "none"
    """A name in `memory.MEMORIES`, or a Memory."""
    down: Compressor | None = None
    """The method that compresses the mean once more, with the same result at all workers (Q_M of arXiv 1911.08250).
    None leaves the mean as it is."""

    @property
    def uses_length(self) -> bool:
        """True if the method needs `turn.length`."""
        return False

    def omega(self, size: int, workers: int) -> float | None:
        """The constant of an unbiased compressor C: the mean over workers of E|C(v)-v|^2 is at most omega times the
        mean of |v|^2. None if C is biased or the constant is unknown."""
        return None

    def contraction(self, size: int) -> float | None:
        """The constant of a contractive compressor C: E|C(v)-v|^2 <= (1 - contraction) |v|^2 at each worker. None if C
        is not contractive or the constant is unknown."""
        return None

    def shift_rate(self, size: int, workers: int) -> float | None:
        """The largest rate of a Shift memory that the theory allows; None if unknown."""
        if (omega := self.omega(size, workers)) is not None:
            return 1 / (1 + omega)
        return None if self.contraction(size) is None else 1.0

    @abstractmethod
    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome: ...


class IntegerCompressor(Compressor):
    trait = Trait.DENSE_INT

    def statistic(self, vector: Vector, turn: Turn) -> Vector | None:
        """A few numbers whose maximum over workers becomes `turn.shared`; None if the method needs no maximum.

        All workers must return the same number of them.
        """
        return None

    def bits_at(self, turn: Turn) -> int:
        """Bits of each integer on the wire: 8, 16 or 32, the same for all segments of a step."""
        return 32

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        """The integers to send, each at most `packing.limit`, so that their sum over workers fits in `bits_at` bits."""

    def clamped(self, vector: Vector, integers: Int32Array, turn: Turn) -> int:
        """How many of `integers` were clamped to their bits."""
        return 0

    @abstractmethod
    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        """The mean vector of `contributors` workers, from the sum of their integers."""

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        vectors = batch.cleaned(finite)
        turns = self._with_shared(batch.turns, vectors, aggregator)
        integers = each(self.compress, vectors, turns)
        sums = self._sum(integers, turns[0], finite, aggregator)
        means = [
            nowhere_finite(turn) if total is None else self.decompress(total, turn, turn.workers)
            for total, turn in zip(sums, turns[0], strict=True)
        ]
        own = each(lambda mine, turn: self.decompress(mine, turn, 1), integers, turns)
        clamped = sum(map(sum, each(self.clamped, vectors, integers, turns)))
        return Outcome(means, own, batch.states, clamped)

    def _with_shared(
        self, turns: list[list[Turn]], vectors: list[list[Vector]], aggregator: Aggregator
    ) -> list[list[Turn]]:
        """The turns with `shared` set: one maximum over workers serves the statistics of all segments."""
        statistics = each(self.statistic, vectors, turns)
        lengths = [0 if one is None else len(one) for one in statistics[0]]
        if not any(lengths):
            return turns
        maximum = aggregator.maximum(
            [np.concatenate([one for one in mine if one is not None], dtype=np.float64) for mine in statistics]
        )
        parts = np.split(maximum, np.cumsum(lengths)[:-1])
        return [[replace(turn, shared=part) for turn, part in zip(row, parts, strict=True)] for row in turns]

    def _sum(
        self, integers: list[list[Int32Array]], turns: list[Turn], finite: list[list[bool]], aggregator: Aggregator
    ) -> list[Int32Array | None]:
        """The sums of all segments in one aggregation; None for a segment that is not finite at some worker.

        A worker whose integers exceed the bound takes part with zeros and a flag, since the other workers wait for its
        contribution. Then all workers raise the same OverflowError.
        """
        bits = self.bits_at(turns[0])
        bound = packing.limit(bits, aggregator.workers)
        excesses = [_excess(mine, turns, bound) for mine in integers]
        lengths = [len(values) for values in integers[0]]
        contributions = []
        for mine, fines, excess in zip(integers, finite, excesses, strict=True):
            flags = np.array([*(not fine for fine in fines), bool(excess)], np.int32)
            values = [np.zeros(sum(lengths), np.int32)] if excess else mine
            contributions.append(np.concatenate([*values, flags]).astype(np.int32, copy=False))
        *sums, raised = np.split(aggregator.sum(contributions, bits), np.cumsum(lengths))
        if raised[-1]:
            self._raise_everywhere(excesses, bound, bits, aggregator)
        return [None if flag else values for values, flag in zip(sums, raised[:-1], strict=True)]

    def _raise_everywhere(self, excesses: list[str], bound: int, bits: int, aggregator: Aggregator) -> None:
        parcels = aggregator.gather([np.frombuffer(text.encode(), np.uint8) for text in excesses], sizes_equal=False)
        texts = [
            f"worker {worker}: {parcel.tobytes().decode(errors='replace')}"
            for worker, parcel in enumerate(parcels)
            if len(parcel)
        ]
        raise OverflowError(
            f"{type(self).__name__} made integers beyond {bound} ({'; '.join(texts)}): the sum over "
            f"{aggregator.workers} workers may not fit in {bits} bits. Use more bits"
        )


def _excess(integers: list[Int32Array], turns: list[Turn], bound: int) -> str:
    """A text that names the integers beyond the bound; empty if there are none."""
    sizes = [max(int(values.max(initial=0)), -int(values.min(initial=0))) for values in integers]
    return ", ".join(f"{size} for '{turn.tensor}'" for size, turn in zip(sizes, turns, strict=True) if size > bound)


class SparseCompressor(Compressor):
    """A method that sends all indices first (unless they follow from the turn), then the values: see union.py."""

    trait = Trait.SPARSE
    counts_equal: ClassVar[bool] = True
    """True if all workers always send the same number of indices."""

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Sparse: ...

    @property
    def value_bits(self) -> int:
        """Bits of a value on the wire: 8, 16 or 32. A memory keeps the rounding error."""
        return VALUE_BITS_MAX

    def indices(self, turn: Turn) -> Indices | None:
        """The indices that the turn alone determines, so that none travel; None if they depend on the vector."""
        return None

    @property
    def unit(self) -> int:
        """How many neighbouring values share an index on the wire, and are sent together or not at all."""
        return 1

    def count(self, turn: Turn) -> int:
        """How many indices each worker sends, if `counts_equal` and indices travel."""
        raise NotImplementedError(f"{type(self).__name__} sets counts_equal and so must implement count()")

    def kept(self, totals: Int32Array, turn: Turn) -> Indices | None:
        """Ascending positions in `totals` of the sums that go into the mean; None means all sums.

        A sum that is not kept counts as not sent: the memories keep its terms.
        """
        return None

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        compressed = each(self.compress, batch.cleaned(finite), batch.turns)
        messages = [[message.ascending() for message in row] for row in compressed]
        parcels = aggregator.gather(
            [self._write(*row) for row in zip(messages, batch.turns, finite, strict=True)],
            sizes_equal=self.counts_equal,
        )
        means, own = sum_over_union(self._read(parcels, batch.turns[0]), messages, aggregator, self.kept)
        return Outcome(means, own, batch.states)

    def _write(self, messages: Sequence[Sparse], turns: Sequence[Turn], finite: Sequence[bool]) -> Bytes:
        exponents = [exponent_of(message, fine) for message, fine in zip(messages, finite, strict=True)]
        parts: list[Bytes] = [np.array(exponents, "<i2").view(np.uint8)]
        units = [_units(message.indices, self.unit) for message in messages]
        if not self.counts_equal:
            parts.append(np.array([len(one) for one in units], "<i4").view(np.uint8))
        for chosen, turn in zip(units, turns, strict=True):
            if self.indices(turn) is not None:
                continue
            require_indexable(turn)
            if self.counts_equal and len(chosen) != self.count(turn):
                raise ValueError(
                    f"{type(self).__name__} chose {len(chosen)} values of '{turn.tensor}', but its count() "
                    f"is {self.count(turn)}: set counts_equal to False if the number varies"
                )
            parts.append(native.index_code(chosen, units_of(turn.size, self.unit)))
        return np.concatenate(parts)

    def _read(self, parcels: Sequence[Bytes], turns: Sequence[Turn]) -> list[Places]:
        readers = [Reader(parcel) for parcel in parcels]
        exponents = np.array([reader.take(len(turns), "<i2") for reader in readers])
        counts = [None if self.counts_equal else reader.take(len(turns), "<i4") for reader in readers]
        places = []
        for s, turn in enumerate(turns):
            by_worker = []
            for worker, (reader, of_worker) in enumerate(zip(readers, counts, strict=True)):
                known = self.indices(turn.of(worker))
                if known is None:
                    count = self.count(turn) if of_worker is None else int(of_worker[s])
                    units = units_of(turn.size, self.unit)
                    code = reader.take(native.index_code_bytes(count, units), "u1")
                    by_worker.append(elements_of(native.indices_of(code, count, units), self.unit, turn.size))
                else:
                    by_worker.append(np.sort(known))
            places.append(Places(turn, by_worker, int(exponents[:, s].max()), self.value_bits))
        return places


def units_of(size: int, unit: int) -> int:
    """How many units of `unit` values a tensor of `size` values has; the last unit may be shorter."""
    return -(-size // unit)


def elements_of(units: Indices, unit: int, size: int) -> Indices:
    """The indices of all values in the given units."""
    if unit == 1:
        return units
    elements = (units[:, None] * unit + np.arange(unit)).reshape(-1)
    return elements[: len(elements) - max(0, int(elements[-1]) + 1 - size)] if len(elements) else elements


def _units(elements: Indices, unit: int) -> Indices:
    """The inverse of elements_of, for ascending elements."""
    return elements if unit == 1 else elements[elements % unit == 0] // unit


class Reader:
    """Reads consecutive arrays from a parcel."""

    def __init__(self, parcel: Bytes) -> None:
        self._parcel = parcel
        self._at = 0

    def take(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        end = self._at + count * np.dtype(dtype).itemsize
        part: npt.NDArray[Any] = np.frombuffer(self._parcel[self._at : end].tobytes(), dtype)
        self._at = end
        return part


def require_indexable(turn: Turn) -> None:
    if turn.size > INDEX_MAX:
        raise ValueError(
            f"'{turn.tensor}' has {turn.size} values, more than the {INDEX_MAX} that can be indexed: compress by layer "
            "or by bucket"
        )


def nowhere_finite(turn: Turn) -> Vector:
    return np.full(turn.size, np.nan, turn.dtype)


class GatherCompressor(Compressor):
    trait = Trait.GATHER

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        """Returns the message to send, of as many bytes at every worker. Hosts may differ in byte order: write numbers
        as '<f4', '<i2'."""

    @abstractmethod
    def decompress(self, message: Bytes, turn: Turn) -> Vector:
        """Returns the vector of worker `turn.worker`, with `turn.size` elements of `turn.dtype`; `exchange` makes the
        mean of all."""

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        messages = each(self._flagged, batch.cleaned(finite), batch.turns, finite)
        lengths = [len(message) for message in messages[0]]
        totals = [np.zeros(turn.size, turn.dtype) for turn in batch.turns[0]]
        own = {}
        for worker, parcel in enumerate(aggregator.gather([np.concatenate(mine) for mine in messages])):
            parts = np.split(parcel, np.cumsum(lengths)[:-1])
            decoded = [self._unflagged(part, turn.of(worker)) for part, turn in zip(parts, batch.turns[0], strict=True)]
            for total, vector in zip(totals, decoded, strict=True):
                np.add(total, vector, out=total)
            if worker in aggregator.local:
                own[worker] = decoded
        means = [total / total.dtype.type(aggregator.workers) for total in totals]
        return Outcome(means, [own[worker] for worker in aggregator.local], batch.states)

    def _flagged(self, vector: Vector, turn: Turn, fine: bool) -> Bytes:
        return np.concatenate([np.array([not fine], np.uint8), self.compress(vector, turn)])

    def _unflagged(self, parcel: Bytes, turn: Turn) -> Vector:
        return nowhere_finite(turn) if parcel[0] else self.decompress(parcel[1:], turn)
