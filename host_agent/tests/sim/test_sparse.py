"""Sparse collectives equal the dense integer reference bit for bit, all workers make the same choices, and
only nonzero blocks are sent.

pytest host_agent/tests/sim/test_sparse.py --seed 1234         repeats a seed
"""

from __future__ import annotations

import math
import random

import pytest

from wiresum.join.constants import HEADER_BYTES
from wiresum_lab.simulation import sim

from .reference import Format
from .scenarios import Scenario, replay
from .sparse_scenarios import make_mixed_scenario, make_sparse_call, make_sparse_scenario
from .test_simulation import check_outputs

F32 = Format("f32", "block", 32)


def choices(stats: sim.SparseStats) -> tuple[int, int, int, int]:
    return stats.prologues, stats.streams, stats.whole, stats.blocks_skipped


def run_and_check(scenario: Scenario, seed: int) -> sim.Report:
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario}"
    assert report.rejected == 0, f"an honest RESULT was rejected; {replay(seed)}\n{scenario}"
    assert len({choices(stats) for stats in report.sparse}) == 1, f"workers chose differently; {replay(seed)}"
    check_outputs(scenario, seed)
    return report


def test_every_sparse_collective_equals_the_dense_reference(sparse_seed: int) -> None:  # R6.4, R6.5
    run_and_check(make_sparse_scenario(sparse_seed), sparse_seed)


def test_exact_sparse_and_other_sums_in_one_job_equal_the_reference(mixed_seed: int) -> None:
    run_and_check(make_mixed_scenario(mixed_seed), mixed_seed)


def large_scenario(
    placement: str,
    density: float,
    *,
    calls: int = 1,
    loss: float = 0.0,
    workers: int = 4,
    grain: int | None = None,
    format_: Format = F32,
    blocks: int = 1500,
) -> Scenario:
    """All-reduces of this many blocks over links of one rate, one after the other."""
    config = sim.Scenario()
    config.seed = 1
    config.workers = workers
    config.lanes = 64
    config.slots = 64
    config.up.rate_bps = config.down.rate_bps = 100e6
    config.up.loss = config.down.loss = loss
    rng = random.Random(5)
    submitted = [[number * 10_000_000_000] * workers for number in range(calls)]
    return Scenario(
        config,
        [make_sparse_call(rng, config, format_, [blocks], placement, density, at, grain) for at in submitted],
    )


@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize(("placement", "density"), [("aligned", 0.1), ("independent", 0.1), ("one_worker", 0.1)])
def test_a_worker_sends_only_its_blocks_headers_and_the_prologue(placement: str, density: float, loss: float) -> None:
    scenario = large_scenario(placement, density, loss=loss)
    (call,) = scenario.calls
    packet = HEADER_BYTES + 4 * scenario.config.lanes
    needed = 0
    step = call.format.chunk_elements(scenario.config.lanes)
    present = [
        {block for block in range(1500) if source.array[block * step : (block + 1) * step].any()}
        for source in call.regions[0].sources
        if source is not None
    ]
    union = len(set().union(*present))
    counts = 1500 + 32 * 33  # and counts of a sample of elements
    prologue = math.ceil(math.ceil(counts / 10) / scenario.config.lanes)  # of 4 workers' counts 10 fit a word
    exponents_asked = min(32, union)  # a round trip holds fewer than 16 packets here
    for mine in present:
        needed += len(mine) * packet + (union - len(mine) + exponents_asked) * HEADER_BYTES + prologue * packet
    report = scenario.job().run()
    assert report.finished, report.failure
    assert [stats.blocks_skipped for stats in report.sparse] == [1500 - union] * 4
    # Loss: 1% of the packets are sent again, after all workers have asked by headers whose packet was lost.
    more = 0.0 if loss == 0 else 0.03
    assert (report.questions > 0) == (loss > 0)
    assert needed <= report.bytes_sent <= (1 + more) * needed


def test_a_dense_tensor_asks_once_and_is_then_sent_whole() -> None:
    scenario = large_scenario("all_dense", 1.0, calls=8)
    report = scenario.job().run()
    assert report.finished, report.failure
    assert {choices(stats) for stats in report.sparse} == {(1, 0, 7, 0)}


def test_votes_detect_that_a_dense_tensor_has_become_sparse() -> None:
    scenario = large_scenario("all_dense", 1.0, calls=3)
    sparse = large_scenario("aligned", 0.02, calls=8)
    for call in sparse.calls:
        call.submit_at = [at + 30_000_000_000 for at in call.submit_at]
    scenario.config.vote_lag_chunks = 1500
    scenario.calls += sparse.calls
    report = scenario.job().run()
    assert report.finished, report.failure
    for stats in report.sparse:
        # One collective asked in vain; then two dense ones, and two sparse ones until the votes counted.
        assert (stats.prologues, stats.streams, stats.whole) == (7, 6, 4)


@pytest.mark.parametrize("number", range(8))
def test_tensors_that_turn_dense_with_many_in_flight_are_summed_exactly(number: int) -> None:
    """What a worker learnt about a tensor before its turn may be outdated when the turn comes."""
    scenario = large_scenario("aligned", 0.125, workers=2)
    for placement, density in (("all_dense", 1.0), ("aligned", 0.95), ("aligned", 0.95), ("aligned", 0.02)):
        scenario.calls += large_scenario(placement, density, workers=2).calls
    for call in scenario.calls:
        call.submit_at = [0, 0]
    config = scenario.config
    config.seed = number
    config.vote_lag_chunks = 1500 if number % 2 else 2
    config.interruption_max = config.task_max = [0, 1_000_000, 20_000_000][number % 3]
    report = scenario.job().run()
    assert report.finished, report.failure
    assert len({choices(stats) for stats in report.sparse}) == 1
    check_outputs(scenario, number)


def test_sparse_saves_time_in_proportion_to_the_skipped_blocks() -> None:
    """Measured in virtual time, which other processes do not affect."""
    sparse = large_scenario("aligned", 0.1)
    dense = large_scenario("aligned", 0.1)
    dense.calls[0].may_be_sparse = False
    sparse_ns, dense_ns = sparse.job().run().time_ns, dense.job().run().time_ns
    assert dense_ns / sparse_ns > 5
