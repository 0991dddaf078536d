"""What is kept from step to step so that compression loses nothing for good.

A memory has at most two vectors for each tensor: one of each worker's own, and one that is common to all. `outgoing`
says what is compressed; `settle` and `estimate` say what the two become once the aggregate has arrived, and what
the optimiser gets. Both are pure: nothing changes before the aggregate is there (engine.py keeps the vectors).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from wiresum.compress.arrays import Sparse, Vector

if TYPE_CHECKING:
    from wiresum.compress.compressor import Compressor


class Memory(ABC):
    has_own: ClassVar[bool] = False
    has_common: ClassVar[bool] = False
    """If so, it is the mean over workers of their own ones, and a worker that comes later can compute it."""

    def fitted(self, compressor: Compressor, size: int, workers: int) -> Memory:
        """This memory with the constants that depend on the compressor. ValueError if the two do not fit together."""
        return self

    @abstractmethod
    def outgoing(self, gradient: Vector, own: Vector, out: Vector | None = None) -> Vector:
        """What is compressed, element by element; in `out` if that is given. It may be the gradient itself if not."""

    @abstractmethod
    def settle(self, outgoing: Vector, sent: Vector, own: Vector) -> Vector:
        """A worker's own vector after the aggregate has arrived; `sent` is what of `outgoing` went into it."""

    def settle_sparse(self, outgoing: Vector, sent: Sparse, own: Vector) -> Vector:
        """The same where little was sent. May change `outgoing`, if that is not the gradient itself."""
        return self.settle(outgoing, sent.dense(len(outgoing)), own)

    @abstractmethod
    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        """The estimate of the mean gradient, and the common vector after it."""

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
        """The same where the mean has few values."""
        return self.estimate(mean.dense(size), common)


class NoMemory(Memory):
    def outgoing(self, gradient: Vector, own: Vector, out: Vector | None = None) -> Vector:
        if out is None:
            return gradient
        np.copyto(out, gradient)
        return out

    def settle(self, outgoing: Vector, sent: Vector, own: Vector) -> Vector:
        return own

    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        return mean, common

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
        return mean, common


class ErrorFeedback(Memory):
    """What was not sent is added to the next gradient (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847)."""

    has_own = True

    def outgoing(self, gradient: Vector, own: Vector, out: Vector | None = None) -> Vector:
        result: Vector = np.add(gradient, own, out=out)
        return result

    def settle(self, outgoing: Vector, sent: Vector, own: Vector) -> Vector:
        return outgoing - sent

    def settle_sparse(self, outgoing: Vector, sent: Sparse, own: Vector) -> Vector:
        outgoing[sent.indices] -= sent.values
        return outgoing

    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        return mean, common

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
        return mean, common


@dataclass(frozen=True)
class Shift(Memory):
    """Worker i compresses the difference to its shift h_i, which follows the gradient: h_i += alpha * sent.

    Everybody keeps h, the mean of the h_i; the estimate is h plus the mean of what was sent. With an unbiased
    compressor and alpha <= 1/(1 + omega) that is DIANA (arXiv 1901.09269, algorithm 1), with a contractive one
    and alpha = 1 it is EF21 (arXiv 2106.05203, algorithm 2).
    """

    alpha: float | None = None
    """None: 1/(1 + omega) for an unbiased compressor, 1 for a contractive one."""

    has_own = True
    has_common = True

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(
                f"a shift's rate alpha is in [0, 1], or None for what the compressor allows, not {self.alpha}"
            )

    def fitted(self, compressor: Compressor, size: int, workers: int) -> Shift:
        if self.alpha is not None:
            return self
        if (omega := compressor.omega(size, workers)) is not None:
            return replace(self, alpha=1 / (1 + omega))
        if compressor.contraction(size) is not None:
            return replace(self, alpha=1.0)
        raise ValueError(
            f"{type(compressor).__name__} declares neither omega nor a contraction, so that the shift's rate is "
            "unknown: use memory=Shift(alpha=...)"
        )

    def outgoing(self, gradient: Vector, own: Vector, out: Vector | None = None) -> Vector:
        result: Vector = np.subtract(gradient, own, out=out)
        return result

    def settle(self, outgoing: Vector, sent: Vector, own: Vector) -> Vector:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = sent * self.alpha
        moved += own
        return moved

    def settle_sparse(self, outgoing: Vector, sent: Sparse, own: Vector) -> Vector:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = own.copy()
        moved[sent.indices] += self.alpha * sent.values
        return moved

    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = mean * self.alpha
        moved += common
        return common + mean, moved


class EF21(Shift):
    """The shift for contractive compressors, biased ones too."""

    def fitted(self, compressor: Compressor, size: int, workers: int) -> Shift:
        if compressor.contraction(size) is None:
            raise ValueError(f"EF21 is for contractive compressors, and {type(compressor).__name__} declares none")
        return Shift(alpha=1.0)


MEMORIES = {"none": NoMemory, "error-feedback": ErrorFeedback, "diana": Shift, "ef21": EF21}


def memory_of(choice: str | Memory) -> Memory:
    if isinstance(choice, Memory):
        return choice
    if choice not in MEMORIES:
        raise ValueError(f"there is no memory '{choice}'; there are {', '.join(MEMORIES)}, or give a Memory")
    return MEMORIES[choice]()
