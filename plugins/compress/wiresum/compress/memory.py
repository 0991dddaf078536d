"""What is kept from step to step so that compression loses nothing for good.

For each tensor a memory has some vectors of each worker's own, and at most one that is common to all.
`outgoing` says what is compressed; `settle` and `estimate` say what the vectors become once the aggregate has arrived,
and what the optimiser gets. All are pure: nothing changes before the aggregate is there (engine.py keeps the vectors).

    ErrorFeedback         what was not sent is added to the next gradient
    MomentumCorrection    the same of gradients with momentum, each worker's own
    Shift, EF21           what is compressed is the difference to a vector that follows the gradient
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from wiresum.compress.arrays import Sparse, Vector

Vectors: TypeAlias = tuple[Vector, ...]


class Bounds(Protocol):
    """What a compressor declares of its error."""

    def contraction(self, size: int) -> float | None: ...

    def shift_rate(self, size: int, workers: int) -> float | None: ...


class Memory(ABC):
    keeps: ClassVar[tuple[str, ...]] = ()
    """The names of each worker's own vectors."""
    has_common: ClassVar[bool] = False
    """If so, it is the mean over workers of their own first ones, and a worker that comes later can compute it."""

    def fitted(self, compressor: Bounds, size: int, workers: int) -> Memory:
        """This memory with the constants that depend on the compressor. ValueError if the two do not fit together."""
        return self

    def admitted(self, parts: Sequence[Vector], workers: int) -> Sequence[Vector]:
        """What of a worker's gradient is looked at; the parts are one vector's, one after the other."""
        return parts

    @abstractmethod
    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        """What is compressed, and after it what else `settle` will need: as many vectors as it keeps, at least one.

        Element by element; in `out` if that is given. The first may be the gradient itself if it is not.
        """

    @abstractmethod
    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        """A worker's own vectors after the aggregate has arrived; `sent` is what of the first `outgoing` is in it."""

    def settle_sparse(self, outgoing: Vectors, sent: Sparse, own: Vectors) -> Vectors:
        """The same where little was sent. May change `outgoing`, if that is not the gradient itself."""
        return self.settle(outgoing, sent.dense(len(outgoing[0])), own)

    @abstractmethod
    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        """The estimate of the mean gradient, and the common vector after it."""

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
        """The same where the mean has few values."""
        return self.estimate(mean.dense(size), common)


class NoMemory(Memory):
    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        if out is None:
            return (gradient,)
        np.copyto(out[0], gradient)
        return out

    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        return own

    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        return mean, common

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
        return mean, common


@dataclass(frozen=True)
class ErrorFeedback(NoMemory):
    """What was not sent is added to the next gradient (Seide et al. 2014; Karimireddy et al., arXiv 1901.09847)."""

    clip: float | None = field(default=None, kw_only=True)
    """The largest norm of the mean gradient: each of N workers scales its own down to clip/sqrt(N) before anything is
    added to it (arXiv 1712.01887, section 3.2). It is the norm of what is compressed as one vector."""

    keeps: ClassVar[tuple[str, ...]] = ("residual",)

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"gradients are clipped to a positive norm, or not (None), not to {self.clip}")

    def admitted(self, parts: Sequence[Vector], workers: int) -> Sequence[Vector]:
        if self.clip is None:
            return parts
        norm = math.sqrt(sum(float(np.einsum("i,i", part, part, dtype=np.float64)) for part in parts))
        bound = self.clip / math.sqrt(workers)
        if not bound < norm < math.inf:
            return parts
        return [part * part.dtype.type(bound / norm) for part in parts]

    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        return (np.add(gradient, own[0], out=None if out is None else out[0]),)

    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        return (outgoing[0] - sent,)

    def settle_sparse(self, outgoing: Vectors, sent: Sparse, own: Vectors) -> Vectors:
        outgoing[0][sent.indices] -= sent.values
        return outgoing


@dataclass(frozen=True)
class MomentumCorrection(ErrorFeedback):
    """Error feedback of each worker's own velocity: u = momentum u + g, and what was not sent of v + u stays as v.

    Momentum in the optimizer would push for long with what came late. So it is here, and the optimizer has none
    (Deep Gradient Compression, arXiv 1712.01887, section 3.1). Where everything is sent, and nothing is masked, the
    estimate is that of momentum SGD. For sparsifiers: of a method that sends all coordinates masking leaves no
    velocity.
    """

    momentum: float = 0.9
    masking: bool = field(default=True, kw_only=True)
    """Where a value was sent, the velocity begins anew, so as not to push on with what is stale (section 3.2)."""

    keeps = ("residual", "velocity")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"the momentum is in [0, 1), not {self.momentum}")

    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        residual, velocity = own
        waiting, pushed = (np.empty_like(gradient), np.empty_like(gradient)) if out is None else out
        np.multiply(velocity, gradient.dtype.type(self.momentum), out=pushed)
        pushed += gradient
        np.add(residual, pushed, out=waiting)
        return waiting, pushed

    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        waiting, pushed = outgoing
        return waiting - sent, np.where(sent != 0, pushed.dtype.type(0), pushed) if self.masking else pushed

    def settle_sparse(self, outgoing: Vectors, sent: Sparse, own: Vectors) -> Vectors:
        waiting, pushed = outgoing
        waiting[sent.indices] -= sent.values
        if self.masking:
            pushed[sent.indices] = 0
        return waiting, pushed


@dataclass(frozen=True)
class Shift(Memory):
    """Worker i compresses the difference to its shift h_i, which follows the gradient: h_i += alpha * sent.

    Everybody keeps h, the mean of the h_i; the estimate is h plus the mean of what was sent. With an unbiased
    compressor and alpha <= 1/(1 + omega) that is DIANA (arXiv 1901.09269, algorithm 1), with a contractive one
    and alpha = 1 it is EF21 (arXiv 2106.05203, algorithm 2).
    """

    alpha: float | None = None
    """None: the compressor's `shift_rate`, which is 1/(1 + omega) for an unbiased one and 1 for a contractive one."""

    keeps = ("shift",)
    has_common = True

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(
                f"a shift's rate alpha is in [0, 1], or None for what the compressor allows, not {self.alpha}"
            )

    def fitted(self, compressor: Bounds, size: int, workers: int) -> Shift:
        if self.alpha is not None:
            return self
        if (rate := compressor.shift_rate(size, workers)) is not None:
            return replace(self, alpha=rate)
        raise ValueError(
            f"{type(compressor).__name__} declares neither omega nor a contraction, so that the shift's rate is "
            "unknown: use memory=Shift(alpha=...)"
        )

    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        return (np.subtract(gradient, own[0], out=None if out is None else out[0]),)

    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = sent * self.alpha
        moved += own[0]
        return (moved,)

    def settle_sparse(self, outgoing: Vectors, sent: Sparse, own: Vectors) -> Vectors:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = own[0].copy()
        moved[sent.indices] += self.alpha * sent.values
        return (moved,)

    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        assert self.alpha is not None, "fitted() was called"
        moved: Vector = mean * self.alpha
        moved += common
        return common + mean, moved


class EF21(Shift):
    """The shift for contractive compressors, biased ones too."""

    def fitted(self, compressor: Bounds, size: int, workers: int) -> Shift:
        if compressor.contraction(size) is None:
            raise ValueError(f"EF21 is for contractive compressors, and {type(compressor).__name__} declares none")
        return Shift(alpha=1.0)


MEMORIES: dict[str, type[Memory]] = {
    "none": NoMemory,
    "error-feedback": ErrorFeedback,
    "momentum-correction": MomentumCorrection,
    "diana": Shift,
    "ef21": EF21,
}


def memory_of(choice: str | Memory) -> Memory:
    if isinstance(choice, Memory):
        return choice
    if choice not in MEMORIES:
        raise ValueError(f"there is no memory '{choice}'; there are {', '.join(MEMORIES)}, or give a Memory")
    return MEMORIES[choice]()
