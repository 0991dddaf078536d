"""Sparse collectives equal the dense integer reference bit for bit, all workers choose alike, and only what is there
is sent.

pytest host_agent/tests/sim/test_sparse.py --seed 1234         one seed again
"""

from __future__ import annotations

import math
import random

import pytest
import wiresum_sim as sim
from reference import Format
from scenarios import Scenario
from sparse_scenarios import make_sparse_call, make_sparse_scenario
from test_simulation import check_outputs

HEADER_BYTES = 24
F32 = Format("f32", "block", 32)


def replay(seed: int) -> str:
    return f"replay: pytest host_agent/tests/sim/test_sparse.py --seed {seed}"


def choices(stats: sim.SparseStats) -> tuple[int, int, int, int]:
    return stats.prologues, stats.streams, stats.whole, stats.blocks_skipped


def test_every_sparse_collective_equals_the_dense_reference(sparse_seed: int) -> None:
    scenario = make_sparse_scenario(sparse_seed)
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(sparse_seed)}\n{scenario}"
    assert report.rejected == 0, f"an honest RESULT was rejected; {replay(sparse_seed)}\n{scenario}"
    assert len({choices(stats) for stats in report.sparse}) == 1, f"workers chose differently; {replay(sparse_seed)}"
    check_outputs(scenario, sparse_seed)


def large_scenario(
    placement: str,
    density: float,
    *,
    calls: int = 1,
    loss: float = 0.0,
    workers: int = 4,
    grain: int | None = None,
    format_: Format = F32,
) -> Scenario:
    """All-reduces of 1500 blocks over one link rate, one after the other."""
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
        [make_sparse_call(rng, config, format_, [1500], placement, density, at, grain) for at in submitted],
    )


@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize(("placement", "density"), [("aligned", 0.1), ("independent", 0.1), ("one_worker", 0.1)])
def test_a_worker_sends_its_blocks_the_headers_and_the_prologue_and_no_more(
    placement: str, density: float, loss: float
) -> None:
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
    counts = 1500 + 32 * 33  # and a sample of elements
    prologue = math.ceil(math.ceil(counts / 10) / scenario.config.lanes)  # of 4 workers' counts 10 fit a word
    # These fill the packets of the prologue. The numbers and exponents of each worker's first chunks fill one more.
    assert math.ceil(counts / 10) % scenario.config.lanes == 0
    prologue += 1
    exponents_known = 32 * scenario.config.lanes // (4 * (8 + 11))
    exponents_asked = min(32, union) - exponents_known  # a round trip holds fewer than 16 packets here
    for mine in present:
        needed += len(mine) * packet + (union - len(mine) + exponents_asked) * HEADER_BYTES + prologue * packet
    report = scenario.job().run()
    assert report.finished, report.failure
    assert [stats.blocks_skipped for stats in report.sparse] == [1500 - union] * 4
    # What is lost on its way up has to be sent again: 1%. All workers ask whose packet it was: headers.
    more = 0.0 if loss == 0 else 0.03
    assert (report.questions > 0) == (loss > 0)
    assert needed <= report.bytes_sent <= (1 + more) * needed


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_a_stream_begins_before_the_whole_tensor_has_been_looked_at(loss: float) -> None:
    """The second of two: the first tells how much to expect."""
    calls = 4
    scenario = large_scenario("independent", 0.1, calls=calls, loss=loss)
    scenario.config.lead_chunks = 64
    scenario.config.chore_max = 5_000_000
    report = scenario.job().run()
    assert report.finished, report.failure
    assert [stats.ahead for stats in report.sparse] == [calls - 1] * 4
    assert [stats.streams for stats in report.sparse] == [calls] * 4
    check_outputs(scenario, 0)


def test_what_others_look_at_for_long_does_not_hold_up_what_is_streamed_ahead() -> None:
    scenario = large_scenario("independent", 0.1, calls=3)
    scenario.config.lead_chunks = 64
    at_once = scenario.job().run()
    scenario = large_scenario("independent", 0.1, calls=3)
    scenario.config.lead_chunks = 64
    scenario.config.chore_max = 1_000_000  # less than what the lead takes
    late = scenario.job().run()
    assert at_once.finished and late.finished
    calls_ns = at_once.time_ns % 10_000_000_000
    assert late.time_ns - at_once.time_ns < 0.05 * calls_ns


def test_a_dense_tensor_asks_once_and_is_sent_whole_from_then_on() -> None:
    scenario = large_scenario("all_dense", 1.0, calls=8)
    report = scenario.job().run()
    assert report.finished, report.failure
    assert {choices(stats) for stats in report.sparse} == {(1, 0, 7, 0)}


def test_a_tensor_that_becomes_sparse_is_noticed_without_asking() -> None:
    scenario = large_scenario("all_dense", 1.0, calls=3)
    sparse = large_scenario("aligned", 0.02, calls=8)
    for call in sparse.calls:
        call.submit_at = [at + 30_000_000_000 for at in call.submit_at]
    scenario.config.vote_lag_chunks = 1500
    scenario.calls += sparse.calls
    report = scenario.job().run()
    assert report.finished, report.failure
    for stats in report.sparse:
        # One asked in vain; then two dense ones, and two sparse ones whose votes had to count first.
        assert (stats.prologues, stats.streams, stats.whole) == (7, 6, 4)


def test_sparse_is_faster_than_dense_by_about_the_share_that_is_left_out() -> None:
    """In virtual time, which no other process disturbs."""
    sparse = large_scenario("aligned", 0.1)
    dense = large_scenario("aligned", 0.1)
    dense.calls[0].may_be_sparse = False
    sparse_ns, dense_ns = sparse.job().run().time_ns, dense.job().run().time_ns
    assert dense_ns / sparse_ns > 5
