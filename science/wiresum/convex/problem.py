"""What is minimised: f = the mean over workers of f_i, each the mean of the worker's own rows' losses."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wiresum.compress.arrays import Indices, Vector


class Problem(ABC):
    """`gradient` is only asked for workers of this process, so that others' data need not be here."""

    dimension: int
    workers: int

    @abstractmethod
    def rows(self, worker: int) -> int:
        """How many losses f_i is the mean of."""

    @abstractmethod
    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        """Of the mean over the given rows of a worker's losses at x; over all of them without `rows`."""

    def rows_smoothness(self, worker: int) -> Vector:
        """By row of the worker, the smoothness L_ij of its loss; only for importance sampling."""
        raise NotImplementedError(f"{type(self).__name__} has no rows_smoothness(), which importance sampling asks for")
