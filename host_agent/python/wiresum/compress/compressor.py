"""What a compressor is, and the three ways in which compressed tensors are aggregated.

A compressor is a description: immutable, without state, the same at all workers. What it sends decides its base class:

    IntegerCompressor    integers on a common scale: the network adds them                 (trait dense-int)
    SparseCompressor     values and where they belong: the sum of sparse vectors           (trait sparse)
    GatherCompressor     bytes that do not add: everybody gets everybody's                 (trait gather)

A method of several rounds (PowerSGD, gTop-k) implements `exchange` itself, out of the others'.

`exchange` aggregates a batch of segments (tensors) at once, so that compression by layer costs no more round trips than
that of a whole bucket. It changes nothing but the traffic's counters: memories are kept by the caller, and change with
the outcome (engine.py).

An Inf or NaN must reach all workers, or a loss scaler would skip the step at some of them only. Integers cannot
carry it, so each exchange has one flag beside the values; where it is set, everybody's mean is NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from wiresum.compress import lanes
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Bytes, Indices, Int32Array, Vector, is_finite
from wiresum.compress.turn import Turn

if TYPE_CHECKING:
    from wiresum.compress.memory import Memory

State: TypeAlias = dict[str, Vector]
"""What a compressor carries from step to step for one segment; the same at all workers."""

FLAG_BYTES = 1
INDEX_MAX = 2**31 - 1


class Trait(Enum):
    DENSE_INT = "dense-int"
    SPARSE = "sparse"
    GATHER = "gather"


@dataclass(frozen=True)
class Batch:
    """What is aggregated in one go: `vectors[i][s]` is segment s of the i-th local worker."""

    turns: list[list[Turn]]
    vectors: list[list[Vector]]
    states: list[State]

    def finite(self) -> list[list[bool]]:
        return [[is_finite(vector) for vector in vectors] for vectors in self.vectors]

    def cleaned(self, finite: list[list[bool]]) -> list[list[Vector]]:
        """The vectors, with zeros in the place of those that are not finite: a flag tells of these."""
        return [
            [vector if fine else np.zeros_like(vector) for vector, fine in zip(*row, strict=True)]
            for row in zip(self.vectors, finite, strict=True)
        ]


@dataclass(frozen=True)
class Outcome:
    means: list[Vector]
    """By segment: the mean over workers, as all of them decode it."""
    own: list[list[Vector]]
    """By local worker and segment: what of `vectors` has gone into the mean. What is left stays for a memory."""
    states: list[State]
    """By segment: the compressor's state for the next step."""


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """Either `omega` or `contraction` gives the constant that theory asks for; None where there is none."""

    trait: ClassVar[Trait]

    memory: str | Memory = "none"
    """What is kept between steps: "none", "error-feedback", "diana", "ef21", or a Memory."""
    down: Compressor | None = None
    """Compresses the mean once more, at all workers alike (the other direction: Q_M of arXiv 1911.08250)."""

    @property
    def uses_motion(self) -> bool:
        """Does it want `turn.motion`?"""
        return False

    def omega(self, size: int, workers: int) -> float | None:
        """For an unbiased C: the mean over workers of E|C(v)-v|^2 is at most omega times that of |v|^2."""
        return None

    def contraction(self, size: int) -> float | None:
        """For a contractive C: E|C(v)-v|^2 <= (1 - contraction) |v|^2, at each worker."""
        return None

    @abstractmethod
    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        """One aggregation over all workers."""


class IntegerCompressor(Compressor):
    trait = Trait.DENSE_INT

    def statistic(self, vector: Vector, turn: Turn) -> Vector | None:
        """A few numbers whose maximum over workers `turn.shared` will hold; None if no maximum is needed.

        The length may depend only on what all workers have in common.
        """
        return None

    def lane_bits(self, turn: Turn) -> int:
        """Bits on the wire for each integer: 8, 16 or 32; the same for all segments of a step."""
        return 32

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        """Integers whose sum over workers fits in a lane; at most `lanes.limit` each."""

    @abstractmethod
    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        """The mean of so many workers' vectors, from the sum of their integers."""

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        vectors = batch.cleaned(finite)
        turns = self._with_shared(batch.turns, vectors, aggregator)
        integers = [
            [self.compress(v, turn) for v, turn in zip(*row, strict=True)] for row in zip(vectors, turns, strict=True)
        ]
        sums = self._sum(integers, turns[0], finite, aggregator)
        means = [
            nowhere_finite(turn) if total is None else self.decompress(total, turn, turn.workers)
            for total, turn in zip(sums, turns[0], strict=True)
        ]
        own = [
            [self.decompress(mine, turn, 1) for mine, turn in zip(*row, strict=True)]
            for row in zip(integers, turns, strict=True)
        ]
        return Outcome(means, own, batch.states)

    def _with_shared(
        self, turns: list[list[Turn]], vectors: list[list[Vector]], aggregator: Aggregator
    ) -> list[list[Turn]]:
        """Agrees on the statistics of all segments in one maximum."""
        statistics = [
            [self.statistic(v, turn) for v, turn in zip(*row, strict=True)] for row in zip(vectors, turns, strict=True)
        ]
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
        """The sums of all segments in one aggregation, each with its flag; None where the flag is set."""
        bits = self.lane_bits(turns[0])
        bound = lanes.limit(bits, aggregator.workers)
        for mine in integers:
            for values, turn in zip(mine, turns, strict=True):
                if len(values) and max(int(values.max()), -int(values.min())) > bound:
                    raise OverflowError(
                        f"{type(self).__name__} made an integer beyond {bound} for '{turn.tensor}': the sum over "
                        f"{aggregator.workers} workers may not fit in {bits} bits. Use wider lanes"
                    )
        lengths = [len(values) for values in integers[0]]
        flags = [np.array([not fine for fine in row], np.int32) for row in finite]
        total = aggregator.sum(
            [np.concatenate([*mine, flag]) for mine, flag in zip(integers, flags, strict=True)], bits
        )
        *sums, raised = np.split(total, np.cumsum(lengths))
        return [None if flag else values for values, flag in zip(sums, raised, strict=True)]


@dataclass(frozen=True)
class Sparse:
    """Values and where they belong: `indices` ascending or not, each at most once."""

    indices: Indices
    values: Vector


class SparseCompressor(Compressor):
    """The sum travels as an all-gather of values, with their indices unless these follow from the turn."""

    trait = Trait.SPARSE
    counts_equal: ClassVar[bool] = True
    """Do all workers always send the same number of values?"""

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Sparse: ...

    def indices(self, turn: Turn) -> Indices | None:
        """Where the values of a turn belong, if that can be known without the vector: then no index travels."""
        return None

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        messages = [
            [self.compress(v, turn) for v, turn in zip(*row, strict=True)]
            for row in zip(batch.cleaned(finite), batch.turns, strict=True)
        ]
        parcels = aggregator.gather(
            [self._write(*row) for row in zip(messages, batch.turns, finite, strict=True)],
            sizes_equal=self.counts_equal,
        )
        totals = self._sums(parcels, batch.turns[0])
        means = [
            total / turn.dtype.type(aggregator.workers) if is_finite(total) else nowhere_finite(turn)
            for total, turn in zip(totals, batch.turns[0], strict=True)
        ]
        own = [
            [scatter(message, turn) for message, turn in zip(*row, strict=True)]
            for row in zip(messages, batch.turns, strict=True)
        ]
        return Outcome(means, own, batch.states)

    def _write(self, messages: Sequence[Sparse], turns: Sequence[Turn], finite: Sequence[bool]) -> Bytes:
        parts: list[Bytes] = [np.array([not fine for fine in finite], np.uint8)]
        for message, turn in zip(messages, turns, strict=True):
            if not self.counts_equal:
                parts.append(np.array([len(message.values)], "<i4").view(np.uint8))
            if self.indices(turn) is None:
                parts.append(index_bytes(message.indices, turn))
            parts.append(message.values.astype(turn.dtype, copy=False).view(np.uint8))
            missing = self.count(turn) - len(message.values) if self.counts_equal else 0
            if missing:
                parts.append(np.zeros(missing * turn.dtype.itemsize, np.uint8))
        return np.concatenate(parts)

    def _sums(self, parcels: Sequence[Bytes], turns: Sequence[Turn]) -> list[Vector]:
        """By segment, all workers' values added in the workers' order; NaN where a worker has raised its flag."""
        readers = [_Reader(parcel) for parcel in parcels]
        flags = [reader.take(len(turns), "u1") for reader in readers]
        totals: list[Vector] = [np.zeros(turn.size, turn.dtype) for turn in turns]
        for s, (turn, total) in enumerate(zip(turns, totals, strict=True)):
            for worker, reader in enumerate(readers):
                count = self.count(turn) if self.counts_equal else int(reader.take(1, "<i4")[0])
                known = self.indices(turn.of(worker))
                where = reader.take(count, "<i4") if known is None else known
                total[where] += reader.take(count, turn.dtype.str)[: len(where)]
            if any(flag[s] for flag in flags):
                total[...] = np.nan
        return totals

    def count(self, turn: Turn) -> int:
        """How many values each worker sends for a turn, filled up with zeros; only where `counts_equal`."""
        raise NotImplementedError(f"{type(self).__name__} sets counts_equal and so must implement count()")


class _Reader:
    """Takes arrays from a parcel, one after the other."""

    def __init__(self, parcel: Bytes) -> None:
        self._parcel = parcel
        self._at = 0

    def take(self, count: int, dtype: str) -> npt.NDArray[Any]:
        end = self._at + count * np.dtype(dtype).itemsize
        part: npt.NDArray[Any] = np.frombuffer(self._parcel[self._at : end].tobytes(), dtype)
        self._at = end
        return part


def index_bytes(indices: Indices, turn: Turn) -> Bytes:
    """Indices as they travel: four bytes each."""
    if turn.size > INDEX_MAX:
        raise ValueError(
            f"'{turn.tensor}' has {turn.size} values, and an index on the wire counts to {INDEX_MAX}: "
            "compress by layer or by bucket"
        )
    return indices.astype("<i4").view(np.uint8)


def scatter(message: Sparse, turn: Turn) -> Vector:
    dense: Vector = np.zeros(turn.size, turn.dtype)
    dense[message.indices] = message.values
    return dense


def nowhere_finite(turn: Turn) -> Vector:
    return np.full(turn.size, np.nan, turn.dtype)


class GatherCompressor(Compressor):
    trait = Trait.GATHER

    @abstractmethod
    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        """As many bytes at every worker."""

    @abstractmethod
    def decompress(self, parcel: Bytes, turn: Turn) -> Vector: ...

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        finite = batch.finite()
        messages = [
            [self._flagged(*one) for one in zip(*row, strict=True)]
            for row in zip(batch.cleaned(finite), batch.turns, finite, strict=True)
        ]
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
        return nowhere_finite(turn) if parcel[0] else self.decompress(parcel[FLAG_BYTES:], turn)
