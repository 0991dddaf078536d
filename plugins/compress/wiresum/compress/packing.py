"""The size of integers of which several fit in each 32-bit word that the network adds.

Sums are decoded exactly if, and only if, the sum over all workers fits in its bits, even if partial sums or
contributions overflow: docs/compress_design.md has the proof. `limit` bounds each contribution, so that the sum of N
fits.
"""

from __future__ import annotations

BITS = (8, 16, 32)


def require_width(bits: int) -> None:
    """Raises ValueError unless `bits` is in BITS."""
    if bits not in BITS:
        raise ValueError(f"integers have 8, 16 or 32 bits, not {bits}")


def limit(bits: int, workers: int) -> int:
    """The largest magnitude that each worker may send without overflow of the sum. ValueError if only 0 is possible."""
    require_width(bits)
    magnitude = ((1 << (bits - 1)) - 1) // workers
    if magnitude == 0:
        raise ValueError(f"the sum over {workers} workers does not fit in {bits} bits: use more")
    return magnitude


def width_for(magnitude: int, workers: int) -> int:
    """The fewest bits in which every worker may send integers of this magnitude. ValueError if 32 are too few."""
    for bits in BITS:
        if magnitude <= ((1 << (bits - 1)) - 1) // workers:
            return bits
    raise ValueError(f"integers up to {magnitude} from each of {workers} workers do not fit in {BITS[-1]} bits")


def require_room(magnitude: int, bits: int, workers: int) -> None:
    """Raises ValueError unless every worker may send integers of this magnitude in so many bits."""
    if magnitude > limit(bits, workers):
        raise ValueError(
            f"integers up to {magnitude} from each of {workers} workers do not fit in {bits} bits, which have "
            f"room for {limit(bits, workers)}: use more bits, or fewer levels"
        )
