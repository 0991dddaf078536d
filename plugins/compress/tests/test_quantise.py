"""Quantisers are unbiased, within the declared variance, and give the same integers however these are added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from wiresum.compress import (
    DIANA,
    QSGD,
    InProcess,
    OwnScale,
    Quantiser,
    SignMajority,
    TernGrad,
    Turn,
)
from wiresum.compress.compressor import IntegerCompressor

from .rig import Array, exchange, vectors


def expected_error(vectors: Array, quantiser: Quantiser) -> float:
    """The exact mean over workers of E|C(v)-v|^2, relative to |v|^2; `vectors` has a row for each worker. A value of x
    quanta is rounded up with probability f = x - floor(x), so its variance is quantum^2 f (1 - f)."""
    order = {"1": 1, "2": 2, "inf": np.inf}[quantiser.norm]
    quantum = np.linalg.norm(vectors, order, axis=1).max() / (quantiser.levels or 1)
    fraction = np.abs(vectors) / quantum % 1
    return float(quantum**2 * np.sum(fraction * (1 - fraction)) / np.sum(vectors**2))


def worst_vectors(size: int, workers: int, quantiser: Quantiser, omega: float) -> Array:
    """The worst vectors by the derivation of omega (quantise.py), with norm 1."""
    assert quantiser.levels is not None
    free = 1 / quantiser.levels / (2 * (1 + omega))
    result = np.full((workers, size), free)
    if quantiser.norm == "inf":
        result[0, 0] = 1
    else:
        result[0] = 1 / (math.sqrt(size) if quantiser.norm == "2" else size)
    return result


TIGHT = [(size, workers, levels) for size in (16, 123) for workers in (1, 4, 10) for levels in (1, 2)]


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
@pytest.mark.parametrize(("size", "workers", "levels"), TIGHT)
def test_the_declared_omega_is_reached_by_the_worst_vectors(norm: Any, size: int, workers: int, levels: int) -> None:
    quantiser = Quantiser(levels, norm)
    omega = quantiser.omega(size, workers)
    assert omega is not None
    assert expected_error(worst_vectors(size, workers, quantiser, omega), quantiser) == pytest.approx(omega, rel=1e-9)


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
@pytest.mark.parametrize("levels", [1, 2, 7, 31])
def test_no_vectors_exceed_the_declared_omega(norm: Any, levels: int) -> None:
    """Random sizes, worker counts and distributions, and perturbed worst vectors."""
    generator, quantiser = np.random.default_rng(levels), Quantiser(levels, norm)
    for _ in range(300):
        size, workers = generator.integers(1, 60), generator.integers(1, 9)
        omega = quantiser.omega(int(size), int(workers))
        assert omega is not None
        wild = generator.normal(size=(workers, size)) * np.exp(generator.normal(size=(workers, size)) * 2)
        near = worst_vectors(size, workers, quantiser, omega) * (1 + 0.1 * generator.normal(size=(workers, size)))
        for rows in (wild, near):
            assert expected_error(rows, quantiser) <= omega * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("norm", "constant"), [("1", 122.0), ("2", math.sqrt(123) - 1), ("inf", (math.sqrt(123) - 1) / 2)]
)
def test_one_workers_ternary_constants_are_the_papers(norm: Any, constant: float) -> None:
    """The paper's constant is 1/alpha_p - 1 (DIANA, lemma 1)."""
    assert DIANA(norm=norm).omega(123, 1) == pytest.approx(constant)
    assert OwnScale(DIANA(norm=norm)).omega(123, 10) == pytest.approx(constant)


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
@pytest.mark.parametrize("levels", [1, 3, 15])
def test_the_variance_is_that_of_the_levels_and_the_norm(norm: Any, levels: int) -> None:
    """The variance equals the expected one, so ignored levels or norms are found, which an upper bound would miss."""
    quantiser, values = Quantiser(levels, norm), vectors(3)
    squares = [
        np.mean(
            [
                np.sum((row[0] - value) ** 2)
                for row, value in zip(exchange(quantiser, values, step=step).own, values, strict=True)
            ]
        )
        for step in range(300)
    ]
    expected = expected_error(np.stack(values), quantiser) * np.mean([np.sum(value**2) for value in values])
    assert abs(np.mean(squares) - expected) <= 6 * np.std(squares) / math.sqrt(300)


def test_a_zero_block_stays_zero_and_does_not_disturb_others() -> None:
    value = np.concatenate([np.zeros(16), np.full(16, 2.0)])
    mean = exchange(DIANA(norm="inf", block=16), [value, value]).means[0]
    assert (mean == value).all()


def test_the_largest_value_is_never_clamped() -> None:
    value = np.full(37, 1 / 3, np.float32)
    assert exchange(Quantiser(bits=8), [value] * 7).means[0] == pytest.approx(value, rel=1e-6)


def test_terngrad_clips_outliers_before_it_takes_the_maximum() -> None:
    value = np.append(np.tile([1.0, -1.0], 50), 100.0)
    own = exchange(TernGrad(clip=2.5), [value]).own[0][0]
    assert np.abs(own).max() == pytest.approx(2.5 * value.std())
    assert TernGrad(clip=2.5).omega(100, 2) is None


def test_more_levels_than_the_bits_have_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"integers up to 100 from each of 4 workers .* room for 31: use more bits"):
        exchange(QSGD(100, bits=8), vectors(4))


@pytest.mark.parametrize(
    ("method", "workers"),
    [
        (method, workers)
        for method, most in [(QSGD(), 8), (DIANA(), 127), (TernGrad(), 127), (SignMajority(), 127)]
        for workers in (most, most + 1)
    ],
    ids=str,
)
def test_a_method_takes_as_many_bits_as_its_number_of_workers_needs(method: IntegerCompressor, workers: int) -> None:
    values = [np.array([1.0, -1.0])] * workers
    aggregator = InProcess(workers)
    mean = exchange(method, values, aggregator=aggregator).means[0]
    turn = Turn(1, 0, 0, workers, "x", (2,), np.dtype(np.float64))
    assert method.bits_at(turn) == (8 if workers in (8, 127) else 16)
    assert np.sign(mean).tolist() == [1, -1]


def test_a_quantiser_needs_levels_or_bits() -> None:
    assert Quantiser(3, bits=None).bits_at(Turn(1, 0, 0, 43, "x", (2,), np.dtype(np.float64))) == 16
    with pytest.raises(ValueError, match="either the levels or the bits"):
        Quantiser(bits=None)
