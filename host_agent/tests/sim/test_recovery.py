"""What a lost packet costs, in virtual time: links and round trips that no test machine has, with the shipped
constants."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum_lab.simulation import sim

WORKERS = 8


def nanoseconds(*, gbit: float, link_ns: int, megabytes: float, loss: float, seed: int) -> int:
    """Of a sum whose elements are all checked."""
    scenario = sim.Scenario()
    scenario.seed, scenario.workers, scenario.slots, scenario.rto_min = seed, WORKERS, 512, sim.RTO_MIN_NS
    link = sim.Link()
    link.loss, link.delay_ns, link.rate_bps = loss, link_ns, gbit * 1e9
    scenario.up = scenario.down = link
    job = sim.Job(scenario)
    tensors = [np.full(int(megabytes * 1e6) // 4, rank, np.float32) for rank in range(WORKERS)]
    regions = [[(tensor.ctypes.data, tensor.ctypes.data, tensor.size)] for tensor in tensors]
    job.add(sim.Dtype.F32, sim.Scaling.BLOCK_EXPONENT, 32, 1.0, 1.0, False, 0, regions, [0] * WORKERS)
    report = job.run()
    assert report.finished, report.failure
    for tensor in tensors:
        assert (tensor == sum(range(WORKERS))).all()
    return int(report.time_ns)


@pytest.mark.parametrize(("loss", "share"), [(1e-4, 0.97), (1e-3, 0.9), (1e-2, 0.6)])
def test_random_loss_does_not_close_the_window_below_what_a_fast_path_holds(
    loss: float, share: float, recovery_seed: int
) -> None:
    """A round trip of 68 packets, more than twice the window's floor."""
    path = {"gbit": 400, "link_ns": 1_000, "megabytes": 8, "seed": recovery_seed}
    assert nanoseconds(loss=0, **path) >= share * nanoseconds(loss=loss, **path)


@pytest.mark.parametrize(("loss", "share"), [(1e-4, 0.97), (1e-3, 0.9), (1e-2, 0.6)])
@pytest.mark.parametrize(("gbit", "link_ns", "megabytes"), [(100, 1_000, 4), (10, 10_000, 2)])
def test_a_loss_costs_round_trips_and_not_the_floor_of_the_rto(
    gbit: float, link_ns: int, megabytes: float, loss: float, share: float, recovery_seed: int
) -> None:
    path = {"gbit": gbit, "link_ns": link_ns, "megabytes": megabytes, "seed": recovery_seed}
    assert nanoseconds(loss=0, **path) >= share * nanoseconds(loss=loss, **path)  # type: ignore[arg-type]
