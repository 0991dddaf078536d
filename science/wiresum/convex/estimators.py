"""Estimators of a worker's gradient: from all rows, from a few rows, or from a few rows with variance reduction.

Estimators are immutable. A worker keeps their `state`, which `settle` updates after the aggregate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from wiresum.compress.arrays import Indices, Vector
from wiresum.compress.turn import Turn
from wiresum.convex.problem import Problem

State: TypeAlias = dict[str, Vector]

ROWS_STREAM = 0
REFRESH_STREAM = 1


class Estimator(ABC):
    def start(self, problem: Problem, worker: int, x: Vector) -> State:
        return {}

    @abstractmethod
    def gradient(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> Vector:
        """An unbiased estimate of f_i's gradient at x."""

    def settle(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> State:
        """The state after the step from x; `turn` is the one that `gradient` got."""
        return state


@dataclass(frozen=True)
class Plain(Estimator):
    """The gradient of `batch` rows, drawn without repetition; None means all rows."""

    batch: int | None = None

    def gradient(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> Vector:
        return problem.gradient(worker, x, drawn_rows(problem, worker, self.batch, turn))


@dataclass(frozen=True)
class LSVRG(Estimator):
    """grad f_ij(x) - grad f_ij(w) + grad f_i(w); w becomes x with probability `refresh`, at all workers at once.

    Loopless SVRG, as in VR-DIANA's variant 1 (arXiv 1904.05115, algorithm 3). The default probability is batch/m.

    sampling="importance" draws row j with a probability proportional to the smoothness L_ij of its loss, with
    repetition, and divides the row's difference by m times its probability. Then L in the theory is the mean over a
    worker's rows in place of the largest (theory.py).
    """

    batch: int = 1
    refresh: float | None = None
    sampling: Literal["uniform", "importance"] = "uniform"

    def __post_init__(self) -> None:
        if self.sampling not in ("uniform", "importance"):
            raise ValueError(f'rows are drawn by "uniform" or "importance" sampling, not {self.sampling!r}')

    def start(self, problem: Problem, worker: int, x: Vector) -> State:
        state = {"w": x, "full": problem.gradient(worker, x)}
        return {**state, "smoothness": problem.rows_smoothness(worker)} if self.sampling == "importance" else state

    def gradient(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> Vector:
        if self.sampling == "importance":
            return self._weighted(problem, worker, x, state, turn) + state["full"]
        rows = drawn_rows(problem, worker, self.batch, turn)
        return problem.gradient(worker, x, rows) - problem.gradient(worker, state["w"], rows) + state["full"]

    def _weighted(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> Vector:
        """The mean over the drawn rows of their gradients' differences, each divided by m times its probability."""
        smoothness = state["smoothness"]
        ends = np.cumsum(smoothness)
        drawn = np.searchsorted(ends, turn.uniform(self.batch, stream=ROWS_STREAM) * ends[-1], side="right")
        total: Vector = np.zeros_like(x)
        for row in drawn:
            one = np.array([row])
            difference = problem.gradient(worker, x, one) - problem.gradient(worker, state["w"], one)
            total += smoothness.mean() / smoothness[row] * difference
        return total / self.batch

    def settle(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> State:
        probability = self.batch / problem.rows(worker) if self.refresh is None else self.refresh
        if turn.common().uniform(1, stream=REFRESH_STREAM)[0] >= probability:
            return state
        return self.start(problem, worker, x)


@dataclass(frozen=True)
class SVRG(LSVRG):
    """SVRG with two nested loops: w becomes x after every `length` steps (SVRG-DIANA, arXiv 1904.05115, algorithm 4,
    with the last x of the inner loop)."""

    length: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ValueError(f"the inner loop has at least 1 step, not {self.length}")

    def settle(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> State:
        return self.start(problem, worker, x) if turn.step % self.length == self.length - 1 else state


@dataclass(frozen=True)
class SAGA(Estimator):
    """grad f_ij(x) - table_j + mean of the table; the table's rows j become grad f_ij(x) (arXiv 1407.0202).

    The table holds m x d values for each worker.
    """

    batch: int = 1

    def start(self, problem: Problem, worker: int, x: Vector) -> State:
        rows = problem.rows(worker)
        table = np.stack([problem.gradient(worker, x, np.array([row])) for row in range(rows)])
        return {"table": table, "mean": table.mean(axis=0)}

    def gradient(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> Vector:
        rows = drawn_rows(problem, worker, self.batch, turn)
        known: Vector = state["table"][rows].mean(axis=0)
        return problem.gradient(worker, x, rows) - known + state["mean"]

    def settle(self, problem: Problem, worker: int, x: Vector, state: State, turn: Turn) -> State:
        rows = drawn_rows(problem, worker, self.batch, turn)
        assert rows is not None
        table, mean = state["table"], state["mean"]
        for row in rows:
            fresh = problem.gradient(worker, x, np.array([row]))
            mean = mean + (fresh - table[row]) / len(table)
            table[row] = fresh
        return {"table": table, "mean": mean}


def drawn_rows(problem: Problem, worker: int, batch: int | None, turn: Turn) -> Indices | None:
    count = problem.rows(worker)
    if batch is None:
        return None
    return turn.subset(count, min(batch, count), stream=ROWS_STREAM)
