"""No key comes twice. (keys.py argues why the next one cannot be guessed.)"""

from __future__ import annotations

import hashlib

import pytest

from wiresum.controller.jobs.keys import BLOCK, KEY_BITS, SECRET_BYTES, Keys, KeySequence


def secret(number: int) -> bytes:
    return hashlib.blake2s(bytes([number]), digest_size=SECRET_BYTES).digest()


@pytest.mark.parametrize("bits", [2, 4, 8, 12])
def test_a_sequence_gives_every_number_but_zero_once(bits: int) -> None:  # R7.11
    for number in range(10):
        sequence = KeySequence(secret(number), bits=bits)
        keys = [sequence.key(n) for n in range(1, sequence.length + 1)]
        assert sorted(keys) == list(range(1, 1 << bits))


def test_keys_of_the_usual_width_do_not_repeat_and_spread() -> None:
    sequence = KeySequence(secret(1))
    last = sequence.length
    keys = [sequence.key(n) for n in (*range(1, 5_000), *range(last - 5_000, last + 1), *range(2**31, 2**31 + 5_000))]
    assert len(set(keys)) == len(keys)
    assert 0 not in keys
    for bit in range(KEY_BITS):
        ones = sum(key >> bit & 1 for key in keys)
        assert abs(ones - len(keys) / 2) < 5 * (len(keys) / 4) ** 0.5, f"bit {bit} is not as drawn at random"


def test_another_secret_gives_another_sequence_and_identity() -> None:
    sequences = [KeySequence.draw() for _ in range(100)]
    assert len({sequence.identity for sequence in sequences}) == 100
    assert len({tuple(sequence.key(n) for n in range(1, 9)) for sequence in sequences}) == 100
    assert KeySequence(secret(1)).identity == KeySequence(secret(1)).identity


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        KeySequence(bytes(15))


def test_keys_are_reserved_in_blocks_before_they_are_drawn() -> None:
    keys = Keys(KeySequence(secret(1)))
    assert keys.must_reserve
    with pytest.raises(AssertionError):
        keys.draw()
    assert keys.reserve() == BLOCK
    drawn = [keys.draw() for _ in range(BLOCK)]
    assert keys.must_reserve
    after = Keys(KeySequence(secret(1)), reserved=BLOCK)
    assert after.reserve() == 2 * BLOCK
    assert not {after.draw() for _ in range(BLOCK)} & set(drawn)


def test_the_last_block_is_smaller_and_then_no_key_is_left() -> None:
    keys = Keys(KeySequence(secret(1), bits=4), reserved=10)
    assert keys.left == 5
    assert keys.reserve() == 15
    assert len({keys.draw() for _ in range(5)}) == 5
    assert (keys.left, keys.must_reserve) == (0, True)


def test_keys_that_others_may_have_used_are_skipped() -> None:
    keys = Keys(KeySequence(secret(1)))
    keys.reserve()
    drawn = [keys.draw() for _ in range(3)]
    keys.skip(2)
    drawn.append(keys.draw())
    keys.skip(3 * BLOCK)
    assert keys.must_reserve, "what is skipped is not reserved by this one"
    assert keys.reserve() == 4 * BLOCK
    drawn.append(keys.draw())
    assert drawn == [KeySequence(secret(1)).key(number) for number in (1, 2, 3, 4, 3 * BLOCK + 1)]
    keys.skip(1 << 40)
    assert keys.left == 0, "more than there are cannot have been used"
