"""Every collective equals the integer reference bit for bit, whatever the network does, and all of them finish.

pytest host_agent/tests/sim                     some hundred seeds
pytest host_agent/tests/sim --seeds 10000       a long run
pytest host_agent/tests/sim --seed 1234         repeats a seed
"""

from __future__ import annotations

import numpy as np
import pytest

from wiresum_lab.simulation import sim

from .scenarios import Scenario, make_scenario, replay


def check_outputs(scenario: Scenario, seed: int, report: sim.Report | None = None) -> None:
    """Checks all collectives at all workers, or those that the report marks as successful."""
    for number, call in enumerate(scenario.calls):
        for source, original in call.originals:
            assert source.intact() and source.array.tobytes() == original.tobytes(), (
                f"call {number} ({call.pattern}) changed a source; {replay(seed)}"
            )
        for region, buffers in enumerate(call.regions):
            for worker, destination in enumerate(buffers.destinations):
                if destination is None:
                    continue
                where = f"call {number} ({call.pattern}, {call.format}), region {region}, worker {worker}"
                assert destination.intact(), f"{where}: wrote outside its memory; {replay(seed)}"
                if report is not None and report.results[number][worker] != sim.Status.OK:
                    continue
                if destination.array.tobytes() != buffers.expected.tobytes():
                    wrong = np.flatnonzero(destination.array.view("u1") != buffers.expected.view("u1"))
                    first = wrong[0] // buffers.expected.itemsize
                    pytest.fail(
                        f"{where}: element {first} is {destination.array[first]}, not {buffers.expected[first]}"
                        f" ({len(wrong)} bytes differ); {replay(seed)}\n{scenario}"
                    )


def run_and_check(scenario: Scenario, seed: int) -> None:
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario}"
    assert report.rejected == 0, f"an honest RESULT was rejected; {replay(seed)}\n{scenario}"
    check_outputs(scenario, seed)


# Queues of four packets. In an earlier version, workers resent whole windows in step, and lost the same packets for
# ever.
SEEDS_THAT_HUNG = (3832, 5435, 9344)


@pytest.mark.parametrize("number", SEEDS_THAT_HUNG)
def test_senders_get_through_a_shallow_queue(number: int) -> None:
    scenario = make_scenario(number)
    scenario.config.hosts = []
    run_and_check(scenario, number)


def test_every_collective_equals_the_integer_reference(seed: int) -> None:  # R5.19, R6.1
    run_and_check(make_scenario(seed), seed)


def test_the_same_seed_gives_the_same_run() -> None:
    scenarios = [make_scenario(7) for _ in range(2)]  # including the memory that the jobs work on
    first, second = (scenario.job().run() for scenario in scenarios)
    assert first.time_ns == second.time_ns
    assert first.packets_sent == second.packets_sent


def test_a_network_that_carries_nothing_is_reported_as_a_hang() -> None:
    scenario = make_scenario(7)
    scenario.config.up = sim.Link()
    scenario.config.up.loss = 1.0
    scenario.config.time_max = 1_000_000_000
    report = scenario.job().run()
    assert not report.finished
    assert "virtual time" in report.failure
