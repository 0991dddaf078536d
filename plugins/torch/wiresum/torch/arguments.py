"""The types in which PyTorch passes the tensors of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Tensors: TypeAlias = list[torch.Tensor]

_OPERATORS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def tensors_in(arguments: Any) -> Tensors:
    """All tensors in them, those in nested lists included."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [tensor for part in arguments for tensor in tensors_in(part)] if isinstance(arguments, (list, tuple)) else []


def listed(tensors: Any) -> Tensors:
    """One tensor, or several."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def flat(lists: Sequence[Sequence[torch.Tensor]]) -> Tensors:
    """The tensors of lists, in order."""
    return [tensor for tensors in lists for tensor in tensors]


def options_of(kind: Any, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """ProcessGroup's methods take an options object, or a bare operator, or nothing."""
    if given is not None and type(given) not in _OPERATORS:
        return given
    options = kind()
    if given is not None:
        options.reduceOp = given
    if timeout is not None:
        options.timeout = timeout
    for name, value in fields.items():
        setattr(options, name, value)
    return options
