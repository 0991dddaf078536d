"""What a sum in the network must be, bit for bit: block floating point in exact integers, with NumPy alone.

Written from docs/protocol.md, not from the C++: it shares no code with what it checks.
"""

from __future__ import annotations

import numpy as np
import torch


def all_reduce(inputs: list[torch.Tensor], *, lanes: int, lane_bits: int = 32, average: bool = False) -> torch.Tensor:
    """The result of an all-reduce of one region, at every worker. `lanes` are 32-bit words in a packet."""
    flat = [tensor.reshape(-1) for tensor in inputs]
    chunk = lanes * (32 // lane_bits)
    parts = [
        _chunk([tensor[first : first + chunk] for tensor in flat], lane_bits=lane_bits, average=average)
        for first in range(0, flat[0].numel(), chunk)
    ]
    return torch.cat(parts).reshape(inputs[0].shape) if parts else inputs[0].clone()


def _chunk(inputs: list[torch.Tensor], *, lane_bits: int, average: bool) -> torch.Tensor:
    workers, dtype = len(inputs), inputs[0].dtype
    if dtype == torch.int32:
        total = sum(tensor.numpy().astype(np.int64) for tensor in inputs)
        return torch.from_numpy(((np.asarray(total) + 2**31) % 2**32 - 2**31).astype(np.int32))
    values = [tensor.to(torch.float32).numpy() for tensor in inputs]
    exponent = max(int((value.view(np.uint32) >> 23 & 0xFF).max()) for value in values)
    if exponent == 255:
        return torch.full_like(inputs[0], float("nan"))
    headroom_bits = (workers - 1).bit_length()
    shift = lane_bits - 2 - headroom_bits - (max(exponent, 1) - 127)
    limit = 2 ** (lane_bits - 1 - headroom_bits) - 1
    lanes = [np.clip(np.rint(np.ldexp(value.astype(np.float64), shift)), -limit, limit) for value in values]
    total = np.sum(lanes, axis=0)  # exact: far below 2**53
    summed = np.ldexp(total.astype(np.float32), -shift)
    if average:
        summed = (summed / np.float32(workers)).astype(np.float32)
    return torch.from_numpy(summed.astype(np.float32)).to(dtype)
