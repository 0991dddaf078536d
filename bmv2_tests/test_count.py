"""Stage `count`: the counters from which the controller reports on a job."""

from __future__ import annotations

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum_lab.doubles.workers import QUESTION


def test_contributions_are_counted_by_worker(harness: Bmv2Harness) -> None:
    with harness.job(3) as job:
        for worker, slots in enumerate((4, 2, 1)):
            for slot in range(slots):
                job.send(job.packet(worker, slot=slot))
        counters = job.counters()
        assert counters.contributions == (4, 2, 1)
        assert counters.packets["admitted"] == 7
        assert counters.results == 1


def test_duplicates_are_not_counted_as_contributions(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        for _ in range(3):
            job.send(job.packet(0))
        for _ in range(2):
            job.send(job.packet(1))
        counters = job.counters()
        assert counters.contributions == (1, 1)
        assert (counters.packets["duplicate"], counters.packets["resent"], counters.results) == (2, 1, 1)


def test_questions_are_not_counted_as_contributions(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        job.send(job.packet(0, kind=QUESTION))
        job.send(job.packet(0))
        job.send(job.packet(0, kind=QUESTION))
        job.send(job.packet(1))
        job.send(job.packet(0, kind=QUESTION))
        counters = job.counters()
        assert counters.contributions == (1, 1)
        assert (counters.packets["duplicate"], counters.packets["resent"], counters.results) == (1, 2, 1)


def test_the_counters_of_a_job_begin_at_zero(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        job.send(job.packet())
        last = job.counters()
    assert harness.switch.counters(job.entry.job) == last
    with harness.job(1) as job:
        assert sum(job.counters().packets.values()) == 0
        assert job.counters().results == 0


def test_jobs_have_separate_counters(harness: Bmv2Harness) -> None:
    with harness.job(1) as job, harness.job(1) as other:
        other.send(other.packet())
        job.send(job.packet(key=7))
        assert sum(job.counters().packets.values()) == 0
        assert sum(other.counters().packets.values()) == 1
