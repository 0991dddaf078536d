"""A small GPT, which predicts the next character of a text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CONTEXT = 64
HEADS = 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.before_attention(x)).unflatten(2, (3, HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        hidden: torch.Tensor = self.hidden(self.before_hidden(x))
        return x + hidden


class Gpt(nn.Module):
    def __init__(self, characters: int, layers: int, width: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.characters(text) + self.places.weight[: text.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits.flatten(0, 1)
