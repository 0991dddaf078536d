"""The expected result of a sum in the network, bit for bit: exact, or block floating point in exact integers, with
NumPy alone.

This module follows docs/protocol.md and docs/numerics.md, not the C++, with which it shares no code.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

EXACT_ELEMENTS_MAX = 4096


def all_reduce(inputs: list[torch.Tensor], *, lanes: int, bits: int = 32, average: bool = False) -> torch.Tensor:
    """The result at every worker of an all-reduce of one region with WIRESUM_PRECISION=auto. `lanes` is the number of
    32-bit words in a packet."""
    if inputs[0].is_floating_point() and inputs[0].numel() <= EXACT_ELEMENTS_MAX:
        return exact_sum(inputs, average=average)
    return block_sum(inputs, lanes=lanes, bits=bits, average=average)


def exact_sum(inputs: list[torch.Tensor], *, average: bool = False) -> torch.Tensor:
    """The exact sum of each element, rounded once; Inf and NaN as IEEE 754 adds them."""
    columns = zip(*(tensor.reshape(-1).tolist() for tensor in inputs), strict=True)
    divisor = len(inputs) if average else 1
    sums = [_exact_element(column, divisor, inputs[0].dtype) for column in columns]
    return torch.tensor(sums, dtype=torch.float64).to(inputs[0].dtype).reshape(inputs[0].shape)


def _exact_element(terms: tuple[float, ...], divisor: int, dtype: torch.dtype) -> float:
    if not all(map(math.isfinite, terms)):
        infinities = {term for term in terms if not math.isfinite(term)}
        return infinities.pop() if len(infinities) == 1 else math.nan
    total = sum(map(Fraction, terms), Fraction()) / divisor
    if total == 0:
        return 0.0
    info = torch.finfo(dtype)
    mantissa_bits = -int(math.log2(info.eps))
    magnitude = math.floor(math.log2(abs(total.numerator)) - math.log2(total.denominator))
    while abs(total) >= Fraction(2) ** (magnitude + 1):
        magnitude += 1
    while abs(total) < Fraction(2) ** magnitude:
        magnitude -= 1
    quantum = Fraction(2) ** (max(magnitude, int(math.log2(info.tiny))) - mantissa_bits)
    rounded = round(abs(total) / quantum) * quantum  # to even
    beyond = info.max if dtype == torch.float8_e4m3fn else math.inf
    return math.copysign(float(rounded) if rounded <= info.max else beyond, total)


def block_sum(inputs: list[torch.Tensor], *, lanes: int, bits: int = 32, average: bool = False) -> torch.Tensor:
    """The sum in block floating point, chunk by chunk; chunks with an Inf or a NaN get the exact sum."""
    flat = [tensor.cpu().reshape(-1) for tensor in inputs]
    chunk = lanes * (32 // bits)
    parts = [
        _chunk([tensor[first : first + chunk] for tensor in flat], bits, average)
        for first in range(0, flat[0].numel(), chunk)
    ]
    return torch.cat(parts).reshape(inputs[0].shape) if parts else inputs[0].clone()


def _chunk(inputs: list[torch.Tensor], bits: int, average: bool) -> torch.Tensor:
    workers, dtype = len(inputs), inputs[0].dtype
    if dtype == torch.int32:
        total = sum(tensor.numpy().astype(np.int64) for tensor in inputs)
        return torch.from_numpy(((np.asarray(total) + 2**31) % 2**32 - 2**31).astype(np.int32))
    values = [tensor.to(torch.float32).numpy() for tensor in inputs]
    exponents = [(value.view(np.uint32) >> 23 & 0xFF).astype(np.int64) for value in values]
    exponent = max(int(each.max()) for each in exponents)
    headroom_bits = (workers - 1).bit_length()
    if exponent == 255:
        return exact_sum(inputs, average=average)
    shift = bits - 2 - headroom_bits - (max(exponent, 1) - 127)
    limit = 2 ** (bits - 1 - headroom_bits) - 1
    lanes = [np.clip(np.rint(np.ldexp(value.astype(np.float64), shift)), -limit, limit) for value in values]
    total = np.sum(lanes, axis=0)  # exact: far below 2**53
    summed = np.ldexp(total.astype(np.float32), -shift)
    if average:
        summed = (summed / np.float32(workers)).astype(np.float32)
    return torch.from_numpy(summed.astype(np.float32)).to(dtype)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    actual, expected = actual.cpu().contiguous(), expected.cpu().contiguous()
    if not torch.equal(actual.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)):
        differing = (actual != expected).nonzero()[:5]
        raise AssertionError(f"{actual.dtype}: differ at {differing.tolist()}: {actual} is not {expected}")
