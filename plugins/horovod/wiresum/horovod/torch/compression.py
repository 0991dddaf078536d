"""Encodings of tensors on the network: `Compression.none` and `Compression.fp16`."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Sends tensors unchanged. Subclasses encode them: `decompress` gets the second value that `compress` returned."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(torch.float16) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor.to(context) if tensor.is_floating_point() else tensor


class Compression:
    none = Compressor
    fp16 = FP16Compressor
