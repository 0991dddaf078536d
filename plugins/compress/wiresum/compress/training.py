"""What the hook of DDP and outer steps have in common: checks of optimizers, values of tensors, reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from wiresum.agent.extent import require_memory
from wiresum.compress.arrays import Vector
from wiresum.compress.compressor import Compressor
from wiresum.compress.memory import memory_of

MEGABYTE = 1e6
UNTRAINABLE: dict[type[Optimizer], str] = {
    torch.optim.LBFGS: "it computes curvature from small differences of successive gradients, which compression "
    "changes, and each worker's own loss decides how many iterations it makes",
    torch.optim.Rprop: "it uses only the sign of each value, which rounding changes if the value is small",
}
"""Optimizers that `attach` refuses, with the reason."""


@dataclass(frozen=True)
class Report:
    """This worker's traffic so far, without headers."""

    steps: int
    sent_bytes: float
    received_bytes: float
    dense_bytes: float
    """Bytes that uncompressed all-reduces would have sent."""
    clamped: int = 0
    """How many integers were clamped to their bits."""

    @property
    def ratio(self) -> float:
        """`dense_bytes` divided by `sent_bytes`; 1 before anything was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps: sent {self.sent_bytes / MEGABYTE:.2f} MB instead of "
            f"{self.dense_bytes / MEGABYTE:.2f} MB, {self.ratio:.1f} times less"
            + (f"; {self.clamped} integers cut to their bits" if self.clamped else "")
        )


def require_trainable(optimizer: Optimizer) -> None:
    for kind, reason in UNTRAINABLE.items():
        if isinstance(optimizer, kind):
            raise ValueError(f"{type(optimizer).__name__} does not train with compressed gradients: {reason}")


def require_one_momentum(method: Compressor, optimizer: Optimizer) -> None:
    momenta = [group.get("momentum") or group.get("betas", (0,))[0] for group in optimizer.param_groups]
    memory = memory_of(method.memory)
    if memory.has_momentum and any(momenta):
        raise ValueError(
            f"both the memory ({type(memory).__name__}) and {type(optimizer).__name__} have momentum "
            f'({max(momenta)}): create an optimizer without, or use memory="error-feedback"'
        )


def values_of(tensor: torch.Tensor) -> Vector:
    """The flattened values of a tensor on the host, without a copy if possible; float16 and bfloat16 become float32."""
    require_memory(tensor)  # NumPy would make memory of its own, with anything in it
    host = tensor.detach().cpu()
    wide = host if host.dtype in (torch.float32, torch.float64) else host.float()
    values: Vector = wide.reshape(-1).numpy()
    return values


def tensors_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a nested state with tensors for its arrays."""
    result: dict[str, Any] = _converted(state, np.ndarray, lambda array: torch.from_numpy(array.copy()))
    return result


def arrays_of(state: Any) -> Any:
    """A copy of a nested state with arrays for its tensors."""
    return _converted(state, torch.Tensor, lambda tensor: tensor.detach().cpu().numpy().copy())


def _converted(value: Any, kind: type, convert: Any) -> Any:
    """A copy of a nested state with all values of type `kind` converted."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Mapping):
        return {name: _converted(part, kind, convert) for name, part in value.items()}
    if isinstance(value, list):
        return [_converted(part, kind, convert) for part in value]
    return value
