"""A user's own compressors: one short class for each way in which messages are combined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from wiresum.compress import (
    Compressor,
    Engine,
    GatherCompressor,
    InProcess,
    IntegerCompressor,
    Piece,
    Segment,
    Sparse,
    SparseCompressor,
    Trait,
    Turn,
)
from wiresum.compress.compressor import require_indexable

from .rig import Unpacked, assert_unbiased, assert_variance_within_omega, exchange, vectors


@dataclass(frozen=True)
class Coin(IntegerCompressor):
    """Sends each value with probability p, as an integer multiple of a fixed quantum, and otherwise zero."""

    p: float
    quantum: float = 2.0**-20

    def omega(self, size: int, workers: int) -> float:
        return 1 / self.p - 1 + 1e-6

    def compress(self, vector: np.ndarray, turn: Turn) -> np.ndarray:
        heads = turn.uniform(turn.size) < self.p
        return np.rint(heads * vector / self.p / self.quantum).astype(np.int32)

    def decompress(self, integers: np.ndarray, turn: Turn, contributors: int) -> np.ndarray:
        return (integers * self.quantum / contributors).astype(turn.dtype)


@dataclass(frozen=True)
class FirstK(SparseCompressor):
    """Sends the first k values, whose indices every worker knows."""

    k: int

    def indices(self, turn: Turn) -> np.ndarray:
        return np.arange(self.k)

    def compress(self, vector: np.ndarray, turn: Turn) -> Sparse:
        return Sparse(np.arange(self.k), vector[: self.k])


@dataclass(frozen=True)
class Half(GatherCompressor):
    """IEEE half precision."""

    def compress(self, vector: np.ndarray, turn: Turn) -> np.ndarray:
        return vector.astype(np.float16).view(np.uint8)

    def decompress(self, parcel: np.ndarray, turn: Turn) -> np.ndarray:
        return parcel.copy().view(np.float16).astype(turn.dtype)


def test_a_new_compressor_of_integers_is_one_class() -> None:
    assert Coin.trait is Trait.DENSE_INT
    assert_unbiased(Coin(0.4), vectors(3))
    assert_variance_within_omega(Coin(0.4), vectors(3))
    ours, reference = exchange(Coin(0.4), vectors(3)), exchange(Coin(0.4), vectors(3), aggregator=Unpacked(3))
    assert ours.means[0].tobytes() == reference.means[0].tobytes()


def test_a_new_sparse_compressor_is_one_class() -> None:
    aggregator = InProcess(3)
    values = vectors(3)
    mean = exchange(FirstK(5), values, aggregator=aggregator).means[0]
    assert mean[:5] == pytest.approx(np.mean(values, axis=0)[:5])
    assert (mean[5:] == 0).all()
    assert aggregator.traffic.sent_bytes == 2 + 5 * 4, "an exponent, and the sum of five values"


def test_a_new_compressor_of_bytes_is_one_class() -> None:
    values = vectors(3)
    assert exchange(Half(), values).means[0] == pytest.approx(np.mean(values, axis=0), rel=2e-3, abs=1e-3)


def test_integers_too_large_for_their_bits_are_an_error_and_not_a_wrong_sum() -> None:
    reason = (
        r"Coin made integers beyond 715827882 \(worker 1: 1610612736 for 'x'\): .* 3 workers may not fit in 32 bits"
    )
    with pytest.raises(OverflowError, match=reason):
        exchange(Coin(1.0, 2.0**-30), [np.zeros(4), np.full(4, 1.5), np.zeros(4)])


def test_a_tensor_beyond_the_reach_of_an_index_is_refused() -> None:
    turn = Turn(0, 0, 0, 1, "huge", (2**16, 2**15), np.dtype(np.float32))
    with pytest.raises(ValueError, match=r"'huge' has 2147483648 values.* compress by layer"):
        require_indexable(turn)


class Travelling(FirstK):
    """Sends its indices although every worker could know them."""

    indices = SparseCompressor.indices


def test_a_sparse_compressor_without_a_count_gets_an_error_that_asks_for_it() -> None:
    with pytest.raises(NotImplementedError, match=r"Travelling .* count\(\)"):
        exchange(Travelling(2), vectors(2))


def test_a_sparse_compressor_that_sends_another_number_than_its_count_is_an_error() -> None:
    class Wrong(Travelling):
        def count(self, turn: Turn) -> int:
            return 3

    with pytest.raises(ValueError, match=r"Wrong chose 2 values of 'x', but its count\(\) is 3"):
        exchange(Wrong(2), vectors(2))


def printed_in_the_guide() -> type[Compressor]:
    """The class that ends docs/compress.md's section on how to add a compressor."""
    guide = (Path(__file__).parents[3] / "docs" / "compress.md").read_text()
    section = guide.partition("## Add a compressor")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert sum(bool(line) for line in program.splitlines()) <= 15
    names: dict[str, type[Compressor]] = {"__name__": __name__}  # type: ignore[dict-item]
    exec(program, names)
    return names["ScaledSign"]


def test_the_guides_compressor_sends_signs_and_error_feedback_the_rest() -> None:
    scaled_sign, values = printed_in_the_guide(), vectors(3)
    largest = max(np.abs(value).mean() for value in values)
    outcome = exchange(scaled_sign(), values)
    assert outcome.means[0] == pytest.approx(np.mean([largest * np.sign(value) for value in values], axis=0))
    engine, total = Engine(scaled_sign(memory="error-feedback"), InProcess(3)), np.zeros(60)
    for _ in range(1500):
        total += engine.average([Segment((Piece("x", (60,)),))], [[value] for value in values])[0]
        engine.advance()
    assert total / 1500 == pytest.approx(np.mean(values, axis=0), abs=0.05 * np.abs(values).max())
    assert engine.aggregator.traffic.sent_bytes == 1500 * (60 + 4 + 8), "8 bits each, two flags, and the mean"
