"""Memories: vectors that are kept from step to step to correct the errors of compression.

For each tensor a memory has some vectors at each worker, and at most one that is common to all. `outgoing` computes the
vector to compress; `settle` and `estimate` compute the vectors after the aggregate, and the optimizer's gradient. All
of these are pure functions; engine.py keeps the vectors.

    ErrorFeedback         the residual (the part that was not sent) is added to the next gradient
    MomentumCorrection    error feedback for gradients with momentum
    Shift                 the difference to a vector that follows the gradient is compressed
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
    """The part of Compressor that memories use."""

    def omega(self, size: int, workers: int) -> float | None: ...

    def contraction(self, size: int) -> float | None: ...

    def shift_rate(self, size: int, workers: int) -> float | None: ...


class Memory(ABC):
    keeps: ClassVar[tuple[str, ...]] = ()
    """The names of each worker's own vectors."""
    has_common: ClassVar[bool] = False
    """True if there is a common vector: the mean over workers of their first own vector."""
    has_momentum: ClassVar[bool] = False
    """True if the memory replaces the optimizer's momentum."""

    @property
    def follows_scale(self) -> bool:
        """True if the memory can be used with a loss scaler, as `Compressor.follows_scale`."""
        return True

    def fitted(self, compressor: Bounds, size: int, workers: int) -> Memory:
        """This memory with the constants that depend on the compressor. ValueError if the two do not go together."""
        return self

    def admitted(self, parts: Sequence[Vector], workers: int) -> Sequence[Vector]:
        """A worker's gradient, in consecutive parts, after clipping."""
        return parts

    @abstractmethod
    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        """The vector to compress, then other vectors that `settle` needs: as many as `keeps`, at least one.

        They are computed by element, into `out` if given. Without `out`, the first may be the gradient itself.
        """

    @abstractmethod
    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        """A worker's own vectors after the aggregate; `sent` is the part of `outgoing[0]` that the aggregate has."""

    def settle_sparse(self, outgoing: Vectors, sent: Sparse, own: Vectors) -> Vectors:
        """The result of `settle`. May overwrite `outgoing`, unless `outgoing` is the gradient itself."""
        return self.settle(outgoing, sent.dense(len(outgoing[0])), own)

    @abstractmethod
    def estimate(self, mean: Vector, common: Vector) -> tuple[Vector, Vector]:
        """The estimate of the mean gradient, and the new common vector."""

    def estimate_sparse(self, mean: Sparse, size: int, common: Vector) -> tuple[Vector | Sparse, Vector]:
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
    """Adds the residual (the part that was not sent) to the next gradient (Seide et al. 2014; Karimireddy et al.,
    arXiv 1901.09847)."""

    clip: float | None = field(default=None, kw_only=True)
    """Bound on the norm of the mean: each of N workers first scales its gradient of a segment down to a norm of
    clip/sqrt(N) (arXiv 1712.01887, section 3.2). None: no clipping."""

    keeps: ClassVar[tuple[str, ...]] = ("residual",)

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"gradients are clipped to a positive norm, or not (None), not to {self.clip}")

    @property
    def follows_scale(self) -> bool:
        return self.clip is None

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
    """Error feedback with momentum at each worker: u = momentum u + g, and the part of v + u that was not sent is v.

    This momentum replaces the optimizer's, which would apply late values for many steps (Deep Gradient Compression,
    arXiv 1712.01887, section 3.1). If everything is sent and nothing is masked, the result is momentum SGD. Use this
    memory with sparsifiers: with a method that sends all values, masking leaves no momentum.
    """

    momentum: float = 0.9
    masking: bool = field(default=True, kw_only=True)
    """Resets the velocity of values that were sent, so that stale momentum is not applied (section 3.2)."""

    keeps = ("residual", "velocity")
    has_momentum = True

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

    All workers keep h, the mean of the h_i; the estimate is h plus the mean of the sent vectors. With an unbiased
    compressor and alpha <= 1/(1 + omega) this is DIANA (arXiv 1901.09269, algorithm 1), with a contractive one
    and alpha = 1 this is EF21 (arXiv 2106.05203, algorithm 2).
    """

    alpha: float | None = None
    """Rate at which the shift follows the gradient; None means the compressor's `shift_rate`."""

    keeps: ClassVar[tuple[str, ...]] = ("shift",)
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
            f"{type(compressor).__name__} declares neither omega nor a contraction, so the shift's rate is unknown: "
            "use memory=Shift(alpha=...)"
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


MEMORIES: dict[str, type[Memory]] = {
    "none": NoMemory,
    "error-feedback": ErrorFeedback,
    "momentum-correction": MomentumCorrection,
    "diana": Shift,
}


def memory_of(choice: str | Memory) -> Memory:
    if isinstance(choice, Memory):
        return choice
    if choice not in MEMORIES:
        raise ValueError(f"there is no memory '{choice}'; there are {', '.join(MEMORIES)}, or give a Memory")
    return MEMORIES[choice]()
