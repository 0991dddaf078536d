"""gTop-k, in its exact mode and in its tree mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wiresum.compress import GTopK, InProcess
from wiresum.compress.gtopk import rounds_up
from wiresum.compress.native import index_code_bytes

from .rig import exchange, vectors


def integral(workers: int, size: int = 60) -> list[np.ndarray]:
    """Vectors of whole numbers, whose sums are exact, so that lost values can be found bit for bit."""
    return [np.round(vector * 8) for vector in vectors(workers, (size,))]


def test_the_result_is_the_top_k_of_the_sum_of_all_workers_top_k() -> None:
    values = integral(4)
    total = np.zeros(60)
    for value in values:
        top = np.argsort(-np.abs(value), kind="stable")[:6]
        total[top] += value[top]
    chosen = np.argsort(-np.abs(total), kind="stable")[:6]
    mean = exchange(GTopK(0.1), values).means[0]
    assert np.flatnonzero(mean).tolist() == sorted(chosen.tolist())
    assert (mean[chosen] * 4 == total[chosen]).all()


def test_exact_mode_loses_nothing() -> None:
    """The sent and the retained parts add up to the input, bit for bit."""
    values = integral(4)
    outcome = exchange(GTopK(0.1), values)
    stays = [value - row[0] for value, row in zip(values, outcome.own, strict=True)]
    assert (outcome.means[0] * 4 + np.sum(stays, axis=0) == np.sum(values, axis=0)).all()


def test_tree_mode_loses_values_at_inner_merges() -> None:
    """The published algorithm has this loss, so it is not the default. One merge drops index 1, which another one
    chooses."""
    values = [np.array([8.0, 0, 0]), np.array([0, 5.0, 0]), np.array([0, 9.0, 0]), np.array([0, 0, 1.0])]
    outcome = exchange(GTopK(1 / 3, mode="tree"), values)
    assert (outcome.means[0] * 4).tolist() == [0, 9, 0]
    assert sum(row[0] for row in outcome.own).tolist() == [0, 14, 0], "5 of it was lost, and is in no memory"
    exact = exchange(GTopK(1 / 3), values)
    assert (exact.means[0] * 4).tolist() == [0, 14, 0]


@pytest.mark.parametrize("indices", [[-1, 3], [3, 3], [5, 4], [0, 20], [-(2**31), 2**31 - 1]])
def test_indices_that_no_vector_has_are_refused_in_the_tree(indices: list[int]) -> None:
    class Hostile(InProcess):
        def deliver(self, routes: Any, parcels: Any, nbytes: int) -> Any:
            delivered = super().deliver(routes, parcels, nbytes)
            for worker, parcel in delivered.items():
                delivered[worker] = np.concatenate([np.array(indices, "<i4").view(np.uint8), parcel[8:]])
            return delivered

    with pytest.raises(ValueError, match="do not ascend below 20"):
        exchange(GTopK(0.1, mode="tree"), [vector[:20] for vector in vectors(2)], aggregator=Hostile(2))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_trees_root_sends_and_receives_4k_log2_n_numbers(workers: int) -> None:
    class Root(InProcess):
        numbers = 0

        def deliver(self, routes: Any, parcels: Any, nbytes: int) -> Any:
            self.numbers += sum(nbytes // 4 for route in routes if 0 in route)
            return super().deliver(routes, parcels, nbytes)

    aggregator = Root(workers)
    values = vectors(workers, dtype=np.float32)
    exchange(GTopK(0.1, mode="tree"), values, aggregator=aggregator)
    assert aggregator.numbers == 4 * 6 * np.log2(workers)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_the_tree_reaches_all_workers_in_the_fewest_rounds(workers: int) -> None:
    reached = {0}
    for routes in reversed(rounds_up(workers)):
        assert all(destination in reached for _, destination in routes)
        reached |= {source for source, _ in routes}
    assert reached == set(range(workers))
    assert len(rounds_up(workers)) == int(np.ceil(np.log2(workers)))


def test_tree_and_exact_mode_agree_if_workers_choose_the_same_coordinates() -> None:
    values = [scale * np.arange(1.0, 41.0) for scale in (1, 2, 3, 4, 5)]
    tree, exact = exchange(GTopK(0.1, mode="tree"), values), exchange(GTopK(0.1), values)
    assert tree.means[0] == pytest.approx(exact.means[0], rel=1e-14)
    assert all((one[0] == other[0]).all() for one, other in zip(tree.own, exact.own, strict=True))


def test_16_bits_halve_the_traffic_and_rounding_errors_are_kept() -> None:
    values = integral(4)
    outcomes, sent = [], []
    for bits in (32, 16):
        aggregator = InProcess(4)
        outcomes.append(exchange(GTopK(0.2, bits=bits), values, aggregator=aggregator))
        sent.append(aggregator.traffic.sent_bytes)
    exact, rounded = (outcome.means[0] for outcome in outcomes)
    largest = np.abs(values).max()
    assert np.abs(rounded - exact).max() <= largest / 2**10, "with 4 workers 12 bits of the largest are kept"
    assert (outcomes[1].means[0] * 4 == np.sum([row[0] for row in outcomes[1].own], axis=0)).all()
    indices_bytes = 2 + index_code_bytes(12, 60)
    assert sent[1] - indices_bytes == pytest.approx((sent[0] - indices_bytes) / 2, abs=4)
