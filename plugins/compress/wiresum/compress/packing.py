"""Several small integers in each 32-bit word that the network adds.

Theory. A word holds 32/b integers x_0, x_1, ... of b bits as `sum of x_l * 2^(b*l)`, modulo 2^32. The switch (or Gloo,
or anything that adds int32) adds words modulo 2^32, so the word of the sum is `sum of s_l * 2^(b*l)` with s_l the sum
of integer l over all workers. A number modulo 2^32 has exactly one such form with every digit s_l in
[-2^(b-1), 2^(b-1)): it is the balanced representation in base 2^b. Thus:

    they are decoded exactly if, and only if, the SUM of each fits in b bits.

Nothing is asked of partial sums, nor of single contributions: they may wrap around and borrow from neighbours on
their way. Where a bound on the sum is not known, `limit` bounds each contribution: N values of at most
floor((2^(b-1) - 1) / N) have a sum that fits.

They are stored by planes: word j holds the values j, j + m, j + 2m, ... of m words. So packing is a shift and an add
of whole vectors, as on the wire (host_agent/src/numeric/format.hpp), and the same code does both.
"""

from __future__ import annotations

from wiresum.compress import native
from wiresum.compress.arrays import Int32Array

WORD_BITS = 32
BITS = (8, 16, 32)


def require_width(bits: int) -> None:
    """ValueError unless integers may have so many bits."""
    if bits not in BITS:
        raise ValueError(f"integers have 8, 16 or 32 bits, not {bits}")


def limit(bits: int, workers: int) -> int:
    """The largest magnitude that each worker may send so that no sum overflows. ValueError if that is 0."""
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


def words_of(count: int, bits: int) -> int:
    """Words that hold `count` integers."""
    return -(-count * bits // WORD_BITS)


def pack(values: Int32Array, bits: int) -> Int32Array:
    return values if bits == WORD_BITS else native.pack(values, bits, words_of(len(values), bits))


def unpack(words: Int32Array, bits: int, count: int) -> Int32Array:
    """The sums as signed integers: exact if each fits in `bits`."""
    return words if bits == WORD_BITS else native.unpack(words, bits, count)
