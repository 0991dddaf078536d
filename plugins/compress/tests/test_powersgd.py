from __future__ import annotations

import numpy as np
import pytest

from wiresum.compress import InProcess, PowerSGD
from wiresum.compress.powersgd import matrix_sides, orthonormal

from .rig import exchange, vectors


def test_a_matrix_of_low_rank_passes_nearly_exactly() -> None:
    generator = np.random.default_rng(1)
    low = (generator.normal(size=(12, 2)) @ generator.normal(size=(2, 20))).reshape(-1)
    outcome = exchange(PowerSGD(2), [low, 3 * low], shape=(12, 20))
    assert outcome.means[0] == pytest.approx(2 * low, rel=1e-6)


def test_warm_starts_approach_the_best_approximation() -> None:
    matrix = vectors(1, (12, 20))[0]
    best = np.linalg.svd(matrix.reshape(12, 20))[1]
    optimum = np.sum(best[2:] ** 2)
    state: dict[str, np.ndarray] = {}
    errors = []
    for step in range(30):
        outcome = exchange(PowerSGD(2), [matrix], shape=(12, 20), state=state, step=step)
        state = outcome.states[0]
        errors.append(np.sum((outcome.means[0] - matrix) ** 2))
    assert errors[-1] == pytest.approx(optimum, rel=1e-3)
    assert errors[0] > errors[-1]


def test_the_sent_parts_add_up_to_the_mean_and_are_projections() -> None:
    values = vectors(3, (12, 20))
    outcome = exchange(PowerSGD(2), values, shape=(12, 20))
    np.testing.assert_allclose(outcome.means[0], np.mean([row[0] for row in outcome.own], axis=0), atol=1e-9)
    for value, row in zip(values, outcome.own, strict=True):
        assert np.sum((row[0] - value) ** 2) <= np.sum(value**2)


def test_it_sends_the_two_factors_as_integers_of_32_bits() -> None:
    aggregator = InProcess(3)
    exchange(PowerSGD(2), vectors(3, (12, 20)), shape=(12, 20), aggregator=aggregator)
    flags_and_maxima = 4 * 4 + 2 * 8
    assert aggregator.traffic.sent_bytes == 2 * (12 + 20) * 4 + flags_and_maxima


def test_a_vector_too_small_for_factors_is_sent_uncompressed() -> None:
    values = vectors(3, (7,))
    assert exchange(PowerSGD(2), values).means[0] == pytest.approx(np.mean(values, axis=0), abs=1e-7)


def test_a_nan_reaches_every_worker_and_not_the_state() -> None:
    values = vectors(3, (12, 20))
    before = exchange(PowerSGD(2), values, shape=(12, 20)).states[0]
    values[1][7] = np.nan
    outcome = exchange(PowerSGD(2), values, shape=(12, 20), state=before)
    assert np.isnan(outcome.means[0]).all()
    assert (outcome.states[0]["q"] == before["q"]).all()


@pytest.mark.parametrize(
    ("shape", "sides"), [((4, 3, 2), (4, 6)), ((36,), (6, 6)), ((35,), (5, 7)), ((7,), (1, 7)), ((), (1, 1))]
)
def test_tensors_are_reshaped_into_matrices(shape: tuple[int, ...], sides: tuple[int, int]) -> None:
    assert matrix_sides(shape) == sides


def test_dependent_columns_become_zero() -> None:
    column = np.arange(1.0, 6.0)
    result = orthonormal(np.stack([column, 2 * column, np.ones(5)], axis=1))
    assert (result[:, 1] == 0).all()
    assert result[:, [0, 2]].T @ result[:, [0, 2]] == pytest.approx(np.eye(2))
