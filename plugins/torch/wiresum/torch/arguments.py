"""The types in which PyTorch passes the tensors of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Tensors: TypeAlias = list[torch.Tensor]


def tensors_in(arguments: Any) -> Tensors:
    """All tensors in them, those in nested lists included."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [tensor for part in arguments for tensor in tensors_in(part)] if isinstance(arguments, (list, tuple)) else []


def flat(lists: Sequence[Sequence[torch.Tensor]]) -> Tensors:
    """The tensors of lists, in order."""
    return [tensor for tensors in lists for tensor in tensors]
