"""The forms in which PyTorch hands over what a collective works on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Tensors: TypeAlias = list[torch.Tensor]


def tensors_in(arguments: Any) -> Tensors:
    """All that are in them, lists of lists included."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [tensor for part in arguments for tensor in tensors_in(part)] if isinstance(arguments, (list, tuple)) else []


def flat(lists: Sequence[Sequence[torch.Tensor]]) -> Tensors:
    """The tensors of lists, in order."""
    return [tensor for tensors in lists for tensor in tensors]
