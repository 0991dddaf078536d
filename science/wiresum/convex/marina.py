"""MARINA: compressed differences of gradients, and whole gradients now and then (arXiv 2102.07845, algorithm 1).

    first, and with probability p    g = mean of grad f_i(x)                     all workers by the same coin
    else                             g = g + mean of C(grad f_i(x) - grad f_i(x'))     x' is the point before

So g is biased, but its variance falls with the steps' length. It needs gradients of the same rows at both points: all
of them (`Plain()`). With other rows in each step, as in training with minibatches, the differences do not vanish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wiresum.compress import Aggregator, Batch, Compressor, IntegerCompressor, Outcome, Quantiser, Trait, Turn
from wiresum.compress.arrays import Vector

COIN_STREAM = 7


@dataclass(frozen=True)
class MARINA(Compressor):
    """`inner` compresses differences; whole gradients have 32 bits. `probability` is p."""

    trait = Trait.DENSE_INT
    follows_scale = False

    inner: IntegerCompressor
    probability: float

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"whole gradients are sent with a probability in (0, 1], not {self.probability}")
        if self.memory != "none":
            raise ValueError('MARINA keeps what it needs itself: use memory="none"')

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        turns = batch.turns[0]
        whole = [not state or self._coin(turn) for turn, state in zip(turns, batch.states, strict=True)]
        means: dict[int, Vector] = {}
        for of_whole in (True, False):
            some = [s for s, one in enumerate(whole) if one is of_whole]
            if some:
                means |= self._means(batch, some, aggregator, whole=of_whole)
        return Outcome(
            [means[s] for s in range(len(turns))],
            batch.vectors,
            [{"estimate": means[s]} for s in range(len(turns))],
            own_states=[[{"gradient": vector.copy()} for vector in row] for row in batch.vectors],
        )

    def _coin(self, turn: Turn) -> bool:
        return bool(turn.common().uniform(1, stream=COIN_STREAM)[0] < self.probability)

    def _means(self, batch: Batch, some: list[int], aggregator: Aggregator, *, whole: bool) -> dict[int, Vector]:
        vectors = [
            [row[s] if whole else row[s] - before[s]["gradient"] for s in some]
            for row, before in zip(batch.vectors, batch.own_states, strict=True)
        ]
        part = Batch([[row[s] for s in some] for row in batch.turns], vectors, [{} for _ in some])
        outcome = (Quantiser() if whole else self.inner).exchange(part, aggregator)
        return {
            s: np.asarray(mean) if whole else batch.states[s]["estimate"] + np.asarray(mean)
            for s, mean in zip(some, outcome.means, strict=True)
        }
