"""A check that a tensor's memory exists. The agent knows no framework: these are the methods of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Storage(Protocol):
    def nbytes(self) -> int: ...


class Strided(Protocol):
    """A tensor that is laid out in one storage, by strides."""

    @property
    def shape(self) -> Sequence[int]: ...
    def numel(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def stride(self) -> Sequence[int]: ...
    def storage_offset(self) -> Any: ...  # a symbol while PyTorch traces
    def element_size(self) -> int: ...
    def untyped_storage(self) -> Storage: ...


def require_memory(tensor: Strided) -> None:
    """Raises a ValueError if the tensor has elements outside its storage. Such an element's address may be any number:
    the storage may have been freed, or made smaller, while the tensor kept its shape."""
    elements = tensor.numel()
    if elements == 0:
        return
    if not tensor.is_contiguous():
        elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    bytes_needed = (tensor.storage_offset() + elements) * tensor.element_size()
    bytes_there = tensor.untyped_storage().nbytes()
    if bytes_there < bytes_needed:
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} needs {bytes_needed} bytes of its storage, which has "
            f"{bytes_there}: its memory was freed or made smaller (as FSDP does with resize_ of a storage); give a "
            "tensor whose memory is there"
        )
