"""A job whose switch is lost goes on at another lease, and every sum equals the integer reference bit for bit: whenever
the switch is lost, however late the controller's messages are, and also if the next switch is lost while RESULTs are
given again. Callers write to their memory as soon as a collective has ended.

pytest host_agent/tests/sim/test_moves.py --seeds 10000        a long run
pytest host_agent/tests/sim/test_moves.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from wiresum.controller.jobs.positions import Role
from wiresum_lab.doubles.moving import roles
from wiresum_lab.simulation import sim

from .scenarios import MS, Scenario, make_scenario, replay
from .sparse_scenarios import make_mixed_scenario, make_scattered_scenario, make_sparse_scenario
from .test_faults import KINDS, overlapping_scenario
from .test_simulation import check_outputs
from .trees import plant

MAKERS = (make_scenario, make_scenario, make_sparse_scenario, make_mixed_scenario, make_scattered_scenario)
MOMENTS = 20
OK = {sim.Status.OK}


@dataclass
class Controller:
    """Says who repeats what, as the controller does, and counts it."""

    told: Counter[int] = field(default_factory=Counter)
    moves: int = 0

    def roles_of(self, positions: list[list[int]]) -> list[bytes]:
        told = roles(positions)
        self.moves += 1
        for mine in told:
            self.told.update(mine)
        return told


def make_moving_scenario(seed: int) -> Scenario:
    """The job moves up to four times: because a switch is lost, or so. Losses and moves may overlap."""
    rng = random.Random(f"moves {seed}")
    scenario = rng.choice(MAKERS)(seed)
    config = scenario.config
    if rng.random() < 0.3:
        plant(rng, config)
    config.callers_write = True
    delay = config.message_delay_max = rng.choice([1_000, 200_000, 5 * MS, 50 * MS])
    moment = rng.choice([MS, 20 * MS, 200 * MS, 2_000 * MS])
    at = rng.randrange(moment)
    faults = []
    for _ in range(rng.choice([1, 1, 2, 3, 4])):
        lost = [rng.randrange(config.workers) for _ in range(rng.choice([0, 1, 1, 2]))]
        faults += [sim.Fault(sim.FaultKind.SWITCH_RESTART, worker, at) for worker in lost]
        faults.append(sim.Fault(sim.FaultKind.MOVE, 0, at + rng.choice([0, rng.randrange(1 + delay)])))
        at += rng.choice([0, rng.randrange(4 * delay), rng.randrange(4 * delay), rng.randrange(moment)])
    config.faults = faults
    return scenario


def run_and_check(scenario: Scenario, seed: int, controller: Controller | None = None) -> sim.Report:
    report = scenario.job().run((controller or Controller()).roles_of)
    faults = f"parents={scenario.config.parents} leaves={scenario.config.leaves}"
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario} {faults}"
    check_outputs(scenario, seed, report)
    return report


def statuses(report: sim.Report) -> set[sim.Status | None]:
    return {status for by_worker in report.results for status in by_worker}


def test_a_job_that_moves_ends_with_the_right_sums(move_seed: int) -> None:  # R9.2
    report = run_and_check(make_moving_scenario(move_seed), move_seed)
    assert statuses(report) == OK, replay(move_seed)


def test_with_other_faults_too_every_operation_ends_and_none_ends_well_with_a_wrong_sum(move_fault_seed: int) -> None:
    scenario = make_moving_scenario(move_fault_seed)
    rng = random.Random(f"faults of moves {move_fault_seed}")
    config = scenario.config
    config.move_max = rng.choice([100 * MS, 60_000 * MS])
    moment = rng.choice([MS, 20 * MS, 200 * MS])
    for call in scenario.calls:
        call.timeout = rng.choice([20 * MS, 200 * MS, 20_000 * MS])
    config.faults = config.faults + [
        sim.Fault(rng.choice(list(KINDS.values())), rng.randrange(config.workers), rng.randrange(moment))
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    run_and_check(scenario, move_fault_seed)


def lossy_overlapping_scenario(seed: int) -> Scenario:
    scenario = overlapping_scenario(seed)
    config = scenario.config
    config.up.loss = config.down.loss = 0.02
    config.callers_write = True
    config.message_delay_max = MS
    for call in scenario.calls:
        call.timeout = None
    return scenario


def test_at_whatever_moment_the_switch_is_lost_all_roles_occur_and_every_sum_is_right() -> None:  # R9.2, R9.4, R9.13
    took = run_and_check(lossy_overlapping_scenario(0), 0).time_ns
    controller = Controller()
    for moment in range(MOMENTS):
        scenario = lossy_overlapping_scenario(moment)
        at = took * moment // MOMENTS
        scenario.config.faults = [
            sim.Fault(sim.FaultKind.SWITCH_RESTART, 0, at),
            sim.Fault(sim.FaultKind.MOVE, 0, at),
        ]
        assert statuses(run_and_check(scenario, moment, controller)) == OK
    assert controller.moves == MOMENTS
    assert set(controller.told) == set(Role)


@pytest.mark.parametrize("apart_ns", [100_000, 300_000, MS, 2 * MS, 4 * MS])
def test_a_second_switch_is_lost_while_results_are_given_again(apart_ns: int) -> None:  # R9.12
    took = run_and_check(lossy_overlapping_scenario(0), 0).time_ns
    for moment in range(MOMENTS):
        scenario = lossy_overlapping_scenario(moment)
        at = took * moment // MOMENTS
        scenario.config.faults = [
            sim.Fault(kind, 0, at + number * apart_ns)
            for number in range(3)
            for kind in (sim.FaultKind.SWITCH_RESTART, sim.FaultKind.MOVE)
        ]
        assert statuses(run_and_check(scenario, moment)) == OK


@pytest.mark.parametrize("number", range(8))
def test_what_comes_late_from_an_old_lease_does_not_count(number: int) -> None:  # R9.11
    """A worker that took it would send nothing more for a round that the others still sum at the new lease."""
    scenario = lossy_overlapping_scenario(number)
    config = scenario.config
    config.up.loss, config.down.loss = 0.2, 0.1
    config.down.reorder, config.down.reorder_ns_max, config.down.duplicate = 0.5, 30 * MS, 0.2
    config.message_delay_max, config.time_max = 2 * MS, 60_000 * MS
    config.faults = [sim.Fault(sim.FaultKind.MOVE, 0, at * MS) for at in range(10 + number, 300, 20)]
    report = run_and_check(scenario, number)
    assert statuses(report) == OK
    assert report.rejected > 0


def test_a_halted_worker_holds_its_deadlines() -> None:
    """The switch is lost, and a worker is held up for longer than the deadline of the collectives."""
    scenario = lossy_overlapping_scenario(0)
    for call in scenario.calls:
        call.timeout = 500 * MS
    scenario.config.stalls = [sim.Stall(2, 10 * MS, 5_000 * MS)]
    scenario.config.faults = [
        sim.Fault(sim.FaultKind.SWITCH_RESTART, 0, 10 * MS),
        sim.Fault(sim.FaultKind.MOVE, 0, 11 * MS),
    ]
    report = run_and_check(scenario, 0)
    assert sim.Status.TIMED_OUT in statuses(report)
    assert report.time_ns < 6_000 * MS


def test_a_move_for_which_a_worker_does_not_halt_ends_the_job() -> None:
    scenario = lossy_overlapping_scenario(0)
    scenario.config.move_max = 100 * MS
    scenario.config.faults = [
        sim.Fault(sim.FaultKind.DEATH, 1, 10 * MS),
        sim.Fault(sim.FaultKind.MOVE, 0, 10 * MS),
    ]
    report = run_and_check(scenario, 0)
    assert sim.Status.ABORTED in statuses(report)
