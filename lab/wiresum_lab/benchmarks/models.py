"""Three small models and their data: a GPT on the text of docs/, a convolutional network on digits, and embeddings of
generated clicks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from wiresum.experiments.gpt import CONTEXT, Gpt
from wiresum_lab import REPOSITORY

WIDTH = 64
LAYERS = 3
SEQUENCES = 16
IMAGES = 32

SEED = 7
FIELDS = 4  # features of an impression: user, item, page, query
ENTRIES = 50_000  # entries of each field
EMBEDDED = 16
IMPRESSIONS = 128
ZIPF = 1.1

Batch = tuple[torch.Tensor, torch.Tensor]


class ClickModel(nn.Module):
    """The probability of a click from sparse features: an embedding for each field and dense layers on top.

    A step touches the parameters of the entries that its impressions name. The activation is tanh: at the kink of a
    ReLU, the last bit of a rounding would decide about the gradient of a whole row.
    """

    def __init__(self, entries: int = ENTRIES, hidden: Sequence[int] = (64,), *, sparse: bool = True) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(entries, EMBEDDED, sparse=sparse) for _ in range(FIELDS))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((FIELDS * EMBEDDED, *hidden)):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.top = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def forward(self, entries: torch.Tensor) -> torch.Tensor:
        vectors = [embedding(entries[:, field]) for field, embedding in enumerate(self.embeddings)]
        logits: torch.Tensor = self.top(torch.cat(vectors, 1)).squeeze(1)
        return logits


class Clicks:
    """Generated impressions, whose entries have Zipf's distribution like words, and clicks that depend on the entries'
    hidden qualities."""

    def __init__(self, entries: int = ENTRIES) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._quality = torch.randn(FIELDS, entries, generator=generator)
        popularity = torch.arange(1, entries + 1, dtype=torch.float64) ** -ZIPF
        self._cumulative = (popularity / popularity.sum()).cumsum(0)
        self._names = torch.stack([torch.randperm(entries, generator=generator) for _ in range(FIELDS)], 1)

    def draw(self, generator: torch.Generator) -> Batch:
        drawn = torch.rand(IMPRESSIONS, FIELDS, dtype=torch.float64, generator=generator)
        places = torch.searchsorted(self._cumulative, drawn).clamp_(max=len(self._names) - 1)
        entries = self._names.gather(0, places)
        taste = self._quality.t().gather(0, entries).sum(1)
        clicked = torch.rand(IMPRESSIONS, generator=generator) < torch.sigmoid(2 * taste)
        return entries, clicked.float()


@dataclass(frozen=True)
class Task:
    model: nn.Module
    draw: Callable[[torch.Generator], Batch]
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy

    def loss(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        return self.criterion(self.model(inputs), targets)


@cache
def pages() -> str:
    """The text of docs/, as it was at first: all models of a process train on the same."""
    return "".join(page.read_text() for page in sorted((REPOSITORY / "docs").glob("*.md")))


def gpt(layers: int = LAYERS, width: int = WIDTH, sequences: int = SEQUENCES) -> Task:
    text = pages()
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    data = torch.tensor([number[character] for character in text])

    def draw(generator: torch.Generator) -> Batch:
        first = torch.randint(len(data) - CONTEXT, (sequences, 1), generator=generator) + torch.arange(CONTEXT)
        return data[first], data[first + 1].flatten()

    return Task(Gpt(len(number), layers, width), draw)


def cnn(hidden: int = 64, smoothing: float = 0.0) -> Task:
    """`smoothing` is that of labels, which keeps the least loss away from 0."""
    from sklearn.datasets import load_digits  # more than a second, and only here

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)

    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(images), (IMAGES,), generator=generator)
        return images[chosen], targets[chosen]

    layers = (
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
    )
    return Task(nn.Sequential(*layers), draw, partial(functional.cross_entropy, label_smoothing=smoothing))


def clicks(entries: int, hidden: Sequence[int], *, sparse: bool) -> Task:
    model = ClickModel(entries, hidden, sparse=sparse)
    return Task(model, Clicks(entries).draw, functional.binary_cross_entropy_with_logits)


TASKS: dict[str, Callable[[], Task]] = {"gpt": gpt, "cnn": cnn}
