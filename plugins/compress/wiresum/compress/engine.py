"""Averages gradients of all workers with a compressor and its memory.

Memories are kept by piece, so they survive when DDP rebuilds its buckets.

A step calls `average` once or several times, for different segments, then `advance`. Only `advance` changes memories,
either of all segments or of none: of none if a mean of the step is not finite, since a loss scaler then skips the step.
All workers change the same memories. A step that failed before `advance` can be repeated, with the same random numbers
(turn.py).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from wiresum.compress.aggregator import Aggregator, InProcess
from wiresum.compress.arrays import Sparse, Vector, is_finite, joined
from wiresum.compress.checkpoint import (
    Tensor,
    described,
    differences,
    differing_tensors,
    digest_of,
    mismatched_names,
    mismatched_vectors,
    refuse,
    require_entries,
)
from wiresum.compress.compressor import Batch, Compressor, Outcome, State, each
from wiresum.compress.memory import Memory, Vectors, memory_of
from wiresum.compress.native import square_distance, with_default_floats
from wiresum.compress.parcel import packed, unpacked
from wiresum.compress.segment import Segment
from wiresum.compress.turn import Turn

STATE_VERSION = 4
STATE_ENTRIES = (
    "version", "method", "world_size", "workers", "tensors", "step", "seed", "own", "common", "states", "squares",
    "down",
)  # fmt: skip
CLAMPED_STEPS_MAX = 50
"""How many consecutive steps may clamp integers before a warning. In the first steps a memory still approaches the
gradients."""
LENGTH_BETA = 0.9
"""Decay of the moving average of the estimates' squared norms."""
GRADIENT_TYPES = (np.dtype(np.float32), np.dtype(np.float64))

Gradient: TypeAlias = Vector | Sequence[Vector]
"""A segment's gradient, as one flat vector or in consecutive parts."""


@dataclass(frozen=True)
class _Update:
    """The changes of memories and states that a segment's aggregate makes when the step ends."""

    segment: Segment
    unused: Collection[str]
    """Names of pieces whose vectors do not change."""
    dtype: np.dtype[Any]
    state: State
    own: list[Vectors]
    """The memory's new vectors, by local worker."""
    spare: list[Vectors | None]
    """The memory's former vectors, by local worker; None if their arrays are still in use."""
    common: Vector | None
    squares: list[float]
    """Squared norm of the estimate, by piece; empty unless the method has `uses_length`."""


class Engine:
    """Averages gradients with one method. All workers need the same method, seed, step and common state: the first
    average compares them."""

    def __init__(self, method: Compressor, aggregator: Aggregator, *, seed: int = 0) -> None:
        self.method = method
        self.aggregator = aggregator
        self.step = 0
        self.clamped = 0
        """How many integers of the local workers were clamped to their bits so far."""
        self._clamped_before = 0
        self._clamped_steps = 0
        """How many consecutive steps, up to the last one, had clamped integers."""
        self._seed = seed
        self._memory = memory_of(method.memory)
        self._fitted: dict[int, Memory] = {}
        self._own = [self._no_vectors() for _ in aggregator.local]
        """The memory's vectors, by local worker, name and piece."""
        self._spare: list[dict[str, Vectors]] = [{} for _ in aggregator.local]
        """Arrays for reuse in the next step, by local worker and segment: large arrays are expensive to allocate."""
        self._common: dict[str, Vector] = {}
        self._states: dict[tuple[str, ...], State] = {}
        """The compressor's common states, by the names of a segment's pieces."""
        self._squares: dict[str, float] = {}
        """Moving average of the estimates' squared norms, by piece; empty unless the method has `uses_length`."""
        self._tensors: dict[str, Tensor] = {}
        """Shape and dtype of every piece averaged so far."""
        self._updates: dict[tuple[str, ...], _Update] = {}
        """The changes of this step, by the names of a segment's pieces."""
        self._finite = True
        """True if all means of this step are finite."""
        self._loaded_of: list[int] | None = None
        """The workers of a loaded state of another world size, until `synchronize` has made it consistent; else
        None."""
        self._agreed = False
        """True if the workers have compared their methods, options and common states."""
        self._down = Engine(method.down, InProcess(1), seed=seed) if method.down is not None else None

    def _no_vectors(self) -> dict[str, dict[str, Vector]]:
        return {name: {} for name in self._memory.keeps}

    def average(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        parameters: Mapping[str, Vector] | None = None,
    ) -> list[Vector]:
        """The estimates of the mean gradient, by segment, with the same bits at every worker.

        `gradients[i][s]` is the i-th local worker's gradient of segment s, in float32 or float64. `parameters` are the
        model's values by segment's name, for compressors with `uses_parameters`. ValueError, before anything is sent,
        if a gradient has the wrong type or length, or a piece another shape or type than before.
        """
        estimates = self.estimates(segments, gradients, parameters)
        return [_dense(estimate, segment) for estimate, segment in zip(estimates, segments, strict=True)]

    @with_default_floats
    def estimates(
        self,
        segments: Sequence[Segment],
        gradients: Sequence[Sequence[Gradient]],
        parameters: Mapping[str, Vector] | None = None,
        *,
        unused: Collection[str] = (),
    ) -> list[Vector | Sparse]:
        """The estimates of `average`, but sparse (by ascending index) if the method and its memory allow that.

        `unused` names pieces whose estimates no optimizer will see; all workers name the same pieces. Their gradients
        are zeros, nothing of them is sent, and their memories do not change.
        """
        self._require_consistent()
        if not self._agreed:
            self.require_agreement(lambda: {"segments": _listed_segments(segments, gradients[0])})
        for i, row in enumerate(gradients):
            for segment, gradient in zip(segments, row, strict=True):
                self._require_fit(segment, gradient, self.aggregator.local[i])
        turns = self._turns(segments, gradients, parameters or {})
        own = [
            [
                tuple(_load(mine[name], *one, unused) for name in self._memory.keeps)
                for one in zip(segments, map(_dtype_of, row), strict=True)
            ]
            for mine, row in zip(self._own, gradients, strict=True)
        ]
        outgoing = [
            [self._outgoing(i, *one) for one in zip(segments, row, own[i], strict=True)]
            for i, row in enumerate(gradients)
        ]
        outcome = self.method.exchange(self._batch(segments, turns, outgoing), self.aggregator)
        self._note_clamped(outcome.clamped)
        estimates = [self._settle(s, segment, outcome, outgoing, own, unused) for s, segment in enumerate(segments)]
        if self._down is None:
            return estimates
        down = [_dense(estimate, segment) for estimate, segment in zip(estimates, segments, strict=True)]
        return self._down.estimates(segments, [down], unused=unused)

    def _note_clamped(self, count: int) -> None:
        """Warns once if clamped values are lost: without a memory no later step sends them."""
        if count and not self.clamped and not self._memory.keeps:
            warnings.warn(
                f"{type(self.method).__name__} cut {count} integers in step {self.step} to what its bits have room "
                'for, and no memory keeps the rest: the mean is biased. Use scale="maximum", which cuts nothing, '
                "IntDIANA, whose integers stay small, or more bits. Engine.clamped has the total.",
                RuntimeWarning,
                stacklevel=5,
            )
        self.clamped += count

    def _note_step_clamped(self) -> None:
        """Warns once if clamping does not end: the memory keeps the clamped rest, but grows."""
        clamped, self._clamped_before = self.clamped - self._clamped_before, self.clamped
        self._clamped_steps = self._clamped_steps + 1 if clamped else 0
        if self._clamped_steps == CLAMPED_STEPS_MAX and self._memory.keeps:
            warnings.warn(
                f"{type(self.method).__name__} has cut integers to what its bits have room for in {CLAMPED_STEPS_MAX} "
                f"steps in a row, {self.clamped} integers so far. Its memory keeps the rest, but sends it later and "
                'later. Use more bits, or scale="maximum", which cuts nothing. Engine.clamped has the total.',
                RuntimeWarning,
                stacklevel=4,
            )

    def _outgoing(self, i: int, segment: Segment, gradient: Gradient, own: Vectors) -> Vectors:
        """The result of `Memory.outgoing` for the i-th local worker, computed by part, so no copy joins the parts."""
        memory, out = self._memory_for(segment.size), self._spare[i].pop(segment.name, None)
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

    def _settle(
        self,
        s: int,
        segment: Segment,
        outcome: Outcome,
        outgoing: Sequence[Sequence[Vectors]],
        own: Sequence[Sequence[Vectors]],
        unused: Collection[str],
    ) -> Vector | Sparse:
        """Records how the aggregate of segment s changes memories, and returns the estimate. `outgoing` and `own` are
        indexed by local worker and segment."""
        mean = outcome.means[s]
        values = mean.values if isinstance(mean, Sparse) else mean
        if not is_finite(values):
            self._finite = False
            return mean
        memory = self._memory_for(segment.size)
        settled: list[Vectors] = []
        spare: list[Vectors | None] = []
        for i in range(len(own)):
            out, before, sent = outgoing[i][s], own[i][s], outcome.own[i][s]
            settle = memory.settle_sparse if isinstance(sent, Sparse) else memory.settle
            settled.append(settle(out, sent, before))  # type: ignore[arg-type]
            in_place = memory.keeps and all(now is was for now, was in zip(settled[-1], out, strict=True))
            spare.append(before if in_place else None)
        common = _load(self._common, segment, values.dtype, unused) if memory.has_common else values[:0]
        if isinstance(mean, Sparse):
            estimate, common = memory.estimate_sparse(mean, segment.size, common)
        else:
            estimate, common = memory.estimate(mean, common)
        self._updates[segment.names] = _Update(
            segment,
            unused,
            outgoing[0][s][0].dtype,
            outcome.states[s],
            settled,
            spare,
            common if memory.has_common else None,
            _squares_of(_dense(estimate, segment), segment) if self.method.uses_length else [],
        )
        return estimate

    def _commit(self, update: _Update) -> None:
        segment = update.segment
        if all(name in update.unused for name in segment.names):
            return
        self._states[segment.names] = update.state
        for piece in segment.pieces:
            if piece.name not in update.unused:
                self._tensors[piece.name] = Tensor(piece.shape, update.dtype)
        for mine, vectors, spare, spares in zip(self._own, update.own, update.spare, self._spare, strict=True):
            for name, vector in zip(self._memory.keeps, vectors, strict=True):
                _store(mine[name], segment, vector, update.unused)
            if spare is not None:
                spares[segment.name] = spare
        if update.common is not None:
            _store(self._common, segment, update.common, update.unused)
        for piece, square in zip(segment.pieces, update.squares, strict=False):
            if piece.name in update.unused:
                continue
            before = self._squares.get(piece.name)
            self._squares[piece.name] = square if before is None else LENGTH_BETA * before + (1 - LENGTH_BETA) * square

    def _length(self, segment: Segment) -> float | None:
        """The value of `turn.length` for the segment."""
        if not self.method.uses_length or any(name not in self._squares for name in segment.names):
            return None
        return math.sqrt(math.fsum(self._squares[name] for name in segment.names)) or None

    @with_default_floats
    def advance(self, *, finite: bool = True) -> None:
        """Ends the step: memories change, and the next step has other random numbers.

        Memories stay as they are if a mean of the step was not finite, since a loss scaler skips such a step. `finite`
        says whether the values that the caller averaged without this engine are finite, too. All workers pass the same.
        """
        down = [] if self._down is None else [self._down]
        if finite and all(engine._finite for engine in (self, *down)):
            for update in self._updates.values():
                self._commit(update)
        else:
            finite = False
        for engine in down:
            engine.advance(finite=finite)
        self.forget()
        self.step += 1
        self._note_step_clamped()

    def forget(self) -> None:
        """Drops the averages since the last `advance`, so that the step can be repeated."""
        self._updates, self._finite = {}, True
        if self._down is not None:
            self._down.forget()

    @with_default_floats
    def rescale(self, factor: float) -> None:
        """Multiplies all memories by `factor`, as a loss scaler that changes its scale multiplies all later gradients.

        All workers call this method between the same two steps. ValueError unless `factor` is positive and finite.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"memories are multiplied by a positive finite factor, not by {factor}")
        stores = [self._common, *(store for mine in self._own for store in mine.values())]
        for store in stores:
            store.update(_scaled(store, factor))
        self._squares = {name: square * factor**2 for name, square in self._squares.items()}
        if self._down is not None:
            self._down.rescale(factor)

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint of this process: after `load_state_dict` an engine continues bit for bit."""
        self._require_consistent()
        return {
            "version": STATE_VERSION,
            "method": described(self.method),
            "world_size": self.aggregator.workers,
            "workers": list(self.aggregator.local),
            "tensors": {name: [list(tensor.shape), tensor.dtype.name] for name, tensor in self._tensors.items()},
            "step": self.step,
            "seed": self._seed,
            "own": [self._completed(mine) for mine in self._own],
            "common": _copied(self._common),
            "states": _listed(self._states),
            "squares": dict(self._squares),
            "down": None if self._down is None else self._down.state_dict(),
        }

    def _completed(self, mine: Mapping[str, Mapping[str, Vector]]) -> dict[str, dict[str, Vector]]:
        """A copy of a worker's own vectors, with zeros for pieces that a new worker has no vectors of."""
        return {
            name: {
                piece: store[piece].copy() if piece in store else np.zeros(tensor.size, tensor.dtype)
                for piece, tensor in self._tensors.items()
            }
            for name, store in mine.items()
        }

    def load_state_dict(self, state: Mapping[str, Any], *, world_size_changed: bool = False) -> None:
        """Restores a checkpoint. ValueError, before anything changes, if the checkpoint is incomplete or of another
        method, worker, number of workers, tensor or version; the text names the differences.

        `world_size_changed=True` accepts the checkpoint of any worker of a group of another size, whose own vectors
        become those of this worker. Then nothing can be averaged or saved before `synchronize`.
        """
        self.require_loadable(state, world_size_changed=world_size_changed)
        self._load(state, world_size_changed)

    def require_loadable(self, state: Any, *, world_size_changed: bool = False) -> None:
        """Raises the error of `load_state_dict`, if there is one, and changes nothing."""
        require_version(state)
        require_entries(state, STATE_ENTRIES, "the state")
        found = differences(state["method"], described(self.method), "method")
        found += self._differing_workers(state, world_size_changed)
        tensors = _tensors_of(state)
        refuse(found + differing_tensors(tensors, self._tensors))
        found = []
        if len(state["own"]) != len(state["workers"]):
            found.append(f"own is of {len(state['own'])} workers, not of {len(state['workers'])}")
        for i, mine in enumerate(state["own"]):
            found += mismatched_names(mine, self._memory.keeps, f"own[{i}]")
            for name in self._memory.keeps:
                if name in mine:
                    found += mismatched_vectors(mine[name], tensors, f"own[{i}].{name}")
        found += mismatched_vectors(state["common"], tensors if self._memory.has_common else {}, "common")
        found += mismatched_names(state["squares"], tensors if self.method.uses_length else (), "squares")
        with_state = {name for one in state["states"] for name in one["pieces"]}
        # A segment may have pieces that no step has used yet: they have no vectors.
        found += mismatched_names(with_state & tensors.keys(), tensors, "states")
        refuse(found)
        if self._down is not None:
            self._down.require_loadable(state["down"])

    def _differing_workers(self, state: Mapping[str, Any], world_size_changed: bool) -> list[str]:
        there, here = state["world_size"], self.aggregator.workers
        if world_size_changed:
            return [f"it is of {there} workers, as many as here, despite world_size_changed"] * (there == here)
        if there != here:
            return [
                f"it is of {there} workers, and here are {here} (if intended: world_size_changed=True, and then "
                "synchronize() at all workers)"
            ]
        return differences(list(state["workers"]), list(self.aggregator.local), "worker")

    def _load(self, state: Mapping[str, Any], world_size_changed: bool) -> None:
        """Restores a state that `require_loadable` has checked."""
        self.step, self._seed = int(state["step"]), int(state["seed"])
        self._tensors = _tensors_of(state)
        own = [{name: _copied(store) for name, store in mine.items()} for mine in state["own"]][: len(self._own)]
        self._own = own + [self._no_vectors() for _ in self._own[len(own) :]]
        self._spare = [{} for _ in self._own]
        self._common = _copied(state["common"])
        self._states = _by_pieces(state["states"])
        self._squares = dict(state["squares"])
        self._loaded_of = list(state["workers"])[: len(self._own)] if world_size_changed else None
        if self._down is not None:
            self._down._load(state["down"], False)

    def require_agreement(self, more: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Compares methods, options, common states and the result of `more` among the workers.

        A collective: all workers call it, at the latest in their first average. ValueError at all of them if something
        differs. A state that a worker loads afterwards is not compared.
        """
        self.aggregator.require_agreement(
            "the engines' options and states (synchronize() at all workers makes states equal)",
            lambda: {**self._described(), **more()},
        )
        self._agreed = True

    def _described(self) -> dict[str, Any]:
        """The method, options and common state, which must be the same at all workers."""
        is_common = len(self.aggregator.local) == self.aggregator.workers  # true of `down`
        return {
            "method": described(self.method),
            "seed": self._seed,
            "step": self.step,
            "common state": digest_of(self._common, self._states, self._squares, *(self._own if is_common else ())),
            "tensors": {name: str(tensor) for name, tensor in self._tensors.items()},
            "down": None if self._down is None else self._down._described(),
        }

    def _require_consistent(self) -> None:
        if self._loaded_of is not None:
            raise RuntimeError(
                "the loaded state is of another number of workers: call synchronize() at all workers first"
            )

    @with_default_floats
    def synchronize(self, companion: Any = None, *, scale: float = 1.0) -> Any:
        """Makes memories consistent after the group of workers has changed. A collective: all workers call it.

        Step, seed and common states become those of the worker with the highest step; a new worker starts with empty
        memories; common vectors become the mean over workers. Returns the `companion` (a state of the caller) of the
        worker with the highest step. `scale` is the factor of this worker's gradients, by a loss scaler: its memories
        are rescaled to the scale of the worker with the highest step.

        ValueError at all workers, before anything changes, if their methods or tensors differ, or if several have
        loaded the same worker's state.
        """
        loaded_of, self._loaded_of = self._loaded_of, None
        try:
            state = self.state_dict()
        finally:
            self._loaded_of = loaded_of
        shared = {name: state[name] for name in ("method", "tensors", "step", "seed", "states", "squares", "down")}
        others = {"loaded_of": loaded_of or [], "companion": companion, "scale": scale}
        parcel = packed({**shared, **others})
        parcels = self.aggregator.gather([parcel] * len(self.aggregator.local), sizes_equal=False)
        states = [unpacked(parcel) for parcel in parcels]
        furthest = max(states, key=lambda other: int(other["step"]))
        self._require_alike(states, furthest)
        if furthest["scale"] != scale:
            state["own"] = [
                {name: _scaled(store, furthest["scale"] / scale) for name, store in mine.items()}
                for mine in state["own"]
            ]
        common = {}
        for piece, tensor in _tensors_of(furthest).items() if self._memory.has_common else ():
            zeros, first = np.zeros(tensor.size, tensor.dtype), self._memory.keeps[0]
            mine = [own[first].get(piece, zeros) for own in state["own"]]
            total = np.zeros(tensor.size)
            for parcel in self.aggregator.gather([vector.view(np.uint8) for vector in mine]):
                total += parcel.copy().view(tensor.dtype)
            common[piece] = (total / self.aggregator.workers).astype(tensor.dtype)
        merged = {**state, **{name: furthest[name] for name in shared}, "common": common}
        self._load(merged, False)
        return furthest["companion"]

    def _require_alike(self, states: Sequence[Mapping[str, Any]], furthest: Mapping[str, Any]) -> None:
        """Checks the states that all workers have received, so that all of them raise the same ValueError."""
        found = []
        for worker, other in enumerate(states):
            apart = differences(other["method"], furthest["method"], "method")
            apart += differing_tensors(_tensors_of(other), _tensors_of(furthest))
            if apart:
                found.append(f"worker {worker} differs from the one with the highest step: {', '.join(apart)}")
        local = len(self.aggregator.local)
        origins = [origin for other in states[::local] for origin in other["loaded_of"]]
        found += [
            f"several have loaded worker {origin}'s state"
            for origin in sorted(set(origins))
            if origins.count(origin) > 1
        ]
        if found:
            raise ValueError(f"the workers' states do not fit together, and none was changed: {'; '.join(found)}")

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
            now = Tensor(piece.shape, _dtype_of(gradient))
            if (before := self._tensors.get(piece.name, now)) != now:
                raise ValueError(f"'{piece.name}' is {now}, and was {before} before")

    def _turns(
        self, segments: Sequence[Segment], gradients: Sequence[Sequence[Gradient]], parameters: Mapping[str, Vector]
    ) -> list[list[Turn]]:
        return [
            [
                Turn(
                    seed=self._seed,
                    step=self.step,
                    worker=worker,
                    workers=self.aggregator.workers,
                    tensor=segment.name,
                    shape=segment.shape,
                    dtype=_dtype_of(gradient),
                    length=self._length(segment),
                    parameters=parameters.get(segment.name),
                )
                for segment, gradient in zip(segments, row, strict=True)
            ]
            for worker, row in zip(self.aggregator.local, gradients, strict=True)
        ]

    def _batch(
        self, segments: Sequence[Segment], turns: list[list[Turn]], outgoing: Sequence[Sequence[Vectors]]
    ) -> Batch:
        return Batch(
            turns,
            each(lambda vectors: vectors[0], outgoing),
            [self._states.get(segment.names, {}) for segment in segments],
        )


def require_version(state: Any) -> None:
    """Raises ValueError if another version has saved the state."""
    if isinstance(state, Mapping) and state.get("version", STATE_VERSION) != STATE_VERSION:
        raise ValueError(
            f"this compression state has version {state['version']}, and only {STATE_VERSION} can be loaded: finish "
            "with the version of Wiresum that saved it, or begin without a state"
        )


def _listed_segments(segments: Sequence[Segment], gradients: Sequence[Gradient]) -> dict[str, str]:
    return {
        segment.name: f"{[list(piece.shape) for piece in segment.pieces]} of {_dtype_of(gradient).name}"
        for segment, gradient in zip(segments, gradients, strict=True)
    }


def _tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: Tensor(tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in state["tensors"].items()}


def _dense(estimate: Vector | Sparse, segment: Segment) -> Vector:
    return estimate.dense(segment.size) if isinstance(estimate, Sparse) else estimate


def _dtype_of(gradient: Gradient) -> np.dtype[Any]:
    return gradient.dtype if isinstance(gradient, np.ndarray) else gradient[0].dtype


def _load(store: Mapping[str, Vector], segment: Segment, dtype: np.dtype[Any], unused: Collection[str]) -> Vector:
    """The segment's vector in a store, with zeros for unused pieces and for pieces that the store lacks."""
    return joined(
        [
            store[piece.name] if piece.name in store and piece.name not in unused else np.zeros(piece.size, dtype)
            for piece in segment.pieces
        ]
    )


def _store(store: dict[str, Vector], segment: Segment, vector: Vector, unused: Collection[str]) -> None:
    if len(segment.pieces) == 1:
        parts = [vector]
    else:
        parts = np.split(vector, np.cumsum([piece.size for piece in segment.pieces])[:-1])
    for piece, part in zip(segment.pieces, parts, strict=True):
        if piece.name not in unused:
            store[piece.name] = part


def _squares_of(estimate: Vector, segment: Segment) -> list[float]:
    ends = np.cumsum([piece.size for piece in segment.pieces])
    return [square_distance(part, np.zeros_like(part)) for part in np.split(estimate, ends[:-1])]


def _cut(vectors: Vectors, begin: int, end: int) -> Vectors:
    return tuple(vector[begin:end] for vector in vectors)


def _scaled(vectors: Mapping[str, Vector], factor: float) -> dict[str, Vector]:
    return {name: vector * vector.dtype.type(factor) for name, vector in vectors.items()}


def _copied(vectors: Mapping[str, Vector]) -> dict[str, Vector]:
    return {name: vector.copy() for name, vector in vectors.items()}


def _listed(states: Mapping[tuple[str, ...], State]) -> list[dict[str, Any]]:
    """The compressor's states by segment, in the form of a checkpoint."""
    return [{"pieces": list(names), "state": _copied(state)} for names, state in states.items()]


def _by_pieces(listed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], State]:
    """The inverse of _listed."""
    return {tuple(one["pieces"]): _copied(one["state"]) for one in listed}
