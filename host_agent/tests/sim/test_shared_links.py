"""Jobs on the same hosts share their links, with each other and with cross traffic; the memory of packets is shared by
all copies of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wiresum_lab.benchmarks.scale.case import Case, Cross, scenario_of, simulate
from wiresum_lab.benchmarks.scale.studies import fairness
from wiresum_lab.simulation import sim

SMALL = Case(megabytes=1.0)


def test_jobs_on_the_same_hosts_share_their_links() -> None:
    alone, together = simulate(SMALL), simulate(replace(SMALL, jobs=2))
    assert together.seconds == pytest.approx(2 * alone.seconds, rel=0.05)
    assert min(together.jobs_s) > 1.8 * alone.seconds, "neither has the links for itself"


def test_a_job_on_other_hosts_of_the_network_does_not_slow_this_one_down() -> None:
    def job(hosts: list[int]) -> sim.Job:
        scenario = scenario_of(replace(SMALL, workers=16, racks=(8,)))
        scenario.workers, scenario.hosts = len(hosts), hosts
        job = sim.Job(scenario)
        job.add(
            sim.Dtype.F32, sim.Scaling.BLOCK_EXPONENT, 32, 1.0, 1.0, False, 0, [[(None, None, 250_000)]] * 8, [0] * 8
        )
        return job

    (alone,) = sim.run_together([job(list(range(8)))])
    reports = sim.run_together([job(list(range(8))), job(list(range(15, 7, -1)))], shares=[None, 0])
    assert [report.time_ns for report in reports] == [alone.time_ns, alone.time_ns]
    crossing = sim.run_together([job([0, 1, 2, 3, 8, 9, 10, 11]), job([4, 5, 6, 7, 12, 13, 14, 15])], shares=[None, 0])
    assert min(report.time_ns for report in crossing) > 1.8 * alone.time_ns, "both cross the racks' uplinks"


@pytest.mark.parametrize("hosts", [[0, 9], [0]])
def test_each_worker_of_a_job_is_on_a_host_of_the_network(hosts: list[int]) -> None:
    scenario = sim.Scenario()
    scenario.workers, scenario.hosts = 2, hosts
    scenario.leaves = [0, 0, 0]
    with pytest.raises(ValueError, match="host"):
        sim.Job(scenario).run()


def test_cross_traffic_takes_its_share_of_a_link() -> None:
    quiet, busy = simulate(SMALL), simulate(replace(SMALL, cross=Cross(gbit=50)))
    assert busy.seconds == pytest.approx(2 * quiet.seconds, rel=0.1)
    assert busy.overflow == busy.cross_overflow == 0


def test_a_switch_that_shares_a_buffer_holds_no_more_than_it_has() -> None:
    burst = Cross(gbit=1000, burst_us=20, period_us=100)  # as of ten hosts that send to one
    outcome = simulate(replace(SMALL, cross=burst, buffer_kb=300, mark_kb=50))
    assert outcome.cross_overflow > 0 and outcome.marked > 0
    assert 150_000 < outcome.buffer_held_max <= 300_000


def test_jobs_share_a_link_fairly_and_without_loss_where_its_queue_marks() -> None:
    """Eight jobs put more into a queue of a megabyte than it holds. As docs/scale.md says."""
    eight = Case(jobs=8, megabytes=4.0)
    dropping, marking = simulate(eight), simulate(replace(eight, mark_kb=100))
    assert dropping.overflow > 0 == marking.overflow
    assert fairness([dropping]) < 0.97 < 0.995 < fairness([marking])
    assert marking.of_bound > 0.98


def test_a_burst_that_is_lost_before_a_slow_peer_sends_its_part_costs_few_round_trips() -> None:
    """Marks shrink the window of worker 0, whose link others use in bursts. The other's grows to all slots, and a burst
    of that many overflows its own queue: nothing behind it gets a RESULT. Each packet of it took a time-out."""
    bursts = Cross(gbit=400, burst_us=10, period_us=200)
    outcome = simulate(Case(workers=2, megabytes=25, slots=1024, cross=bursts, buffer_kb=4000, mark_kb=100))
    assert outcome.overflow > 100
    assert outcome.of_bound > 0.7


@pytest.mark.parametrize("seed", [2, 3])
def test_after_a_loss_windows_that_are_full_with_other_tensors_do_not_wait_for_each_other(seed: int) -> None:
    """Each worker's window was full with packets that others had not sent, and one chunk went on in a round trip."""
    case = Case(gbit=1.0, link_ns=5000, megabytes=4.0, tensors=3, seed=seed)
    assert simulate(replace(case, loss=1e-4)).seconds < 1.2 * simulate(case).seconds


def test_a_long_path_is_filled_despite_losses() -> None:
    far = Case(
        workers=4, gbit=1.0, link_ns=25_000_000, megabytes=25.0, tensors=4, slots=4096, queue_bytes=6_250_000, loss=1e-4
    )
    assert simulate(far).of_bound > 0.6, "with the window's growth from 32 packets"


@pytest.mark.parametrize("gbit", [30, 40])
def test_where_one_queue_marks_and_another_drops_others_do_not_pay_for_it(gbit: float) -> None:
    """Bursts at worker 1's port are marked in each round trip; at worker 0's, others' traffic meets a queue that only
    drops. While losses were not answered beside marks, others lost 35 packets or more."""
    marked = Cross(gbit=400, burst_us=2, period_us=20, begin_us=14)
    case = Case(
        workers=4, megabytes=12, cross=Cross(gbit=gbit), cross_where_marked=marked, mark_kb=20, queue_bytes=100_000
    )
    outcome = simulate(case)
    assert outcome.marked > 1000
    assert outcome.overflow > 0, "its own burst at the beginning"
    assert outcome.cross_overflow < 5


@pytest.mark.parametrize("loss", [0.0, 1e-3])
def test_marks_cost_a_job_that_is_alone_little(loss: float) -> None:
    plain = simulate(Case(megabytes=8.0, loss=loss))
    for mark_kb in (65, 100, 200):
        assert simulate(Case(megabytes=8.0, loss=loss, mark_kb=mark_kb)).of_bound > 0.97 * plain.of_bound


def test_a_result_for_many_workers_is_in_memory_once() -> None:
    """The workers call one after the other, so that what they send does not wait in the network at the same time."""
    workers, chunks = 128, 16
    job = sim.Job(scenario_of(Case(workers=workers, racks=(16,), link_ns=10_000)))
    regions = [[(None, None, 360 * chunks)]] * workers
    starts = [50_000 * worker for worker in range(workers)]
    job.add(sim.Dtype.I32, sim.Scaling.NONE, 32, 1.0, 1.0, False, 0, regions, starts)
    report = job.run()
    assert report.finished and report.retransmissions == report.questions == 0
    assert report.packets_max <= chunks * (1 + 8) + chunks, "one for each switch, and those of the worker that calls"
