"""The interface of a problem: f is the mean over workers of f_i, the mean of the losses of worker i's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wiresum.compress.arrays import Indices, Vector


class Problem(ABC):
    """A problem that is distributed over workers. `gradient` is called only for workers of this process, which needs no
    data of other workers."""

    dimension: int
    workers: int

    @abstractmethod
    def rows(self, worker: int) -> int:
        """The number of rows of a worker."""

    @abstractmethod
    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        """The gradient at x of the mean loss over the given rows of a worker; None means all rows."""

    def rows_smoothness(self, worker: int) -> Vector:
        """The smoothness L_ij of each row's loss. Only importance sampling needs this method."""
        raise NotImplementedError(f"{type(self).__name__} has no rows_smoothness(), which importance sampling needs")
