"""The keys on the wire: each job gets a key that no job of this sequence had before. Pure, but for drawing a secret.

A cell of a switch belongs to the key of the contribution that began its round. To a packet with another key the cell is
unused. So what a job leaves behind means nothing to the next job, as long as no key is used twice while cells may hold
it. A sequence guarantees this, and outsiders cannot tell which key comes next.

Theory of operation. Job n of the sequence, counted from 1, gets the n-th number of a permutation of all 32-bit numbers,
so no number comes twice and no list of used keys is needed. The permutation is a Feistel network whose round function
is BLAKE2s with a secret of 128 bits. Halves of 16 bits are short and counted numbers are the worst case: distinguishers
of few rounds need some thousand keys of a sequence. NIST's FF1, the same construction (SP 800-38G), takes ten rounds,
and so does this network. 0 is no key: the number whose image is 0 gets the image of 0 instead, which no job has.

Keys are reserved in blocks. A block is on disk before its first key is used, and a restart continues behind the block:
a crash wastes the rest of a block, and uses no key again.

A disk may lose a write, and a copy of a state may be used. So each switch is told how many keys are reserved before it
is given a job with one of them, and keeps that number for as long as its cells. The next controller continues behind
that number too (`skip`), whatever its state says.
"""

from __future__ import annotations

import hashlib
import secrets

from wiresum.controller.jobs.refusal import Refusal

KEY_BITS = 32
SECRET_BYTES = 16
FEISTEL_ROUNDS = 10
BLOCK = 64
"""How many keys are reserved at once: few jobs wait for the disk, and a restart wastes little of 2^32."""


class KeySequence:
    """All keys, in an order that only the secret determines."""

    def __init__(self, secret: bytes, *, bits: int = KEY_BITS) -> None:
        """`bits`: width of a key, an even number; only tests use other widths than the usual one."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret of a key sequence has {SECRET_BYTES} bytes, not {len(secret)}")
        self._secret = secret
        self._half_bits = bits // 2
        self.length = (1 << bits) - 1
        """How many keys there are."""

    @classmethod
    def draw(cls) -> KeySequence:
        """Returns a sequence with a new random secret."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def identity(self) -> bytes:
        """Tells this sequence from every other. The identity is not secret: a switch may have it."""
        return hashlib.blake2s(key=self._secret, person=b"identity").digest()

    def key(self, number: int) -> int:
        """The key of job `number`, 1 to `length`: never 0, and different for each number."""
        assert 1 <= number <= self.length, f"there is no key {number}"
        return self._permuted(number) or self._permuted(0)  # R7.11

    def _permuted(self, number: int) -> int:
        half = self._half_bits
        left, right = number >> half, number & ((1 << half) - 1)
        for round_number in range(FEISTEL_ROUNDS):
            left, right = right, left ^ self._mixed(round_number, right)
        return left << half | right

    def _mixed(self, round_number: int, half: int) -> int:
        digest = hashlib.blake2s(half.to_bytes(2, "big"), key=self._secret, salt=bytes([round_number]), digest_size=2)
        return int.from_bytes(digest.digest(), "big") & ((1 << self._half_bits) - 1)


class Keys:
    """The keys that are left of a sequence. Only the owner of the state may draw from them."""

    def __init__(self, sequence: KeySequence, reserved: int = 0) -> None:
        """`reserved`: how many keys, from the first, may have been used."""
        self._sequence = sequence
        self.identity = sequence.identity
        self._drawn = reserved
        self.reserved = reserved
        """How many keys, from the first, may be used or may have been used."""

    @property
    def left(self) -> int:
        return self._sequence.length - self._drawn

    def check_left(self, waiting: int) -> None:
        """Raises a `Refusal` if no key is left for a job besides the `waiting` ones."""
        if self.left <= waiting:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                "all keys have been used: when no job runs, start the controller without its state, or the switch anew",
            )

    @property
    def must_reserve(self) -> bool:
        """True if all reserved keys have been drawn."""
        return self._drawn == self.reserved

    def reserve(self) -> int:
        """Reserves a block. Returns how many keys are reserved now, which must be on disk before the next key is
        used."""
        self.reserved = min(self._drawn + BLOCK, self._sequence.length)
        return self.reserved

    def skip(self, used: int) -> None:
        """Skips keys that others may have used: the first `used` ones."""
        self._drawn = max(self._drawn, min(used, self._sequence.length))
        self.reserved = max(self.reserved, self._drawn)

    def draw(self) -> int:
        assert self._drawn < self.reserved, "no key is used that is not reserved"
        self._drawn += 1
        return self._sequence.key(self._drawn)
