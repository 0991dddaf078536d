"""What a lost packet costs, in virtual time: links and round trips that no test machine has, with the shipped
constants."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from wiresum_lab.benchmarks.scale.case import Case, simulate
from wiresum_lab.simulation import sim

WORKERS = 8


def nanoseconds(*, gbit: float, link_ns: int, megabytes: float, loss: float, seed: int, begin_ns: int = 0) -> int:
    """Of a sum whose elements are all checked."""
    scenario = sim.Scenario()
    scenario.seed, scenario.workers, scenario.slots, scenario.rto_min = seed, WORKERS, 512, sim.RTO_MIN_NS
    link = sim.Link()
    link.loss, link.delay_ns, link.rate_bps = loss, link_ns, gbit * 1e9
    scenario.up = scenario.down = link
    job = sim.Job(scenario)
    tensors = [np.full(int(megabytes * 1e6) // 4, rank, np.float32) for rank in range(WORKERS)]
    regions = [[(tensor.ctypes.data, tensor.ctypes.data, tensor.size)] for tensor in tensors]
    job.add(sim.Dtype.F32, sim.Scaling.BLOCK_EXPONENT, 32, 1.0, 1.0, False, 0, regions, [begin_ns] * WORKERS)
    report = job.run()
    assert report.finished, report.failure
    for tensor in tensors:
        assert (tensor == sum(range(WORKERS))).all()
    return int(report.time_ns) - begin_ns


# A round trip of the first holds 68 packets, more than twice the window's floor.
@pytest.mark.parametrize(("gbit", "link_ns", "megabytes"), [(400, 1_000, 8), (100, 1_000, 4), (10, 10_000, 2)])
@pytest.mark.parametrize(("loss", "share"), [(1e-4, 0.97), (1e-3, 0.95), (1e-2, 0.7)])
def test_a_loss_costs_round_trips_and_neither_the_floor_of_the_rto_nor_the_window(
    gbit: float, link_ns: int, megabytes: float, loss: float, share: float
) -> None:
    """In the median of five seeds: one of them may lose nothing, or the last packet again and again."""
    times = [nanoseconds(gbit=gbit, link_ns=link_ns, megabytes=megabytes, loss=loss, seed=seed) for seed in range(5)]
    lossless = nanoseconds(gbit=gbit, link_ns=link_ns, megabytes=megabytes, loss=0, seed=0)
    assert min(times) > lossless
    assert statistics.median(times) <= lossless / share


def test_a_pause_makes_a_loss_cost_no_more() -> None:
    """A training computes between its sums, for longer than any time-out."""
    path = {"gbit": 100, "link_ns": 1_000, "megabytes": 4, "loss": 1e-2}
    times = [nanoseconds(seed=seed, begin_ns=200_000_000, **path) for seed in range(6)]  # type: ignore[arg-type]
    assert max(times) <= 1.2 * nanoseconds(seed=0, **path)  # type: ignore[arg-type]


@pytest.mark.parametrize("losses", [1, 5])
def test_timers_that_peers_wait_for_do_not_make_each_other_longer(losses: int) -> None:
    """Much loss below a tree. With these losses the last chunks are lost again and again, or the greeting, in which
    nobody knows the round trip yet, still waits for timers of 20 ms when the sum begins."""
    assert simulate(Case(workers=128, racks=(16,), loss=1e-2, seed=losses)).seconds < 0.003
