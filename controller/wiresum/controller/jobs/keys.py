"""The keys on the wire: each job gets one that no job of this sequence had before. Pure, but for drawing a secret.

A cell of a switch belongs to a key: that of the job whose contribution began its round. A packet with another key finds
the cell as if it had never been used, so whatever a job leaves behind means nothing to the next one, provided that no
key comes twice while cells may hold it. That is what a sequence promises; and outsiders cannot tell which comes next.

Theory of operation. Job number n of the sequence, counted from 1, gets the n-th number of a permutation of all 32-bit
numbers: so none comes twice, without a list of those that were. The permutation is a Feistel network, which is one
whatever its round function is; that is BLAKE2s with a secret of 128 bits, so the network's output looks drawn at random
to who does not know the secret. Halves of 16 bits are short, and numbers that are counted up are the worst case: known
distinguishers of few rounds need some thousand keys of the same sequence, and NIST's FF1, the same construction for
short numbers (SP 800-38G), takes ten. So does this.

0 is no key. If n is the number whose image is 0, it gets the image of 0 instead, which no job has, as none is number 0.

Keys are reserved in blocks. A block is to be on disk before the first key of it is used; who begins again from the disk
goes on behind it, so that a crash wastes the rest of a block and never gives a key again.

A disk may forget, and a copy of a state may be used beside the state or after it. So each switch is told how many keys
are reserved, before it is given a job with one of them, and keeps that number for as long as its cells keep what they
hold. Whoever comes to the switch next goes on behind that number too (`skip`), whatever his state says.
"""

from __future__ import annotations

import hashlib
import secrets

KEY_BITS = 32
SECRET_BYTES = 16
FEISTEL_ROUNDS = 10
BLOCK = 64
"""Keys that are reserved at once: so seldom does a job wait for the disk on their account, and so many does a restart
waste. 2^32 keys are 67 million such blocks."""


class KeySequence:
    """All keys, in an order that only the secret tells."""

    def __init__(self, secret: bytes, *, bits: int = KEY_BITS) -> None:
        """`bits`: of a key; other widths than the usual are for tests, and even."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret of a key sequence has {SECRET_BYTES} bytes, not {len(secret)}")
        self._secret = secret
        self._half_bits = bits // 2
        self.length = (1 << bits) - 1
        """How many keys there are."""

    @classmethod
    def draw(cls) -> KeySequence:
        """One that nobody had before."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @property
    def identity(self) -> bytes:
        """Tells this sequence from every other, and nothing of its keys: a switch may be given it."""
        return hashlib.blake2s(key=self._secret, person=b"identity").digest()

    def key(self, number: int) -> int:
        """Of job `number`, 1 to `length`: not 0, and another one for each number."""
        assert 1 <= number <= self.length, f"there is no key {number}"
        return self._permuted(number) or self._permuted(0)

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
    """The keys that are left of a sequence. One at a time may draw from it, whoever keeps `reserved` on disk."""

    def __init__(self, sequence: KeySequence, reserved: int = 0) -> None:
        """`reserved`: so many, from the first, may have been used."""
        self._sequence = sequence
        self._drawn = self._reserved = reserved

    @property
    def identity(self) -> bytes:
        return self._sequence.identity

    @property
    def left(self) -> int:
        return self._sequence.length - self._drawn

    @property
    def must_reserve(self) -> bool:
        """None may be drawn before others are reserved."""
        return self._drawn == self._reserved

    @property
    def reserved(self) -> int:
        """So many, from the first, may be used, or may have been."""
        return self._reserved

    def reserve(self) -> int:
        """How many are reserved from now on: to be on disk before the next key is used."""
        self._reserved = min(self._drawn + BLOCK, self._sequence.length)
        return self._reserved

    def skip(self, used: int) -> None:
        """So many, from the first, may have been used by others."""
        self._drawn = max(self._drawn, min(used, self._sequence.length))
        self._reserved = max(self._reserved, self._drawn)

    def draw(self) -> int:
        assert self._drawn < self._reserved, "no key is used that is not reserved"
        self._drawn += 1
        return self._sequence.key(self._drawn)
