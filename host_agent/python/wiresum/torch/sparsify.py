"""Gradients cut down to a few blocks, with error feedback, as a communication hook of DistributedDataParallel.

    from wiresum.torch import sparsify

    state = sparsify.attach(model, sparsify.BlockTopK(0.01))
    ...
    checkpoint["sparsifier"] = state.state_dict()

In each step every worker adds what it has held back so far to its gradient, chooses blocks, sends these and holds back
the rest. What is not sent now is sent later: that is the error feedback, without which training stops short of where
dense training gets. Blocks are those of the wire, so that what is not chosen by anybody is not sent at all
(docs/sparse.md).

Residuals belong to parameters, not to DDP's buckets, which are made anew after the first step. They differ from worker
to worker, so each rank keeps its own `state_dict` in its own checkpoint.

A block with an Inf or a NaN is always sent, so that a loss scaler sees the overflow at every worker. Where the loss is
scaled (fp16), residuals are in the units of the step that they come from; with bf16 or fp32 there is no such scale.

Source: OmniReduce (SIGCOMM'21), block-based gradient sparsification; error feedback: arXiv 1809.07599 and 1901.09847.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from wiresum.torch.backend import backend_of

BLOCK_ELEMENTS_DEFAULT = 256
"""For groups of another backend, which have no blocks: the paper's."""


class BucketBlocks:
    """A bucket's gradient (with what was held back before), in blocks. The last one may be shorter."""

    def __init__(
        self, gradient: torch.Tensor, parameters: list[torch.Tensor], *, block: int, draw: tuple[int, ...], rank: int
    ) -> None:
        """`draw` tells this draw of random numbers from all others; it is the same at all workers."""
        self._gradient = gradient
        self._parameters = parameters
        self._block = block
        self._draw = draw
        self._rank = rank

    def __len__(self) -> int:
        return (self._gradient.numel() + self._block - 1) // self._block

    def gradient_norms(self) -> torch.Tensor:
        """The Euclidean norm of each block, in fp32; infinite where an element is not finite."""
        norms = self._norms(self._gradient)
        return torch.where(norms.isnan(), torch.inf, norms)

    def parameter_norms(self) -> torch.Tensor:
        """Those of the parameters at the same places."""
        return self._norms(torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters]))

    def random(self, *, same_everywhere: bool) -> torch.Tensor:
        """A number in [0, 1) for each block: new ones in every step, the same at all workers or independent ones."""
        draw = self._draw if same_everywhere else (*self._draw, self._rank)
        # The generator looks at 32 bits of its seed.
        generator = torch.Generator().manual_seed(zlib.crc32(repr(draw).encode()))
        return torch.rand(len(self), generator=generator)

    def _norms(self, flat: torch.Tensor) -> torch.Tensor:
        whole = flat.numel() // self._block * self._block
        blocks = flat[:whole].reshape(-1, self._block)
        norms: torch.Tensor = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float32)
        if whole == flat.numel():
            return norms
        rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
        return torch.cat([norms, rest.reshape(1)])


class Sparsifier(ABC):
    """Says which blocks to send."""

    @abstractmethod
    def choose(self, blocks: BucketBlocks) -> torch.Tensor:
        """A bool for each block."""


@dataclass(frozen=True)
class BlockRandomK(Sparsifier):
    """A share `ratio` of the blocks, at random. The same ones at all workers, unless `independent`: then the union of
    N workers' choices is up to N times as large, and every block is chosen by somebody so much sooner."""

    ratio: float
    independent: bool = False

    def __post_init__(self) -> None:
        _require_ratio(self.ratio)

    def choose(self, blocks: BucketBlocks) -> torch.Tensor:
        return _largest(blocks.random(same_everywhere=not self.independent), self.ratio)


@dataclass(frozen=True)
class BlockTopK(Sparsifier):
    """The share `ratio` of the blocks whose norms are largest."""

    ratio: float

    def __post_init__(self) -> None:
        _require_ratio(self.ratio)

    def choose(self, blocks: BucketBlocks) -> torch.Tensor:
        return _largest(blocks.gradient_norms(), self.ratio)


@dataclass(frozen=True)
class BlockTopKRatio(Sparsifier):
    """The share `ratio` of the blocks that would change their parameters most: by the norm of the gradient over that of
    the parameters."""

    ratio: float

    def __post_init__(self) -> None:
        _require_ratio(self.ratio)

    def choose(self, blocks: BucketBlocks) -> torch.Tensor:
        smallest = torch.finfo(torch.float32).tiny
        return _largest(blocks.gradient_norms() / (blocks.parameter_norms() + smallest), self.ratio)


@dataclass(frozen=True)
class BlockThreshold(Sparsifier):
    """All blocks whose norms are at least `norm`, which may be none."""

    norm: float

    def __post_init__(self) -> None:
        if not self.norm >= 0:
            raise ValueError(f"a norm of {self.norm} is no threshold: it must be 0 or more")

    def choose(self, blocks: BucketBlocks) -> torch.Tensor:
        return blocks.gradient_norms() >= self.norm


class SparsifierState:
    """What the hook keeps between steps: a residual for each parameter, and the number of the step."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        sparsifier: Sparsifier,
        group: dist.ProcessGroup,
        *,
        block: int | None = None,
        seed: int = 0,
    ) -> None:
        self.sparsifier = sparsifier
        self.step = 0
        self.blocks = 0
        """Blocks of all buckets so far ..."""
        self.blocks_sent = 0
        """... and those of them that this worker sent."""
        self._group = group
        self._block = block or _block_elements(group)
        self._seed = seed
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._residuals: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """For this rank's checkpoint."""
        residuals = {name: residual.clone() for name, residual in self._residuals.items()}
        return {"step": self.step, "seed": self._seed, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if it is of another model."""
        for name, residual in state["residuals"].items():
            if self._shapes.get(name) != residual.shape:
                raise ValueError(
                    f"the sparsifier's state has a residual of shape {tuple(residual.shape)} for parameter '{name}', "
                    f"and the model has {tuple(self._shapes[name]) if name in self._shapes else 'no such parameter'}: "
                    "load the state that was saved with this model"
                )
        self.step, self._seed = state["step"], state["seed"]
        self._residuals = {name: residual.clone() for name, residual in state["residuals"].items()}

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean over all workers of what they chose of this bucket."""
        gradient = bucket.buffer()
        if gradient.layout is torch.strided:
            self._hold_back(bucket, gradient)
        if bucket.is_last():
            self.step += 1
        return average(gradient, self._group)

    def _hold_back(self, bucket: GradBucket, gradient: torch.Tensor) -> None:
        parts = list(self._parts(bucket))
        for name, part in parts:
            if name in self._residuals:
                part.add_(self._residuals[name])
        blocks = BucketBlocks(
            gradient,
            bucket.parameters(),
            block=self._block,
            draw=(self._seed, self.step, bucket.index()),
            rank=dist.get_rank(self._group),
        )
        chosen = self.sparsifier.choose(blocks) | blocks.gradient_norms().isinf()
        self.blocks += len(blocks)
        self.blocks_sent += int(chosen.sum())
        held = gradient.clone()
        _clear(held, chosen, self._block)
        _clear(gradient, ~chosen, self._block)
        first = gradient.storage_offset()
        for name, part in parts:
            residual = self._residuals.setdefault(
                name, torch.empty_strided(part.shape, part.stride(), dtype=part.dtype)
            )
            residual.copy_(held.as_strided(part.shape, part.stride(), part.storage_offset() - first))

    def _parts(self, bucket: GradBucket) -> Iterator[tuple[str, torch.Tensor]]:
        """The bucket's gradients by their parameters' names: views of its buffer."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            yield self._names[id(parameter)], gradient


def attach(
    model: DistributedDataParallel, sparsifier: Sparsifier, *, block: int | None = None, seed: int = 0
) -> SparsifierState:
    """Makes the model send only the blocks that the sparsifier chooses. Before the first step; once for a model.

    A block has `block` elements: by default what a packet carries, so that the network can leave it out at no further
    cost. Smaller ones are left out, too, where that pays (docs/sparse.md): best of 8, 4, 2 or 1 elements, which divide
    a packet's. `block` and `seed` must be the same at all workers. With a process group of another backend the sums are
    the same, and nothing is saved. What is held back for a parameter that a step does not use anywhere may be lost with
    that step.
    """
    parameters = dict(model.module.named_parameters())
    state = SparsifierState(parameters, sparsifier, model.process_group, block=block, seed=seed)
    model.register_comm_hook(state, _hook)
    return state


def average(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """The tensor, once it holds the mean over the group's workers."""
    operator = dist.ReduceOp.SUM
    if backend_of(group) is not None:
        operator = dist.ReduceOp.AVG  # rounds once
    else:
        tensor.div_(dist.get_world_size(group))
    work = dist.all_reduce(tensor, op=operator, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def _hook(state: SparsifierState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.reduce(bucket)


def _block_elements(group: dist.ProcessGroup) -> int:
    backend = backend_of(group)
    return (backend.block_elements if backend is not None else 0) or BLOCK_ELEMENTS_DEFAULT


def _largest(scores: torch.Tensor, ratio: float) -> torch.Tensor:
    """The share `ratio` of the largest scores, at least one; of equal ones the first."""
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    if len(scores):
        count = min(len(scores), max(1, round(ratio * len(scores))))
        chosen[torch.sort(scores, descending=True, stable=True).indices[:count]] = True
    return chosen


def _clear(flat: torch.Tensor, blocks: torch.Tensor, block: int) -> None:
    """Makes these blocks zero."""
    whole = flat.numel() // block
    flat[: whole * block].reshape(whole, block)[blocks[:whole]] = 0
    if len(blocks) > whole and bool(blocks[whole]):
        flat[whole * block :] = 0


def _require_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ValueError(f"a ratio of {ratio} is no share of the blocks: it must be over 0, to 1")
