"""Bits flip in packets and cells, beyond all checksums: with check words every collective that ends well has the right
sum, whatever else happens to the job.

wrong_bits_test.cpp puts one fault into each place in turn.

pytest host_agent/tests/sim/test_wrong_bits.py --seeds 10000        a long run
pytest host_agent/tests/sim/test_wrong_bits.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import random

import pytest

from wiresum_lab.simulation import sim

from .reference import Format
from .scenarios import Scenario, make_scenario, replay
from .sparse_scenarios import make_mixed_scenario, make_sparse_call, make_sparse_scenario
from .test_moves import Controller, make_moving_scenario, statuses
from .test_simulation import check_outputs
from .trees import plant

OK, WRONG_SUM = sim.Status.OK, sim.Status.WRONG_SUM
ON_THE_WAY_DOWN = 0.002
"""Seldom enough that hardly any packet is changed twice."""


def wrong(*, up: float = 0.0, down: float = 0.0, cell: float = 0.0) -> sim.WrongBits:
    bits = sim.WrongBits()
    bits.up, bits.down, bits.cell = up, down, cell
    return bits


def run_and_check(scenario: Scenario, seed: int) -> sim.Report:
    report = scenario.job().run(Controller().roles_of)
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario}"
    check_outputs(scenario, seed, report)
    return report


def test_no_collective_ends_well_with_a_wrong_sum(wrong_bits_seed: int) -> None:
    seed = wrong_bits_seed
    rng = random.Random(f"wrong bits {seed}")
    make = rng.choice([make_scenario, make_sparse_scenario, make_mixed_scenario, make_moving_scenario])
    scenario = make(seed)
    if make is not make_moving_scenario and rng.random() < 0.3:
        plant(rng, scenario.config)
    scenario.config.check_word = True
    chance = rng.choice([0.0005, 0.005, 0.05])
    place = rng.choice(["up", "down", "cell"])
    scenario.config.wrong_bits = wrong(**{place: chance})
    scenario.config.wrong_bits.flips_max = 1  # of two, those of one sum's top bits would not be seen
    for call in scenario.calls:
        call.timeout = 100_000_000_000
    run_and_check(scenario, seed)


def large_scenario(seed: int, bits: sim.WrongBits, *, check_word: bool = True) -> Scenario:
    scenario = make_scenario(seed)
    config = scenario.config
    config.workers, config.hosts, config.threads, config.lanes, config.slots = 4, [], 1, 64, 32
    config.up = config.down = sim.Link()
    config.stalls, config.check_word, config.wrong_bits = [], check_word, bits
    rng = random.Random(seed)
    scenario.calls = [make_sparse_call(rng, config, Format("f32", "block", 32), [800], "all_dense", 1.0, [0] * 4)]
    return scenario


@pytest.mark.parametrize("number", range(4))
def test_what_is_changed_on_its_way_down_comes_right_the_second_time(number: int) -> None:
    report = run_and_check(large_scenario(number, wrong(down=ON_THE_WAY_DOWN)), number)
    assert statuses(report) == {OK}
    assert 0 < report.sums_wrong <= report.flips, "what comes again for nothing is not looked at"


@pytest.mark.parametrize("bits", [wrong(up=0.01), wrong(cell=0.01)], ids=["up", "cell"])
def test_a_sum_that_is_wrong_in_the_switch_ends_the_job(bits: sim.WrongBits) -> None:
    report = run_and_check(large_scenario(0, bits), 0)
    assert statuses(report) == {WRONG_SUM}


@pytest.mark.parametrize("bits", [wrong(up=0.01), wrong(down=0.01), wrong(cell=0.01)], ids=["up", "down", "cell"])
def test_without_check_words_the_same_bits_are_in_the_sums(bits: sim.WrongBits) -> None:
    scenario = large_scenario(0, bits, check_word=False)
    report = scenario.job().run()
    assert statuses(report) == {OK}
    [buffers] = scenario.calls[0].regions
    stored = {each.array.tobytes() for each in buffers.destinations if each is not None}
    assert stored != {buffers.expected.tobytes()}
