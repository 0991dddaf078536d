"""A device for tests of how tensors on a GPU are treated, where there is none: PyTorch takes its tensors for another
device's, and their values lie in host memory, out of reach of their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "hostdevice"


class DeviceTensor(torch.Tensor):
    values: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # copies in host memory are ordinary tensors

    @staticmethod
    def of(values: torch.Tensor) -> DeviceTensor:
        made: Any = torch._C._acc.create_empty_tensor(values.shape, values.dtype)
        made.__class__ = DeviceTensor
        made.values = values
        return made  # type: ignore[no-any-return]

    def untyped_storage(self) -> torch.UntypedStorage:
        """What a device has of its own; PyTorch's own tensors of a device in Python have none."""
        return self.values.untyped_storage()


def _empty(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return DeviceTensor.of(torch.empty(size, dtype=dtype))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> torch.Tensor:
    values = source.values if isinstance(source, DeviceTensor) else source
    (target.values if isinstance(target, DeviceTensor) else target).copy_(values)
    return target  # type: ignore[no-any-return]


def install() -> torch.device:
    _setup_privateuseone_for_python_backend(NAME)
    operations: dict[str, Any] = {
        "aten::empty.memory_format": _empty,
        "aten::empty_strided": _empty,
        "aten::_copy_from": _copy_from,
        "aten::detach": lambda tensor: DeviceTensor.of(tensor.values),
        "aten::view": lambda tensor, shape: DeviceTensor.of(tensor.values.view(shape)),
    }
    for name, operation in operations.items():
        torch.library.impl(name, NAME)(operation)
    return torch.device(NAME)
