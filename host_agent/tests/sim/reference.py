"""What a collective must give, bit for bit: an independent reference in NumPy integers.

Written from docs/protocol.md (sections 5 and 6) and the comments of numeric/format.hpp and codec.hpp, not from the C++.
A float is quantised as `round_half_even(x / quantum)`, where the quantum is a power of two that depends on the largest
exponent of the chunk; lanes are summed as integers, and scaled back. All of that is exact in float64, except the
roundings that the documents name, so no step here depends on the order of anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NOT_FINITE = 255


@dataclass(frozen=True)
class Format:
    """`dtype` is one of f32, f16, bf16 (as uint16 bits), e4m3, e5m2 (as uint8 bits), i32, raw (bytes)."""

    dtype: str
    scaling: str  # none, block or fixed
    bits: int = 32
    fixed_scale: float = 1.0

    @property
    def storage(self) -> np.dtype[Any]:
        return np.dtype({"f32": "f4", "f16": "f2", "bf16": "u2", "i32": "i4"}.get(self.dtype, "u1"))

    def chunk_elements(self, lanes: int) -> int:
        return lanes * (4 if self.dtype == "raw" else 32 // self.bits)


def to_float32(format_: Format, stored: Array) -> Array:
    if format_.dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def from_float32(format_: Format, values: Array) -> Array:
    if format_.dtype == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(format_.storage)


def largest_exponent(values: Array) -> int:
    """The largest biased fp32 exponent, 0..255."""
    if values.size == 0:
        return 0
    return int(((values.view(np.uint32) >> 23) & 0xFF).max())


def quantise(values: Array, shift: int, limit: int) -> Array:
    """round_half_even(values * 2^shift), clamped: exact in float64, whose exponents reach far enough."""
    scaled = np.ldexp(values.astype(np.float64), shift)
    return np.clip(np.rint(scaled), -limit, limit).astype(np.int64)


def lane_sum(lanes: list[Array], bits: int, count: int) -> Array:
    """The sum modulo 2^bits, as a signed number."""
    total = np.sum(lanes, axis=0, dtype=np.int64) if lanes else np.zeros(count, np.int64)
    half = 1 << (bits - 1)
    return (total + half) % (1 << bits) - half


def cut_to_24_bits(limit: int) -> int:
    """The largest fp32 number that is not above `limit`."""
    excess = max(0, limit.bit_length() - 24)
    return limit >> excess << excess


def bits_are_lost(format_: Format, values: list[Array], agreed: int, workers: int) -> bool:
    """Is an element further below the chunk's largest than docs/numerics.md allows? Zeros and subnormals are not."""
    log2_workers = (workers - 1).bit_length()
    gap_max = max(28 - log2_workers, 17 + log2_workers)
    exponents = [(v.view(np.uint32) >> 23 & 0xFF).astype(np.int64) for v in values]
    return format_.bits == 32 and any(((e != 0) & (e + gap_max < agreed)).any() for e in exponents)


def sum_block(
    format_: Format, contributions: list[Array], workers: int, divisor: float, count: int, exact_when_wide: bool
) -> Array:
    """Sums one chunk in block floating point, or exactly if that cannot carry it. `workers` is N, even if fewer
    contribute."""
    values = [to_float32(format_, c) for c in contributions]
    agreed = max((largest_exponent(v) for v in values), default=0)
    if agreed == NOT_FINITE or (exact_when_wide and bits_are_lost(format_, values, agreed, workers)):
        return sum_exactly(format_, contributions, divisor, count)
    bits = format_.bits
    log2_workers = (workers - 1).bit_length()
    shift = bits - 2 - log2_workers - (max(agreed, 1) - 127)
    limit = (1 << (bits - 1 - log2_workers)) - 1
    if bits == 32:
        limit = cut_to_24_bits(limit)
    total = lane_sum([quantise(v, shift, limit) for v in values], bits, count)
    # The sum becomes an fp32 number (one rounding); scaling back then rounds only subnormal results.
    scaled = np.ldexp(total.astype(np.float32).astype(np.float64), -shift)
    return from_float32(format_, average(scaled, divisor))


def sum_fixed(format_: Format, contributions: list[Array], workers: int, divisor: float, count: int) -> Array:
    """Sums one chunk with the caller's scale."""
    values = [to_float32(format_, c) for c in contributions]
    if any(largest_exponent(v) == NOT_FINITE for v in values):
        return sum_exactly(format_, contributions, divisor, count)
    scale = np.float32(format_.fixed_scale)
    limit = cut_to_24_bits(((1 << (format_.bits - 1)) - 1) // workers)
    with np.errstate(over="ignore"):
        lanes = [quantise(v * scale, 0, limit) for v in values]
    total = lane_sum(lanes, format_.bits, count)
    scaled = total.astype(np.float32) * (np.float32(1) / scale)
    return from_float32(format_, average(scaled, divisor))


def average(values: Array, divisor: float) -> Array:
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if divisor == 1.0 else single / np.float32(divisor)


WIDTHS = {"f32": (23, 8), "f16": (10, 5), "bf16": (7, 8), "e4m3": (3, 4), "e5m2": (2, 5)}  # of mantissa and exponent


def in_smallest_units(bits: int, mantissa_bits: int, exponent_bits: int) -> int:
    """A finite float's value as a multiple of its format's smallest subnormal."""
    mantissa = bits & (1 << mantissa_bits) - 1
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    magnitude = mantissa if exponent == 0 else (mantissa | 1 << mantissa_bits) << (exponent - 1)
    return -magnitude if bits >> (mantissa_bits + exponent_bits) else magnitude


def nearest_float(total: int, divisor: int, mantissa_bits: int, exponent_bits: int, overflow: int) -> int:
    """The bits of `total / divisor` smallest units, rounded to nearest even, by integer arithmetic only. `overflow`
    has the bits of what is too large."""
    magnitude = abs(total)
    # Keep so many bits that the quotient has mantissa_bits + 1; subnormals have fewer.
    exponent = max(0, magnitude.bit_length() - divisor.bit_length() - mantissa_bits)
    if magnitude // divisor >> exponent < 1 << mantissa_bits:
        exponent = max(0, exponent - 1)
    quotient, rest = divmod(magnitude, divisor << exponent)
    if 2 * rest > divisor << exponent or (2 * rest == divisor << exponent and quotient & 1):
        quotient += 1
    bits = min((exponent << mantissa_bits) + quotient, overflow)
    return bits | (1 << (mantissa_bits + exponent_bits) if total < 0 else 0)


def sum_exactly(format_: Format, contributions: list[Array], divisor: float, elements: int) -> Array:
    """Sums each element exactly and rounds once; Inf and NaN add as in IEEE 754, each in its own element."""
    mantissa_bits, exponent_bits = WIDTHS[format_.dtype]
    unsigned = np.dtype(f"u{format_.storage.itemsize}")
    is_e4m3 = format_.dtype == "e4m3"
    special = 0x7F if is_e4m3 else ((1 << exponent_bits) - 1) << mantissa_bits  # e4m3's NaN, or Inf
    columns = [contribution.view(unsigned).tolist() for contribution in contributions]
    result = np.zeros(elements, unsigned)
    for index, bits in enumerate(zip(*columns, strict=True)):
        magnitudes = [number & ((1 << (mantissa_bits + exponent_bits)) - 1) for number in bits]
        infinities = {number for number in bits if number & special == special}
        if not infinities:
            total = sum(in_smallest_units(number, mantissa_bits, exponent_bits) for number in bits)
            result[index] = nearest_float(total, int(divisor), mantissa_bits, exponent_bits, special - is_e4m3)
        elif is_e4m3 or max(magnitudes) > special or len(infinities) > 1:
            result[index] = special | 1 << (mantissa_bits - 1)
        else:
            result[index] = infinities.pop()
    return result.view(format_.storage)


def sum_chunk(
    format_: Format, contributions: list[Array], workers: int, divisor: float, count: int, exact_when_wide: bool
) -> Array:
    if format_.scaling == "block":
        return sum_block(format_, contributions, workers, divisor, count, exact_when_wide)
    if format_.scaling == "fixed":
        return sum_fixed(format_, contributions, workers, divisor, count)
    if format_.dtype in WIDTHS:  # fp8  # R5.29
        return sum_exactly(format_, contributions, divisor, count)
    if format_.dtype == "i32":
        lanes = [c.astype(np.int64) for c in contributions]
        return lane_sum(lanes, format_.bits, count).astype(np.int32)
    # Raw bytes have one contributor, so adding the others' zeros changes nothing.
    assert len(contributions) <= 1
    return contributions[0].copy() if contributions else np.zeros(count, np.uint8)


def sum_region(
    format_: Format,
    contributions: list[Array],
    elements: int,
    lanes: int,
    workers: int,
    divisor: float,
    exact_when_wide: bool = False,
) -> Array:
    """The sum of a region, chunk by chunk, as every worker that keeps it must store it."""
    step = format_.chunk_elements(lanes)
    result = np.empty(elements, format_.storage)
    for begin in range(0, elements, step):
        end = min(begin + step, elements)
        parts = [c[begin:end] for c in contributions]
        result[begin:end] = sum_chunk(format_, parts, workers, divisor, end - begin, exact_when_wide)
    return result
