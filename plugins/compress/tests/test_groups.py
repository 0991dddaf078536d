"""Process groups as aggregators: real workers, over Gloo and over a switch, compute the same bits as simulated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import wiresum.torch
from wiresum.compress import (
    Aggregator,
    Engine,
    GroupAggregator,
    InProcess,
    Piece,
    Segment,
    SwitchAggregator,
    aggregator_of,
)
from wiresum_lab.ranks.cluster import Cluster

from .methods import METHODS

SEGMENTS = [Segment((Piece("a", (6, 20)),)), Segment((Piece("b", (7,)),))]


def contributions(worker: int) -> dict[str, Any]:
    generator = np.random.default_rng(worker)
    return {
        "integers": generator.integers(-42, 43, 1001).astype(np.int32),
        "floats": np.append(generator.normal(size=9), np.nan if worker == 1 else 0.0),
        "bytes": np.arange(3 * worker, dtype=np.uint8),
    }


def every_operation(aggregator: Aggregator) -> list[Any]:
    local = [contributions(worker) for worker in aggregator.local]
    results: list[Any] = [aggregator.sum([mine["integers"] for mine in local], bits) for bits in (8, 16, 32)]
    results.append(aggregator.maximum([mine["floats"] for mine in local]))
    results += aggregator.gather([mine["bytes"] for mine in local], sizes_equal=False)
    parcels = {worker: np.full(5, worker, np.uint8) for worker in aggregator.local}
    delivered = aggregator.deliver([(1, 0), (2, 1)], parcels, 5)
    return [*(str(result.tolist()) for result in results), {to: parcel.tolist() for to, parcel in delivered.items()}]


def operations_in_worker(rank: int, size: int) -> list[Any]:
    return every_operation(aggregator_of())


def test_a_groups_operations_equal_the_simulated_ones(trio: Cluster) -> None:
    *expected, delivered = every_operation(InProcess(3))
    for rank, (*results, mine) in enumerate(trio.run(operations_in_worker)):
        assert results == expected
        assert mine == {to: parcel for to, parcel in delivered.items() if to == rank}


def gradients(step: int, workers: Any) -> list[list[np.ndarray]]:
    return [
        [np.random.default_rng([step, worker, s]).normal(size=segment.size) for s, segment in enumerate(SEGMENTS)]
        for worker in workers
    ]


def estimates(name: str, aggregator: Aggregator) -> list[bytes]:
    engine, results = Engine(METHODS[name], aggregator, seed=8), []
    parameters = {segment.name: np.linspace(1, 2, segment.size) for segment in SEGMENTS}
    for step in range(3):
        means = engine.average(SEGMENTS, gradients(step, aggregator.local), parameters)
        results += [one.tobytes() for one in means]
        engine.advance()
    return results


def all_methods_in_worker(rank: int, size: int) -> dict[str, list[bytes]]:
    return {name: estimates(name, aggregator_of()) for name in METHODS}


def test_every_method_gives_the_bits_of_simulated_workers(trio: Cluster) -> None:
    results = trio.run(all_methods_in_worker)
    for name in METHODS:
        expected = estimates(name, InProcess(3))
        assert all(result[name] == expected for result in results), name


def counts_in_worker(rank: int, size: int) -> tuple[bool, dict[str, int], dict[str, int]]:
    aggregator, before = aggregator_of(), wiresum.torch.stats()
    aggregator.sum([np.ones(100, np.int32)], 8)
    aggregator.maximum([np.ones(3)])
    after = wiresum.torch.stats()
    network = after.collectives_network - before.collectives_network
    return (
        isinstance(aggregator, SwitchAggregator),
        dict(network),
        dict(after.collectives_gloo - before.collectives_gloo),
    )


def test_over_wiresum_sums_and_maxima_go_through_the_switch(switched: Cluster) -> None:
    for is_switch, network, gloo in switched.run(counts_in_worker):
        assert is_switch
        assert network == {"all_reduce": 1, "all_gather_single": 1}
        assert gloo == {}


def names_both_ranks(rank: int, size: int) -> None:
    group = dist.new_group([0, 2])
    if rank != 1:
        with pytest.raises(ValueError, match=r"a \(rank 0 has 0; rank 1, global rank 2 has 2\)"):
            GroupAggregator(group).require_agreement("the arguments", lambda: {"a": rank})


def test_differences_in_a_subgroup_name_both_ranks(trio: Cluster) -> None:
    trio.run(names_both_ranks)


def test_without_a_group_the_error_says_what_to_do() -> None:
    assert not dist.is_initialized()
    with pytest.raises((RuntimeError, ValueError), match="init_process_group"):
        GroupAggregator()
