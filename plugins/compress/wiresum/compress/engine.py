"""Averages gradients of all workers with a compressor and its memory: one engine for every method.

A *piece* is a parameter; a *segment* is what is compressed as one vector: a piece (by layer), the pieces of a bucket,
or the whole model. Memories are kept by piece. So they survive when DDP rebuilds its buckets.

A step: `average` is called once or several times, for different segments, then `advance`. What an engine keeps changes
only when an aggregate has arrived, and then at all workers alike; a step that failed before can be repeated, and
repeats its randomness (turn.py). A mean that is not finite changes nothing: whoever scales losses skips the step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from wiresum.compress.aggregator import Aggregator, InProcess
from wiresum.compress.arrays import Sparse, Vector, is_finite, joined
from wiresum.compress.checkpoint import (
    described,
    differences,
    mismatched_names,
    mismatched_vectors,
    refuse,
    require_entries,
)
from wiresum.compress.compressor import Batch, Compressor, Outcome, State
from wiresum.compress.memory import Memory, Vectors, memory_of
from wiresum.compress.native import square_distance
from wiresum.compress.parcel import packed, unpacked
from wiresum.compress.turn import Turn

STATE_VERSION = 3
STATE_ENTRIES = (
    "version", "method", "world_size", "workers", "tensors", "step", "seed", "own", "common", "states", "squares",
    "down",
)  # fmt: skip
LENGTH_BETA = 0.9
"""Of the moving average of the estimates' squared lengths."""
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
        return "+".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

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
        """Integers of this process's workers that were clamped to what their bits can hold, since the engine began."""
        self._seed = seed
        self._memory = memory_of(method.memory)
        self._fitted: dict[int, Memory] = {}
        self._own: list[dict[str, dict[str, Vector]]] = [{} for _ in aggregator.local]
        """By local worker: the memory's vectors by their name there, and then by piece."""
        self._spare: list[dict[str, Vectors]] = [{} for _ in aggregator.local]
        self._common: dict[str, Vector] = {}
        self._states: dict[tuple[str, ...], State] = {}
        """By the pieces of a segment."""
        self._squares: dict[str, float] = {}
        """By piece: the moving average of its estimates' squared lengths, for methods with `uses_length`."""
        self._tensors: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        """Shape and type of all pieces that were averaged: those that memories have vectors of."""
        self._loaded_of: list[int] | None = None
        """The workers that a state of another number of them was of, until `synchronize` has made it consistent."""
        self._down = Engine(method.down, InProcess(1), seed=seed) if method.down is not None else None

    def average(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        parameters: Mapping[str, Vector] | None = None,
    ) -> list[Vector]:
        """The estimates of the mean gradient, by segment, with the same bits at every worker.

        `gradients[i][s]` is what the i-th local worker has for segment s: float32 or float64. `parameters`: the model's
        values by segment's name, the same at all workers, for compressors that compare with them (`uses_parameters`).
        ValueError, before anything is sent, if a gradient is of another type or length than its segment's, or a piece
        of another shape or type than before.
        """
        estimates = self.estimates(segments, gradients, parameters)
        return [_dense(estimate, segment) for estimate, segment in zip(estimates, segments, strict=True)]

    def estimates(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        parameters: Mapping[str, Vector] | None = None,
    ) -> list[Vector | Sparse]:
        """The same, sparse (by ascending index) where the method and its memory leave it so."""
        self._require_consistent()
        for i, row in enumerate(gradients):
            for segment, gradient in zip(segments, row, strict=True):
                self._require_fit(segment, gradient, self.aggregator.local[i])
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
        outcome = self.method.exchange(self._batch(segments, compressed, parameters or {}), self.aggregator)
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
                'for, and no memory keeps the rest: the mean is biased. Use scale="maximum", which cuts nothing, '
                "IntDIANA, whose integers stay small, or more bits. Engine.clamped counts on.",
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
        self._states[segment.names] = outcome.states[s]
        for piece in segment.pieces:
            self._tensors[piece.name] = (piece.shape, outgoing[0][0].dtype)
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
        if self.method.uses_length:
            self._note_length(segment, _dense(estimate, segment))
        return estimate

    def _note_length(self, segment: Segment, estimate: Vector) -> None:
        ends = np.cumsum([piece.size for piece in segment.pieces])
        for piece, part in zip(segment.pieces, np.split(estimate, ends[:-1]), strict=True):
            square, before = square_distance(part, np.zeros_like(part)), self._squares.get(piece.name)
            self._squares[piece.name] = square if before is None else LENGTH_BETA * before + (1 - LENGTH_BETA) * square

    def _length(self, segment: Segment) -> float | None:
        """Of its last estimates. None if there were none, or all were zero."""
        if not self.method.uses_length or any(name not in self._squares for name in segment.names):
            return None
        return math.sqrt(math.fsum(self._squares[name] for name in segment.names)) or None

    def advance(self) -> None:
        """The step is done: the next one draws other randomness."""
        self.step += 1
        if self._down is not None:
            self._down.advance()

    def state_dict(self) -> dict[str, Any]:
        """All that continues bit for bit after `load_state_dict`, and what it belongs to: this process's own memories,
        and the common ones."""
        self._require_consistent()
        return {
            "version": STATE_VERSION,
            "method": described(self.method),
            "world_size": self.aggregator.workers,
            "workers": list(self.aggregator.local),
            "tensors": {name: [list(shape), dtype.name] for name, (shape, dtype) in self._tensors.items()},
            "step": self.step,
            "seed": self._seed,
            "own": [self._completed(mine) for mine in self._own],
            "common": _copied(self._common),
            "states": [{"pieces": list(names), "state": _copied(state)} for names, state in self._states.items()],
            "squares": dict(self._squares),
            "down": None if self._down is None else self._down.state_dict(),
        }

    def _completed(self, mine: Mapping[str, Mapping[str, Vector]]) -> dict[str, dict[str, Vector]]:
        """A worker's own vectors, copied, with zeros for those that it has not had yet: it came later."""
        return {
            name: {
                piece: store[piece].copy() if piece in store else np.zeros(math.prod(shape), dtype)
                for piece, (shape, dtype) in self._tensors.items()
            }
            for name, store in ((name, mine.get(name, {})) for name in self._memory.keeps)
        }

    def load_state_dict(self, state: Mapping[str, Any], *, world_size_changed: bool = False) -> None:
        """Goes on where a state was saved. ValueError, and nothing has changed, if the state is of another method,
        worker, number of workers or tensor, of another version, or not whole; the text says what differs.

        `world_size_changed=True` takes the state of any worker of a group of another size: its own vectors stay as they
        are. Until `synchronize` has made the common ones consistent, nothing can be averaged or saved.
        """
        self._require_loadable(state, world_size_changed)
        self._load(state, world_size_changed)

    def _require_loadable(self, state: Any, world_size_changed: bool) -> None:
        require_version(state)
        require_entries(state, STATE_ENTRIES, "the state")
        found = differences(state["method"], described(self.method), "method")
        found += self._differing_workers(state, world_size_changed)
        tensors = _tensors_of(state)
        found += [
            f"'{name}' is {_tensor_text(*tensors[name])} in the state and {_tensor_text(*self._tensors[name])} here"
            for name in tensors.keys() & self._tensors.keys()
            if tensors[name] != self._tensors[name]
        ]
        refuse(found)
        sizes = {name: (math.prod(shape), dtype) for name, (shape, dtype) in tensors.items()}
        if len(state["own"]) != len(state["workers"]):
            found.append(f"own is of {len(state['own'])} workers, not of {len(state['workers'])}")
        for i, mine in enumerate(state["own"]):
            found += mismatched_names(mine, self._memory.keeps, f"own[{i}]")
            for name in self._memory.keeps:
                if name in mine:
                    found += mismatched_vectors(mine[name], sizes, f"own[{i}].{name}")
        found += mismatched_vectors(state["common"], sizes if self._memory.has_common else {}, "common")
        found += mismatched_names(state["squares"], sizes if self.method.uses_length else (), "squares")
        with_state = {name for one in state["states"] for name in one["pieces"]}
        found += mismatched_names(with_state, sizes, "states")
        refuse(found)
        if self._down is not None:
            self._down._require_loadable(state["down"], False)

    def _differing_workers(self, state: Mapping[str, Any], world_size_changed: bool) -> list[str]:
        there, here = state["world_size"], self.aggregator.workers
        if world_size_changed:
            return [f"it is of {there} workers, as many as here, in spite of world_size_changed"] * (there == here)
        if there != here:
            return [
                f"it is of {there} workers, and here are {here} (if that is meant: world_size_changed=True, and then "
                "synchronize() at all workers)"
            ]
        if list(state["workers"]) != list(self.aggregator.local):
            return [
                f"it is worker {_numbers(state['workers'])}'s, and this is worker {_numbers(self.aggregator.local)}"
            ]
        return []

    def _load(self, state: Mapping[str, Any], world_size_changed: bool) -> None:
        """A state that was looked at."""
        self.step, self._seed = int(state["step"]), int(state["seed"])
        self._tensors = _tensors_of(state)
        own = [{name: _copied(store) for name, store in mine.items()} for mine in state["own"]][: len(self._own)]
        self._own = own + [{} for _ in self._own[len(own) :]]
        self._spare = [{} for _ in self._own]
        self._common = _copied(state["common"])
        self._states = {tuple(one["pieces"]): _copied(one["state"]) for one in state["states"]}
        self._squares = dict(state["squares"])
        self._loaded_of = list(state["workers"])[: len(self._own)] if world_size_changed else None
        if self._down is not None:
            self._down._load(state["down"], False)

    def _require_consistent(self) -> None:
        if self._loaded_of is not None:
            raise RuntimeError(
                "the state that was loaded is of another number of workers: call synchronize() at all workers first"
            )

    def synchronize(self, companion: Any = None) -> Any:
        """Makes memories consistent after workers came or went: a collective that all workers call.

        Step, seed and common states become those of the worker that is furthest; a worker that has nothing starts
        with empty memories of its own; common vectors become the mean of everybody's own. Returns the furthest worker's
        `companion`: a state that the caller has alike at all workers.

        ValueError at all workers, and nothing has changed, if their methods or tensors differ, or if several have
        loaded the same worker's state.
        """
        loaded_of, self._loaded_of = self._loaded_of, None
        try:
            state = self.state_dict()
        finally:
            self._loaded_of = loaded_of
        shared = {name: state[name] for name in ("method", "tensors", "step", "seed", "states", "squares", "down")}
        parcel = packed({**shared, "loaded_of": loaded_of or [], "companion": companion})
        parcels = self.aggregator.gather([parcel] * len(self.aggregator.local), sizes_equal=False)
        everybody = [unpacked(parcel) for parcel in parcels]
        furthest = max(everybody, key=lambda other: int(other["step"]))
        self._require_alike(everybody, furthest)
        common = {}
        for piece, (shape, dtype) in _tensors_of(furthest).items() if self._memory.has_common else ():
            first, size = self._memory.keeps[0], math.prod(shape)
            mine = [own[first].get(piece, np.zeros(size, dtype)) for own in state["own"]]
            total = np.zeros(size)
            for parcel in self.aggregator.gather([vector.view(np.uint8) for vector in mine]):
                total += parcel.copy().view(dtype)
            common[piece] = (total / self.aggregator.workers).astype(dtype)
        self._load({**state, **{name: furthest[name] for name in shared}, "common": common}, False)
        return furthest["companion"]

    def _require_alike(self, everybody: Sequence[Mapping[str, Any]], furthest: Mapping[str, Any]) -> None:
        """Of what the workers have told each other: so all of them come to the same end."""
        found = []
        for worker, other in enumerate(everybody):
            apart = differences(other["method"], furthest["method"], "method")
            apart += [
                f"'{name}' is {other['tensors'][name]} and {furthest['tensors'][name]}"
                for name in other["tensors"]
                if name in furthest["tensors"] and other["tensors"][name] != furthest["tensors"][name]
            ]
            if apart:
                found.append(f"worker {worker} differs from the one that is furthest: {', '.join(apart)}")
        local = len(self.aggregator.local)
        origins = [origin for other in everybody[::local] for origin in other["loaded_of"]]
        found += [
            f"several have loaded worker {origin}'s state"
            for origin in sorted(set(origins))
            if origins.count(origin) > 1
        ]
        if found:
            raise ValueError(f"the workers' states do not belong together, and none was changed: {'; '.join(found)}")

    def _memory_for(self, size: int) -> Memory:
        if size not in self._fitted:
            self._fitted[size] = self._memory.fitted(self.method, size, self.aggregator.workers)
        return self._fitted[size]

    def _require_fit(self, segment: Segment, gradient: Gradient, worker: int) -> None:
        parts = [gradient] if isinstance(gradient, np.ndarray) else gradient
        for part in parts:
            if part.dtype not in GRADIENT_TYPES:
                raise ValueError(
                    f"worker {worker}'s gradient of '{segment.name}' is {part.dtype}: give float32 or float64"
                )
        if (size := sum(part.size for part in parts)) != segment.size:
            raise ValueError(f"worker {worker}'s gradient of '{segment.name}' has {size} values, not {segment.size}")
        for piece in segment.pieces:
            now = (piece.shape, _dtype_of(gradient))
            if (before := self._tensors.get(piece.name, now)) != now:
                raise ValueError(f"'{piece.name}' is {_tensor_text(*now)}, and was {_tensor_text(*before)} before")

    def _batch(
        self,
        segments: Sequence[Segment],
        vectors: list[list[Vector]],
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
                    length=self._length(segment),
                    parameters=parameters.get(segment.name),
                )
                for segment, vector in zip(segments, mine, strict=True)
            ]
            for worker, mine in zip(self.aggregator.local, vectors, strict=True)
        ]
        return Batch(turns, vectors, [self._states.get(segment.names, {}) for segment in segments])


def require_version(state: Any) -> None:
    """ValueError if it is a state that another version has saved."""
    if isinstance(state, Mapping) and state.get("version", STATE_VERSION) != STATE_VERSION:
        raise ValueError(
            f"this state of compression has version {state['version']}, and only {STATE_VERSION} can be loaded: finish "
            "with the Wiresum that saved it, or begin without a state"
        )


def _tensors_of(state: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in state["tensors"].items()}


def _tensor_text(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{list(shape)} of {dtype.name}"


def _numbers(workers: Sequence[int]) -> str:
    return ", ".join(map(str, workers))


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
