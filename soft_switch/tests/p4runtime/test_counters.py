from __future__ import annotations

from wiresum.controller import REASONS, JobCounters
from wiresum.switch.p4runtime.counters import Counters

SIZES = {"packets": 2048, "contributions": 8192, "results": 256}
JOB, ROW = 5, 6


class DataPlaneCounters:
    """A data plane's counters: each job's from zero, and those without a job since the start."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobCounters] = {}
        self.strays = JobCounters(packets={"unknown": 3})

    def counters(self, job: int) -> JobCounters:
        return self.jobs.get(job, JobCounters())

    def stray(self) -> JobCounters:
        return self.strays


def value(counters: Counters, counter: str, index: int) -> int:
    (found,) = counters.view().read(counter, index)
    return found.packets


def test_a_row_has_the_counters_of_its_job() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    counters.began(JOB, ROW)
    data_plane.jobs[JOB] = JobCounters({"admitted": 7, "malformed": 2}, 3, contributions=(4, 1, 2))
    assert value(counters, "packets", 8 * ROW) == 7
    assert value(counters, "packets", 8 * ROW + REASONS.index("malformed")) == 2
    assert value(counters, "packets", 8 * ROW + 7) == 0
    assert [value(counters, "contributions", 32 * ROW + worker) for worker in range(4)] == [4, 1, 2, 0]
    assert value(counters, "results", ROW) == 3
    assert value(counters, "results", ROW + 1) == 0


def test_a_row_accumulates_over_jobs_until_it_is_reset() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    for number in range(3):
        counters.began(JOB + number, ROW)
        data_plane.jobs[JOB + number] = JobCounters(results=10)
        counters.ended(JOB + number)
    assert value(counters, "results", ROW) == 30
    counters.write("results", ROW, 0)
    counters.began(JOB, ROW)
    data_plane.jobs[JOB] = JobCounters(results=2)
    assert value(counters, "results", ROW) == 2


def test_a_counter_continues_from_the_value_that_was_written() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    counters.began(JOB, ROW)
    data_plane.jobs[JOB] = JobCounters(results=10)
    counters.write("results", ROW, 100)
    assert value(counters, "results", ROW) == 100
    data_plane.jobs[JOB] = JobCounters(results=11)
    assert value(counters, "results", ROW) == 101
    counters.ended(JOB)
    assert value(counters, "results", ROW) == 101


def test_packets_without_a_job_are_in_row_0_and_begin_at_zero() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    unknown = REASONS.index("unknown")
    assert value(counters, "packets", unknown) == 0, "packets before the pipeline was loaded do not count"
    data_plane.strays = JobCounters(packets={"unknown": 5})
    assert value(counters, "packets", unknown) == 2
    counters.write("packets", unknown, 0)
    assert value(counters, "packets", unknown) == 0


def test_a_whole_counter_can_be_read_and_written() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    counters.began(JOB, ROW)
    data_plane.jobs[JOB] = JobCounters(results=10)
    read = list(counters.view().read("results", None))
    assert [found.at for found in read] == list(range(256))
    assert sum(found.packets for found in read) == 10
    counters.write("results", None, 4)
    assert {found.packets for found in counters.view().read("results", None)} == {4}


def test_jobs_in_the_same_row_are_added() -> None:
    data_plane = DataPlaneCounters()
    counters = Counters(data_plane, SIZES)
    for job in (1, 2):
        counters.began(job, ROW)
        data_plane.jobs[job] = JobCounters(results=job)
    assert value(counters, "results", ROW) == 3
