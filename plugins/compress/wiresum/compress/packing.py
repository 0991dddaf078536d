"""How many small integers fit in each 32-bit word that the network adds, and how large they may be.

A word holds 32/b integers x_0, x_1, ... of b bits as `sum of x_l * 2^(b*l)`, modulo 2^32. The switch (or Gloo, or
anything that adds int32) adds words modulo 2^32, so the word of the sum is `sum of s_l * 2^(b*l)` with s_l the sum
of integer l over all workers. A number modulo 2^32 has exactly one such form with every digit s_l in
[-2^(b-1), 2^(b-1)): it is the balanced representation in base 2^b. Thus:

    they are decoded exactly if, and only if, the SUM of each fits in b bits.

Partial sums and single contributions may overflow. `limit` bounds each contribution: the sum of N values of at most
floor((2^(b-1) - 1) / N) fits.

Word j holds the values j, j + m, j + 2m, ... of m words. So packing is a shift and an add of whole vectors, as on the
wire (host_agent/src/numeric/format.hpp), and the same code does both (native.py).
"""

from __future__ import annotations

BITS = (8, 16, 32)


def require_width(bits: int) -> None:
    """ValueError unless `bits` is in BITS."""
    if bits not in BITS:
        raise ValueError(f"integers have 8, 16 or 32 bits, not {bits}")


def limit(bits: int, workers: int) -> int:
    """The largest magnitude that each worker may send without overflow of the sum. ValueError if that is 0."""
    require_width(bits)
    magnitude = ((1 << (bits - 1)) - 1) // workers
    if magnitude == 0:
        raise ValueError(f"the sum over {workers} workers does not fit in {bits} bits: use more")
    return magnitude


def require_room(magnitude: int, bits: int, workers: int) -> None:
    """ValueError unless every worker may send integers of this magnitude."""
    if magnitude > limit(bits, workers):
        raise ValueError(
            f"integers up to {magnitude} from each of {workers} workers do not fit in {bits} bits, which have "
            f"room for {limit(bits, workers)}: use more bits, or fewer levels"
        )
