"""Collectives through trees of switches equal the integer reference bit for bit, whatever any link does.

pytest host_agent/tests/sim/test_trees.py --seeds 10000        a long run
pytest host_agent/tests/sim/test_trees.py --seed 1234          repeats a seed
"""

from __future__ import annotations

import random

import pytest

from wiresum.join.constants import JOB_WORKERS_MAX
from wiresum_lab.simulation import racks, sim

from .reference import Format
from .scenarios import Scenario, make_call, make_scenario, replay
from .sparse_scenarios import make_scattered_scenario, make_sparse_call, make_sparse_scenario
from .test_faults import make_faulty_scenario
from .test_simulation import check_outputs
from .trees import plant

F32 = Format("f32", "block", 32)


def run_and_check(scenario: Scenario, seed: int) -> sim.Report:
    report = scenario.job().run()
    tree = f"parents={scenario.config.parents} leaves={scenario.config.leaves}"
    assert report.finished, f"{report.failure}; {replay(seed)}\n{scenario} {tree}"
    assert report.rejected == 0, f"an honest RESULT was rejected; {replay(seed)}\n{scenario} {tree}"
    check_outputs(scenario, seed)
    return report


def test_every_collective_through_a_tree_equals_the_reference(tree_seed: int) -> None:  # R8.2, R8.11
    rng = random.Random(f"tree {tree_seed}")
    make = rng.choice([make_scenario, make_scenario, make_sparse_scenario, make_scattered_scenario])
    scenario = make(tree_seed)
    plant(rng, scenario.config)
    run_and_check(scenario, tree_seed)


def test_with_faults_every_operation_ends_and_none_ends_well_with_a_wrong_sum(tree_fault_seed: int) -> None:
    scenario = make_faulty_scenario(tree_fault_seed)
    plant(random.Random(f"tree {tree_fault_seed}"), scenario.config)
    report = scenario.job().run()
    assert report.finished, f"{report.failure}; {replay(tree_fault_seed)}\n{scenario}"
    check_outputs(scenario, tree_fault_seed, report)


FORMATS_OF_MANY = (F32, Format("f16", "block", 16), Format("i32", "none", 32), Format("e4m3", "none", 32))


def many_workers(workers: int, *sizes: int) -> sim.Scenario:
    config = sim.Scenario()
    config.workers, config.lanes, config.slots = workers, 16, 8
    config.parents, config.leaves = racks(workers, *sizes)
    config.up.delay_ns = config.down.delay_ns = 50_000
    config.up.loss = config.down.loss = 0.2 / workers
    return config


@pytest.mark.parametrize("workers", [33, 128])
@pytest.mark.parametrize("format_", FORMATS_OF_MANY)
def test_a_job_may_have_many_workers(workers: int, format_: Format) -> None:
    rng = random.Random(workers)
    config = many_workers(workers, 31)
    config.exact_elements_max = 20
    scenario = Scenario(config, [])
    for chunks in (3, 31):
        scenario.calls.append(make_sparse_call(rng, config, format_, [chunks], "independent", 0.5, [0] * workers))
    while len(scenario.calls) < 5:
        call = make_call(rng, config, 4, [0] * workers)
        if call.format.bits > 8 or call.format.dtype == "raw":  # the sum of so many workers does not fit 8 bits
            scenario.calls.append(call)
    run_and_check(scenario, workers)


def test_a_job_may_have_a_thousand_workers() -> None:
    rng = random.Random(1024)
    config = many_workers(1024, 16, 16)
    scenario = Scenario(config, [])
    for format_ in FORMATS_OF_MANY:
        scenario.calls.append(make_sparse_call(rng, config, format_, [8], "independent", 0.5, [0] * 1024))
    run_and_check(scenario, 1024)


def test_the_largest_job_sums_right() -> None:
    workers = JOB_WORKERS_MAX
    config = many_workers(workers, 16, 16)
    config.up.loss = config.down.loss = 1e-5
    config.collectives_max = 4
    rng = random.Random(workers)
    scenario = Scenario(config, [])
    for format_, chunks in zip(FORMATS_OF_MANY, (2, 1, 1, 1), strict=True):
        scenario.calls.append(make_sparse_call(rng, config, format_, [chunks], "independent", 0.5, [0] * workers))
    run_and_check(scenario, workers)


def dense_job(workers: int) -> Scenario:
    config = sim.Scenario()
    config.workers, config.lanes, config.slots = workers, 64, 64
    rng = random.Random(1)
    chunks = 8000 // workers
    return Scenario(config, [make_sparse_call(rng, config, F32, [chunks], "all_dense", 1.0, [0] * workers)])


def packets_of_each_link(scenario: Scenario, links: int) -> float:
    """One way, for each packet of a worker."""
    report = run_and_check(scenario, 1)
    assert report.retransmissions == report.questions == 0
    return report.link_packets / (2 * links) / (report.packets_sent / scenario.config.workers)


def test_each_tensor_crosses_each_link_once_each_way() -> None:
    """Two racks of four workers: the uplink of a leaf carries as much as a worker's link."""
    scenario = dense_job(8)
    scenario.config.parents, scenario.config.leaves = racks(8, 4)
    assert packets_of_each_link(scenario, 8 + 2) == 1


@pytest.mark.parametrize("a_host", [1, 2, 4])
def test_a_host_sends_each_tensor_once_however_many_of_its_workers_share_a_stream(a_host: int) -> None:  # R8.13
    scenario = dense_job(8)
    scenario.config.hosts = [worker // a_host for worker in range(8)]
    assert packets_of_each_link(scenario, 8 // a_host) == 1


def test_where_all_workers_are_on_one_host_no_packet_leaves_it() -> None:  # R8.13
    scenario = dense_job(8)
    scenario.config.hosts = [0] * 8
    report = run_and_check(scenario, 1)
    assert report.packets_sent > 0
    assert report.link_packets == 0


@pytest.mark.parametrize("hosts", [1, 2, 31, 32])
def test_a_host_may_have_many_workers(hosts: int) -> None:
    """As many as a switch has, or one fewer where the host's sums go to a switch."""
    a_host = 32 if hosts == 1 else 31 if hosts == 2 else 8
    scenario = dense_job(hosts * a_host)
    scenario.config.hosts = [worker % hosts for worker in range(hosts * a_host)]
    run_and_check(scenario, hosts)
