"""Two small models and their data: a GPT on the text of docs/, and a convolutional network on digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from wiresum_lab import REPOSITORY

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 3
SEQUENCES = 16
IMAGES = 32

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_hidden = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.before_attention(x)).unflatten(2, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        hidden: torch.Tensor = self.hidden(self.before_hidden(x))
        return x + hidden


class Gpt(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.characters(text) + self.places.weight[: text.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits.flatten(0, 1)


@dataclass(frozen=True)
class Task:
    model: nn.Module
    draw: Callable[[torch.Generator], Batch]

    def loss(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        return functional.cross_entropy(self.model(inputs), targets)


def gpt() -> Task:
    text = "".join(page.read_text() for page in sorted((REPOSITORY / "docs").glob("*.md")))
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    data = torch.tensor([number[character] for character in text])

    def draw(generator: torch.Generator) -> Batch:
        first = torch.randint(len(data) - CONTEXT, (SEQUENCES, 1), generator=generator) + torch.arange(CONTEXT)
        return data[first], data[first + 1].flatten()

    return Task(Gpt(len(number)), draw)


def cnn() -> Task:
    from sklearn.datasets import load_digits  # more than a second, and only here

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)

    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(images), (IMAGES,), generator=generator)
        return images[chosen], targets[chosen]

    layers = (
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return Task(nn.Sequential(*layers), draw)


TASKS: dict[str, Callable[[], Task]] = {"gpt": gpt, "cnn": cnn}
