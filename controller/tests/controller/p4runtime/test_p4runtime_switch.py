from __future__ import annotations

import dataclasses

import pytest

from wiresum import join
from wiresum.compiled import Program
from wiresum.controller import DriverError, Endpoint, JobCounters, JobEntry, JoinServer, SwitchDriver
from wiresum.controller.p4runtime import Client, Host, P4RuntimeSwitch
from wiresum.controller.p4runtime.forward import FLOOD_GROUP
from wiresum.controller.p4runtime.testing import FakeSwitch
from wiresum.controller.testing import Attendance
from wiresum.controller.testing import Client as Worker

STAGES = ["counter", "deliver", "group", "admit"]


def test_it_is_a_driver_with_the_programs_sizes(switch: P4RuntimeSwitch, program: Program) -> None:
    assert isinstance(switch, SwitchDriver)
    assert switch.sizes.lanes_max == program.lanes
    assert switch.sizes.slots == program.slots
    assert switch.sizes.jobs_max == program.job_rows - 1
    assert switch.endpoint == Endpoint("10.0.0.1", 0xA9E0)


def test_at_the_start_it_knows_itself_and_the_hosts(switch: P4RuntimeSwitch, fake: FakeSwitch) -> None:
    assert len(fake.entries("own")) == 1
    assert len(fake.entries("forward")) == 32
    assert fake.groups == {FLOOD_GROUP: [(0, 0), (1, 0), (2, 0), (3, 0)]}
    assert not fake.entries("admit")


def test_admission_is_written_last_and_removed_first(switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry) -> None:
    fake.log.clear()
    switch.admit(job)
    assert list(dict.fromkeys(place for _, place in fake.log)) == STAGES
    assert len(fake.entries("admit")) == 6
    assert fake.groups[1] == [(0, 0), (1, 1), (2, 2)]
    fake.log.clear()
    switch.evict(job.job)
    assert list(dict.fromkeys(fake.log)) == [("DELETE", "admit"), ("DELETE", "group"), ("DELETE", "deliver")]
    assert not fake.entries("admit")
    assert not fake.entries("deliver")
    assert list(fake.groups) == [FLOOD_GROUP]


@pytest.mark.parametrize("table", ["deliver", "admit"])
def test_a_job_that_does_not_fit_leaves_nothing(
    switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry, table: str
) -> None:
    fake.capacities[table] = 2
    with pytest.raises(DriverError, match=r"Table is full \(RESOURCE_EXHAUSTED\)"):
        switch.admit(job)
    assert not fake.entries("admit")
    assert not fake.entries("deliver")
    assert list(fake.groups) == [FLOOD_GROUP]
    fake.capacities.clear()
    switch.admit(job)
    assert len(fake.entries("admit")) == 6


def test_an_eviction_that_failed_may_be_asked_again(switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry) -> None:
    switch.admit(job)
    fake.refuses_deletions = True
    with pytest.raises(DriverError, match="could not remove admission of job 7: Out of order"):
        switch.evict(job.job)
    fake.refuses_deletions = False
    switch.evict(job.job)
    assert not fake.entries("admit")
    switch.evict(job.job)  # there is none such any more, and that is no error


def test_jobs_have_rows_of_their_own_and_a_row_comes_back_late(
    switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry
) -> None:
    for number in range(3):
        switch.admit(dataclasses.replace(job, job=number))
    switch.evict(1)
    switch.admit(dataclasses.replace(job, job=9))
    assert sorted(fake.groups) == [1, 3, 4, FLOOD_GROUP]


def test_counters_begin_at_zero_and_outlive_the_job(switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry) -> None:
    fake.counters[0x12000001, 8] = 99  # an earlier job's, in the row that this one gets
    assert switch.counters(job.job) == JobCounters()
    switch.admit(job)
    assert switch.counters(job.job).packets["admitted"] == 0
    fake.counters[0x12000001, 8] = 5
    fake.counters[0x12000001, 10] = 2
    fake.counters[0x12000002, 34] = 3
    fake.counters[0x12000003, 1] = 1
    live = switch.counters(job.job)
    assert (live.packets["admitted"], live.packets["duplicate"], live.results) == (5, 2, 1)
    assert live.contributions == (0, 0, 3)
    switch.evict(job.job)
    fake.counters.clear()
    assert switch.counters(job.job) == live
    switch.admit(job)
    assert switch.counters(job.job).results == 0


def test_packets_of_no_job_are_told_apart(switch: P4RuntimeSwitch, fake: FakeSwitch) -> None:
    fake.counters[0x12000001, 5] = 4
    assert switch.stray().packets["unknown"] == 4


def test_a_worker_on_an_unknown_host_is_named(switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry) -> None:
    stranger = dataclasses.replace(job, endpoints=(*job.endpoints[:2], Endpoint("10.9.9.9", 5000)))
    with pytest.raises(DriverError, match=r"no host with the address 10\.9\.9\.9: add it to the controller's"):
        switch.admit(stranger)
    assert not fake.entries("deliver")


def test_packets_of_another_length_are_refused(switch: P4RuntimeSwitch, job: JobEntry) -> None:
    with pytest.raises(DriverError, match="WIRESUM_LANES"):
        switch.admit(dataclasses.replace(job, lanes=32))


def test_rounds_that_a_fresh_cell_would_take_for_old_are_refused_from_then_on(
    switch: P4RuntimeSwitch, job: JobEntry
) -> None:
    switch.admit(dataclasses.replace(job, round_first=(1 << 31) - 1))
    switch.evict(job.job)
    for round_first in (1 << 31, 1):
        with pytest.raises(DriverError, match="start the controller anew"):
            switch.admit(dataclasses.replace(job, round_first=round_first))


def test_closing_clears_the_switch(switch: P4RuntimeSwitch, fake: FakeSwitch, job: JobEntry) -> None:
    switch.admit(job)
    switch.close()
    switch.close()
    assert not fake.entries("admit")


def test_the_join_service_runs_over_it(switch: P4RuntimeSwitch, fake: FakeSwitch) -> None:
    server = JoinServer(switch)
    port = server.start("127.0.0.1", 0)
    worker = Worker(port)
    try:
        endpoint = join.Endpoint(address="10.0.0.10", port=5000)
        reply = worker.join(endpoint=endpoint, lanes_max=360)
        attendance = Attendance(worker, reply)
        assert reply.lanes == switch.sizes.lanes_max
        assert (reply.switch_endpoint.address, reply.switch_endpoint.port) == ("10.0.0.1", 0xA9E0)
        assert len(fake.entries("admit")) == reply.threads
        diagnosis = worker.stub.Diagnose(attendance.member, timeout=5)
        assert not diagnosis.workers[0].HasField("tensor_last")
        attendance.hang_up()
        code, text = worker.refusal(job_name="another", endpoint=join.Endpoint(address="10.0.0.99", port=5000))
        assert code == "INTERNAL"
        assert "10.0.0.99" in text
    finally:
        worker.close()
        server.stop()


def test_a_job_for_which_a_table_has_no_room_is_told_so(
    switch: P4RuntimeSwitch, client: Client, hosts: tuple[Host, ...], job: JobEntry
) -> None:
    many = dataclasses.replace(
        job, workers=32, threads=16, slots=16, endpoints=tuple(Endpoint(host.address, 5000) for host in hosts)
    )
    fitting = client.room("admit") // 512
    for number in range(fitting):
        switch.admit(dataclasses.replace(many, job=number))
    with pytest.raises(DriverError, match=r"table admit .* this job needs 512: .*WIRESUM_THREADS"):
        switch.admit(dataclasses.replace(many, job=fitting))
    switch.evict(0)
    switch.admit(dataclasses.replace(many, job=fitting))
