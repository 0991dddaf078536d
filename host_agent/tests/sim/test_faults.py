"""Faults while collectives overlap: a worker aborts, closes its session or dies, the switch loses its cells and may get
the job back, or a deadline passes. Every operation of the remaining workers ends, and every successful result equals
the integer reference bit for bit.

pytest host_agent/tests/sim/test_faults.py --seed 1234         repeats a seed
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from wiresum_lab.simulation import sim

from .scenarios import MS, Scenario, make_scenario, replay
from .sparse_scenarios import make_mixed_scenario, make_scattered_scenario, make_sparse_scenario
from .test_simulation import check_outputs
from .test_sparse import large_scenario
from .trees import plant

BLOCKS = 400
MOMENTS = 12
KINDS = {
    "abort": sim.FaultKind.ABORT,
    "close": sim.FaultKind.CLOSE,
    "death": sim.FaultKind.DEATH,
    "switch_restart": sim.FaultKind.SWITCH_RESTART,
}


def make_faulty_scenario(seed: int) -> Scenario:
    rng = random.Random(f"faults {seed}")
    scenario = rng.choice([make_scenario, make_sparse_scenario, make_sparse_scenario, make_scattered_scenario])(seed)
    for call in scenario.calls:
        call.timeout = rng.choice([50 * MS, 2_000 * MS, 20_000 * MS])
    # Mostly during collectives, of which few take longer than a second here.
    moment = rng.choice([MS, 20 * MS, 200 * MS, 2_000 * MS])
    scenario.config.faults = [
        sim.Fault(rng.choice(list(KINDS.values())), rng.randrange(scenario.config.workers), rng.randrange(moment))
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    return scenario


MAKERS = (make_scenario, make_sparse_scenario, make_mixed_scenario, make_scattered_scenario)


def make_returning_scenario(seed: int) -> Scenario:
    """A switch loses its cells and has the job with the same key again, at once or later, up to two times."""
    rng = random.Random(f"returns {seed}")
    scenario = rng.choice(MAKERS)(seed)
    if rng.random() < 0.3:
        plant(rng, scenario.config)
    for call in scenario.calls:
        call.timeout = rng.choice([200 * MS, 2_000 * MS])
    moment = rng.choice([MS, 20 * MS, 200 * MS])
    faults = []
    for _ in range(rng.choice([1, 1, 2])):
        worker, at = rng.randrange(scenario.config.workers), rng.randrange(moment)
        faults.append(sim.Fault(sim.FaultKind.SWITCH_RESTART, worker, at))
        at += rng.choice([0, 0, MS, 30 * MS])
        faults.append(sim.Fault(sim.FaultKind.SWITCH_RETURN, worker, at))
    scenario.config.faults = faults
    return scenario


def run_and_check(scenario: Scenario, seed: int) -> sim.Report:
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario}"
    check_outputs(scenario, seed, report)
    return report


def test_every_operation_ends_and_none_ends_well_with_a_wrong_sum(fault_seed: int) -> None:
    run_and_check(make_faulty_scenario(fault_seed), fault_seed)


def test_a_restarted_switch_gives_no_wrong_sum(return_seed: int) -> None:  # R3.30
    run_and_check(make_returning_scenario(return_seed), return_seed)


def returning_at(at: int, seed: int) -> sim.Report:
    scenario = overlapping_scenario(seed)
    scenario.config.up.loss = scenario.config.down.loss = 0.02
    restart, again = sim.FaultKind.SWITCH_RESTART, sim.FaultKind.SWITCH_RETURN
    scenario.config.faults = [sim.Fault(restart, 0, at), sim.Fault(again, 0, at)]
    return run_and_check(scenario, seed)


def test_a_switch_restart_between_two_collectives_goes_unnoticed() -> None:
    """Cells without an owner accept any round."""
    scenario = large_scenario("all_dense", 1.0, calls=3, workers=3, blocks=BLOCKS)
    restart, again = sim.FaultKind.SWITCH_RESTART, sim.FaultKind.SWITCH_RETURN
    for between in (5_000_000_000, 15_000_000_000):
        scenario.config.faults += [sim.Fault(restart, 0, between), sim.Fault(again, 0, between)]
    report = run_and_check(scenario, 0)
    assert {status for statuses in report.results for status in statuses} == {sim.Status.OK}


def test_state_lost_by_a_switch_is_rebuilt_or_the_call_times_out() -> None:  # R3.30
    """The lost state cannot be rebuilt if one worker has received a RESULT that another has not: the first sends
    nothing more for that round."""
    took = run_and_check(overlapping_scenario(0), 0).time_ns
    ends: set[sim.Status | None] = set()
    for moment in range(MOMENTS):
        report = returning_at(took * moment // MOMENTS, moment)
        ends |= {status for statuses in report.results for status in statuses}
    assert ends == {sim.Status.OK, sim.Status.TIMED_OUT}


def overlapping_scenario(seed: int) -> Scenario:
    """Sparse and dense collectives of one kind, all in flight at once, for some tens of milliseconds."""
    scenario = large_scenario("aligned", 0.2, calls=2, workers=3, blocks=BLOCKS)
    scenario.calls += large_scenario("all_dense", 1.0, calls=2, workers=3, blocks=BLOCKS).calls
    scenario.calls += large_scenario("independent", 0.01, calls=2, workers=3, blocks=BLOCKS, grain=1).calls
    for call in scenario.calls:
        call.submit_at = [0] * 3
        call.timeout = 2_000 * MS
    config = scenario.config
    config.seed = seed
    config.threads, config.slots = 2, 64
    config.interruption_max = config.task_max = 2 * MS
    return scenario


def test_overlapping_collectives_succeed_without_a_fault() -> None:
    report = run_and_check(overlapping_scenario(0), 0)
    assert {status for statuses in report.results for status in statuses} == {sim.Status.OK}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_moment_ends_every_operation(kind: str) -> None:
    took = run_and_check(overlapping_scenario(0), 0).time_ns
    ended_badly = 0
    for moment in range(MOMENTS):
        scenario = overlapping_scenario(moment)
        scenario.config.faults = [sim.Fault(KINDS[kind], moment % 3, took * moment // MOMENTS)]
        report = run_and_check(scenario, moment)
        ended_badly += any(status != sim.Status.OK for statuses in report.results for status in statuses)
        dead = {moment % 3} if kind == "death" else set()
        assert {
            worker for statuses in report.results for worker, status in enumerate(statuses) if status is None
        } <= dead, "an operation of a living worker has not ended"
    assert ended_badly >= MOMENTS // 2, "the faults came too late to matter"


def test_a_deadline_holds_in_every_stage_of_a_request() -> None:
    """The request may be queued behind a prologue, in a task, or in a shard."""
    for timeout in range(MS, 40 * MS, 4 * MS):
        scenario = overlapping_scenario(timeout)
        scenario.config.task_max = 30 * MS
        for call in scenario.calls:
            call.timeout = timeout
        run_and_check(scenario, timeout)


@pytest.mark.parametrize(("more", "ends_as"), [(8, sim.Status.OK), (32, sim.Status.DIVERGED)])
# R2.20
def test_different_calls_with_equal_signatures_are_detected_by_unmatched_chunks(more: int, ends_as: sim.Status) -> None:
    """A signature has 16 bits, so different calls may share one; docs/protocol_reasons.md says what happens then."""
    config = sim.Scenario()
    config.lanes, config.slots = 16, 4
    job = sim.Job(config)
    memory = [[np.ones(sizes, np.int32) for sizes in (first, *[1] * config.slots)] for first in (4, more)]
    for number in range(1 + config.slots):  # one collective for each slot after the first
        job.add(
            dtype=sim.Dtype.I32,
            scaling=sim.Scaling.NONE,
            bits=32,
            fixed_scale=1.0,
            divisor=1.0,
            may_be_sparse=False,
            signature=7,
            regions=[[(mine[number].ctypes.data, mine[number].ctypes.data, len(mine[number]))] for mine in memory],
            submit_at=[0, 0],
            timeout=2_000 * MS,
        )
    report = job.run()
    assert report.results[0] == [sim.Status.OK, ends_as]
