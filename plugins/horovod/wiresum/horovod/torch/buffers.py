"""The host memory in which collectives read and write, and copies to and from it for tensors on other devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wiresum.horovod.torch.execution import REDUCED_AS, scale
from wiresum.torch.plan import require_memory


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of the tensor in new host memory."""
    require_memory([tensor])
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def copy_back(buffer: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies a result to its tensor, unless `buffer` is the tensor's own memory."""
    if not tensor.is_cpu or buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer)


def reduction_buffers(tensors: Sequence[torch.Tensor], in_place: bool, prescale: float) -> list[torch.Tensor]:
    """The host memory in which values are reduced: the tensor's own with `in_place`, if possible, else a copy.

    Copies are multiplied by `prescale`. ValueError if a tensor is sparse, or `tensors` is empty.
    """
    require_memory(tensors)
    buffers = []
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError("all-reduce is for dense tensors: use sparse_allreduce_async, or .to_dense()")
        dtype = REDUCED_AS.get(tensor.dtype, tensor.dtype)
        buffer = tensor.detach()
        if not in_place or prescale != 1.0 or dtype is not tensor.dtype or not tensor.is_cpu:
            buffer = buffer.to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)
            scale(buffer, prescale)
        buffers.append(buffer)
    if not buffers:
        raise ValueError("a group of tensors has at least one")
    return buffers
