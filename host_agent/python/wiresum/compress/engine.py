"""Averages gradients of all workers with a compressor and its memory: one engine for every method.

A *piece* is a parameter; a *segment* is what is compressed as one vector: a piece (by layer), the pieces of a bucket,
or the whole model. Memories are kept by piece. So they survive when DDP rebuilds its buckets, and a checkpoint does
not depend on the granularity.

A step: `average` is called once or several times, for different segments, then `advance`. What an engine keeps changes
only when an aggregate has arrived, and then at all workers alike; a step that failed before can be repeated, and
repeats its randomness (turn.py). A mean that is not finite changes nothing: whoever scales losses skips the step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from wiresum.compress.aggregator import Aggregator, InProcess
from wiresum.compress.arrays import Sparse, Vector, is_finite, joined
from wiresum.compress.compressor import Batch, Compressor, Outcome, State
from wiresum.compress.memory import Memory, Vectors, memory_of
from wiresum.compress.parcel import packed, unpacked
from wiresum.compress.turn import Motion, Turn

STATE_VERSION = 2
GRADIENT_TYPES = (np.dtype(np.float32), np.dtype(np.float64))

Gradient: TypeAlias = Vector | Sequence[Vector]
"""A segment's: flat, or in parts that belong one after the other."""


@dataclass(frozen=True)
class Piece:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Segment:
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return "+".join(piece.name for piece in self.pieces)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces[0].shape if len(self.pieces) == 1 else (self.size,)


class Engine:
    """The same method and seed at all workers. `seed` decides all randomness."""

    def __init__(self, method: Compressor, aggregator: Aggregator, *, seed: int = 0) -> None:
        self.method = method
        self.aggregator = aggregator
        self.step = 0
        self.clamped = 0
        """Integers of this process's workers that were cut to what their bits have room for, since the engine began."""
        self._seed = seed
        self._memory = memory_of(method.memory)
        self._fitted: dict[int, Memory] = {}
        self._own: list[dict[str, dict[str, Vector]]] = [{} for _ in aggregator.local]
        """By local worker: the memory's vectors by their name there, and then by piece."""
        self._spare: list[dict[str, Vectors]] = [{} for _ in aggregator.local]
        self._common: dict[str, Vector] = {}
        self._states: dict[str, State] = {}
        self._down = Engine(method.down, InProcess(1), seed=seed) if method.down is not None else None

    def average(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        motions: Mapping[str, Motion] | None = None,
        parameters: Mapping[str, Vector] | None = None,
    ) -> list[Vector]:
        """The estimates of the mean gradient, by segment, with the same bits at every worker.

        `gradients[i][s]` is what the i-th local worker has for segment s: float32 or float64. By segment's name:
        `motions` for compressors that derive a scale from the model's motion (`uses_motion`), and `parameters`, the
        model's values, for those that compare with them (`uses_parameters`); both are the same at all workers.
        ValueError, before anything is sent, if a gradient is of another type or length than its segment's.
        """
        estimates = self.estimates(segments, gradients, motions, parameters)
        return [_dense(estimate, segment) for estimate, segment in zip(estimates, segments, strict=True)]

    def estimates(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        motions: Mapping[str, Motion] | None = None,
        parameters: Mapping[str, Vector] | None = None,
    ) -> list[Vector | Sparse]:
        """The same, sparse (by ascending index) where the method and its memory leave it so."""
        for i, row in enumerate(gradients):
            for segment, gradient in zip(segments, row, strict=True):
                _require_fit(segment, gradient, self.aggregator.local[i])
        memories = [self._memory_for(segment.size) for segment in segments]
        own = [
            [
                tuple(_load(mine.get(name, {}), segment, _dtype_of(gradient)) for name in memory.keeps)
                for segment, memory, gradient in zip(segments, memories, gradients[i], strict=True)
            ]
            for i, mine in enumerate(self._own)
        ]
        outgoing = [
            [self._outgoing(i, *one) for one in zip(segments, memories, row, own[i], strict=True)]
            for i, row in enumerate(gradients)
        ]
        compressed = [[vectors[0] for vectors in row] for row in outgoing]
        outcome = self.method.exchange(
            self._batch(segments, compressed, motions or {}, parameters or {}), self.aggregator
        )
        self._note_clamped(outcome.clamped)
        estimates: list[Vector | Sparse] = [
            self._commit(s, segment, memories[s], outcome, [row[s] for row in outgoing], [row[s] for row in own])
            for s, segment in enumerate(segments)
        ]
        if self._down is None:
            return estimates
        down: list[Gradient] = [
            _dense(estimate, segment) for estimate, segment in zip(estimates, segments, strict=True)
        ]
        return self._down.estimates(segments, [down])

    def _note_clamped(self, count: int) -> None:
        """A memory sends what was cut in later steps; without one it is lost, which its owner should know."""
        if count and not self.clamped and not self._memory.keeps:
            warnings.warn(
                f"{type(self.method).__name__} cut {count} integers in step {self.step} to what its bits have room "
                "for, and no memory keeps the rest: the mean is biased. Use IntDIANA, whose integers stay small, more "
                'bits, or scale="maximum". Engine.clamped counts on.',
                RuntimeWarning,
                stacklevel=4,
            )
        self.clamped += count

    def _outgoing(self, i: int, segment: Segment, memory: Memory, gradient: Gradient, own: Vectors) -> Vectors:
        """What the i-th local worker compresses, and what else settles its memory.

        Parts are not joined before, which would take a pass over memory.
        """
        out = self._spare[i].pop(segment.name, None)
        parts = memory.admitted([gradient] if isinstance(gradient, np.ndarray) else gradient, self.aggregator.workers)
        if out is None and len(parts) == 1:
            return memory.outgoing(parts[0], own)
        if out is None or out[0].dtype != parts[0].dtype:
            out = tuple(np.empty(segment.size, parts[0].dtype) for _ in range(max(1, len(memory.keeps))))
        at = 0
        for part in parts:
            end = at + len(part)
            memory.outgoing(part, _cut(own, at, end), _cut(out, at, end))
            at = end
        return out

    def _commit(
        self,
        s: int,
        segment: Segment,
        memory: Memory,
        outcome: Outcome,
        outgoing: Sequence[Vectors],
        own: Sequence[Vectors],
    ) -> Vector | Sparse:
        """The aggregate of segment s is here: memories change, and the estimate comes out."""
        mean = outcome.means[s]
        values = mean.values if isinstance(mean, Sparse) else mean
        if not is_finite(values):
            return mean
        self._states[segment.name] = outcome.states[s]
        for i, mine in enumerate(self._own):
            sent = outcome.own[i][s]
            if isinstance(sent, Sparse):
                settled = memory.settle_sparse(outgoing[i], sent, own[i])
            else:
                settled = memory.settle(outgoing[i], sent, own[i])
            for name, vector in zip(memory.keeps, settled, strict=True):
                _store(mine.setdefault(name, {}), segment, vector)
            if memory.keeps and all(now is before for now, before in zip(settled, outgoing[i], strict=True)):
                # The memory has this step's vectors now, and the next step's can have the place of those that it had:
                # large vectors are expensive to take from the system and to give back.
                self._spare[i][segment.name] = own[i]
        common = _load(self._common, segment, values.dtype) if memory.has_common else values[:0]
        if isinstance(mean, Sparse):
            estimate, common = memory.estimate_sparse(mean, segment.size, common)
        else:
            estimate, common = memory.estimate(mean, common)
        if memory.has_common:
            _store(self._common, segment, common)
        return estimate

    def advance(self) -> None:
        """The step is done: the next one draws other randomness."""
        self.step += 1
        if self._down is not None:
            self._down.advance()

    def state_dict(self) -> dict[str, Any]:
        """All that continues bit for bit after `load_state_dict`: this process's own memories, and the common ones."""
        return {
            "version": STATE_VERSION,
            "step": self.step,
            "seed": self._seed,
            "own": [_copied_by_name(mine) for mine in self._own],
            "common": _copied(self._common),
            "states": _copied_by_name(self._states),
            "down": None if self._down is None else self._down.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"this state has version {state['version']}, and only {STATE_VERSION} can be loaded")
        if len(state["own"]) != len(self._own):
            raise ValueError(f"this state is of {len(state['own'])} workers in a process, not of {len(self._own)}")
        if (state["down"] is None) != (self._down is None):
            raise ValueError("this state is of a method that compresses in other directions than this one")
        self.step, self._seed = int(state["step"]), int(state["seed"])
        self._own = [_copied_by_name(mine) for mine in state["own"]]
        self._common = _copied(state["common"])
        self._states = _copied_by_name(state["states"])
        if self._down is not None:
            self._down.load_state_dict(state["down"])

    def synchronize(self, pieces: Iterable[Piece], dtypes: Iterable[np.dtype[Any]], companion: Any = None) -> Any:
        """Makes memories consistent after workers came or went: a collective that all workers call.

        Step, seed and common states become those of the worker that is furthest; a worker that has nothing starts
        with empty memories of its own; common vectors become the mean of everybody's own. Returns the furthest worker's
        `companion`: a state that the caller has alike at all workers.
        """
        parcels = [packed({**self._shared_state(), "companion": companion})] * len(self.aggregator.local)
        shared = [unpacked(parcel) for parcel in self.aggregator.gather(parcels, sizes_equal=False)]
        furthest = max(shared, key=lambda state: int(state["step"]))
        self.step, self._seed, self._states = furthest["step"], furthest["seed"], furthest["states"]
        if self._down is not None:
            self._down.load_state_dict(furthest["down"])
        for piece, dtype in zip(pieces, dtypes, strict=True) if self._memory.has_common else ():
            first = self._memory.keeps[0]
            mine = [_load(own.get(first, {}), Segment((piece,)), dtype).view(np.uint8) for own in self._own]
            total = np.zeros(piece.size)
            for parcel in self.aggregator.gather(mine):
                total += parcel.copy().view(dtype)
            self._common[piece.name] = (total / self.aggregator.workers).astype(dtype)
        return furthest["companion"]

    def _shared_state(self) -> dict[str, Any]:
        """What all workers have alike, but for the common vectors."""
        state = self.state_dict()
        return {name: state[name] for name in ("step", "seed", "states", "down")}

    def _memory_for(self, size: int) -> Memory:
        if size not in self._fitted:
            self._fitted[size] = self._memory.fitted(self.method, size, self.aggregator.workers)
        return self._fitted[size]

    def _batch(
        self,
        segments: Sequence[Segment],
        vectors: list[list[Vector]],
        motions: Mapping[str, Motion],
        parameters: Mapping[str, Vector],
    ) -> Batch:
        turns = [
            [
                Turn(
                    seed=self._seed,
                    step=self.step,
                    worker=worker,
                    workers=self.aggregator.workers,
                    tensor=segment.name,
                    shape=segment.shape,
                    dtype=vector.dtype,
                    motion=motions.get(segment.name),
                    parameters=parameters.get(segment.name),
                )
                for segment, vector in zip(segments, mine, strict=True)
            ]
            for worker, mine in zip(self.aggregator.local, vectors, strict=True)
        ]
        return Batch(turns, vectors, [self._states.get(segment.name, {}) for segment in segments])


def _require_fit(segment: Segment, gradient: Gradient, worker: int) -> None:
    parts = [gradient] if isinstance(gradient, np.ndarray) else gradient
    for part in parts:
        if part.dtype not in GRADIENT_TYPES:
            raise ValueError(f"worker {worker}'s gradient of '{segment.name}' is {part.dtype}: give float32 or float64")
    if (size := sum(part.size for part in parts)) != segment.size:
        raise ValueError(f"worker {worker}'s gradient of '{segment.name}' has {size} values, not {segment.size}")


def _dense(estimate: Vector | Sparse, segment: Segment) -> Vector:
    return estimate.dense(segment.size) if isinstance(estimate, Sparse) else estimate


def _dtype_of(gradient: Gradient) -> np.dtype[Any]:
    return gradient.dtype if isinstance(gradient, np.ndarray) else gradient[0].dtype


def _load(store: Mapping[str, Vector], segment: Segment, dtype: np.dtype[Any]) -> Vector:
    """The segment's vector in a store; zeros for pieces that are not there yet."""
    parts = [store.get(piece.name) for piece in segment.pieces]
    known = [
        np.zeros(piece.size, dtype) if part is None else part for piece, part in zip(segment.pieces, parts, strict=True)
    ]
    return joined(known)


def _store(store: dict[str, Vector], segment: Segment, vector: Vector) -> None:
    if len(segment.pieces) == 1:
        store[segment.pieces[0].name] = vector
        return
    ends = np.cumsum([piece.size for piece in segment.pieces])
    for piece, part in zip(segment.pieces, np.split(vector, ends[:-1]), strict=True):
        store[piece.name] = part


def _cut(vectors: Vectors, begin: int, end: int) -> Vectors:
    return tuple(vector[begin:end] for vector in vectors)


def _copied(vectors: Mapping[str, Vector]) -> dict[str, Vector]:
    return {name: vector.copy() for name, vector in vectors.items()}


def _copied_by_name(stores: Mapping[str, Mapping[str, Vector]]) -> dict[str, dict[str, Vector]]:
    return {name: _copied(store) for name, store in stores.items()}
