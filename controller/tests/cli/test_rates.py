from __future__ import annotations

import pytest

from wiresum import join
from wiresum.cli.rates import Sample, key_of, rates_of, stray_rate
from wiresum_lab.doubles.operator_service import example_report, later

EARLIER = example_report()
KEY = key_of(EARLIER.jobs[0])


def test_a_rate_is_the_difference_divided_by_the_time() -> None:
    now = later(EARLIER, packets=2000, results=1000)
    now.jobs[0].packets["stale"] += 4
    now.jobs[0].packets["duplicate"] += 2
    now.jobs[0].packets["out_of_lease"] += 10
    rates = rates_of(Sample(EARLIER, 10.0), Sample(now, 12.0))[KEY]
    assert (rates.packets, rates.results, rates.late, rates.refused, rates.resent) == (1008.0, 500.0, 3.0, 5.0, 0.0)
    assert rates.gbit == pytest.approx(500 * 360 * 32 / 1e9)
    assert rates.contributions == (500.0, 500.0)


def test_a_new_job_has_no_rates() -> None:
    assert rates_of(None, Sample(EARLIER, 1.0)) == {}
    assert rates_of(Sample(join.Report(), 0.0), Sample(EARLIER, 1.0)) == {}


def test_decreasing_counters_belong_to_a_new_job() -> None:
    restarted = later(EARLIER, packets=-900, results=0)
    assert KEY not in rates_of(Sample(EARLIER, 0.0), Sample(restarted, 1.0))


def test_packets_without_a_job_are_counted_for_each_switch() -> None:
    now = later(EARLIER, packets=0, results=0)
    now.switches[0].stray_packets["unknown"] = 30
    assert stray_rate(Sample(EARLIER, 0.0), Sample(now, 2.0), "rack1") == 15.0
    assert stray_rate(Sample(now, 0.0), Sample(EARLIER, 2.0), "rack1") is None
    assert stray_rate(Sample(EARLIER, 0.0), Sample(now, 2.0), "rack2") is None


@pytest.mark.parametrize("silent", [(True, False), (False, True), (True, True)])
def test_a_switch_that_does_not_say_what_it_counted_has_no_rate(silent: tuple[bool, bool]) -> None:
    samples = []
    for at, uncounted in enumerate(silent):
        report = later(EARLIER, packets=0, results=0)
        report.switches[0].uncounted = uncounted
        samples.append(Sample(report, float(at)))
    assert stray_rate(*samples, "rack1") is None
