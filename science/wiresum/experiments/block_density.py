"""Experiment 19: zero blocks of gradients, the overlap of workers' blocks, and the best size of a block.

Source: OmniReduce (SIGCOMM'21), its tables of gradient density and of overlap, and its figure of speed-up over the size
of blocks. A worker sends its nonzero blocks and receives the union of all workers' blocks (sparse.md). With b values of
4 bytes and an offset in each block, a link carries U(b) (4 b + OFFSET_BYTES) bytes for a union of U(b) blocks: small
blocks carry many offsets, large blocks many zeros. A ring carries 2 (N - 1)/N of the tensor; the speed-up is the ratio
of the bytes.

The gradients are of networks on the digits: a network with an embedding of 1088 tokens (a pixel's place and value),
whose gradient has a row for each token of the batch, and the dense networks of experiments 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Report
from wiresum.experiments.network import Digits, convolutional_network, gradients_of_workers, network
from wiresum.experiments.numpy_reference import Array, block_norms

OFFSET_BYTES = 4
BLOCKS = (1, 4, 16, 64, 256, 1024)
SHOWN_BLOCK = 16
"""Block size of the tables, as many values as in a row of the embedding."""
PIXELS, GREYS = 64, 17
EMBEDDING = "embedding of tokens"


class Tokens(nn.Module):
    """Converts an image to tokens: pixel p of grey value v is token 17 p + v."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images * (GREYS - 1)).round().long() + GREYS * torch.arange(PIXELS)


def embedding_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(Tokens(), nn.EmbeddingBag(PIXELS * GREYS, SHOWN_BLOCK, mode="sum"), nn.Linear(SHOWN_BLOCK, 10))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    EMBEDDING: embedding_network,
    "two hidden layers": network,
    "convolutions": convolutional_network,
}


def run(*, workers: int = 4, draws: int = 20, batch: int = 4) -> Report:
    gradients = {name: _gradients(make(1), workers, draws, batch) for name, make in NETWORKS.items()}
    density = {name: float(np.mean(vectors != 0)) for name, vectors in gradients.items()}
    overlap = {name: _overlap(vectors, SHOWN_BLOCK) for name, vectors in gradients.items()}
    speed = {name: {block: _speed_up(vectors, block) for block in BLOCKS} for name, vectors in gradients.items()}
    best = {name: max(by_block, key=lambda block: by_block[block]) for name, by_block in speed.items()}
    claims = []
    for name, vectors in gradients.items():
        own, union = _densities(vectors, SHOWN_BLOCK)
        claims += [
            Claim(f"{name}: union / what independent workers would have", union / (1 - (1 - own) ** workers), own, 1),
            Claim.equal(f"{name}: blocks by how many workers have them, over the union's share of blocks times workers",
                        float(np.arange(1, workers + 1) @ overlap[name]) * union, own * workers),
        ]  # fmt: skip
    few, many = speed[EMBEDDING], speed["convolutions"]
    claims += [
        Claim(f"{EMBEDDING}: values that are not zero, of all", density[EMBEDDING], at_most=0.35),
        Claim(f"{EMBEDDING}: best block size", best[EMBEDDING], 4, 64),
        Claim(f"{EMBEDDING}: speed-up with blocks of {SHOWN_BLOCK} / of 1 value", few[SHOWN_BLOCK] / few[1],
              at_least=1.3),
        Claim(f"{EMBEDDING}: the same / of 1024", few[SHOWN_BLOCK] / few[1024], at_least=1.3),
        Claim("convolutions, blocks of 1024: speed-up / what a dense tensor has",
              many[1024] / (2 * (workers - 1) / workers), 0.9, 1.2),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for at, (name, by_block) in enumerate(speed.items()):
            colour = figures.COLOURS[at]
            left.semilogx(list(by_block), list(by_block.values()), base=2, marker=".", color=colour, label=name)
            right.plot(range(1, workers + 1), 100 * overlap[name], marker=".", color=colour, label=name)
        figures.label(left, title="speed-up to a ring", unit="", over="values in a block")
        figures.label(right, title=f"the union's blocks of {SHOWN_BLOCK}", unit="%", over="workers that have a block")

    return Report(
        f"Density and overlap of blocks: {workers} workers, {batch} images each",
        ["gradient of", "values", "not zero", f"blocks of {SHOWN_BLOCK} at a worker", "in the union",
         *(f"had by {count}" for count in range(1, workers + 1)), "best size", "speed-up to a ring"],
        [
            [
                name,
                f"{vectors.shape[-1]:,}",
                f"{density[name]:.0%}",
                *(f"{one:.0%}" for one in _densities(vectors, SHOWN_BLOCK)),
                *(f"{share:.0%}" for share in overlap[name]),
                f"{best[name]}",
                f"{speed[name][best[name]]:.1f}",
            ]
            for name, vectors in gradients.items()
        ],
        claims,
        draw,
    )  # fmt: skip


def _gradients(model: nn.Module, workers: int, draws: int, batch: int) -> Array:
    """Gradients, as an array (draws, workers, values)."""
    digits = Digits.load(1)
    drawn = [gradients_of_workers(digits, model, seed=seed, workers=workers, batch=batch) for seed in range(draws)]
    return np.array([[np.concatenate(mine) for mine in by_worker] for by_worker in drawn])


def _densities(gradients: Array, block: int) -> tuple[float, float]:
    """The fraction of nonzero blocks, at a worker and in the union."""
    present = block_norms(gradients, block) > 0
    return float(present.mean()), float(present.any(axis=1).mean())


def _overlap(gradients: Array, block: int) -> Array:
    """The fractions of the union's blocks that 1, 2, ... workers have."""
    counts = (block_norms(gradients, block) > 0).sum(axis=1)
    found = np.bincount(counts.reshape(-1), minlength=gradients.shape[1] + 1)[1:]
    return np.asarray(found / found.sum())


def _speed_up(gradients: Array, block: int) -> float:
    _, workers, size = gradients.shape
    union_blocks = _densities(gradients, block)[1] * -(-size // block)
    return float(2 * (workers - 1) / workers * 4 * size / (union_blocks * (4 * block + OFFSET_BYTES)))
