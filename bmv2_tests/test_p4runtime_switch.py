"""The controller's driver with a real switch: restarts, takeovers and manual changes."""

from __future__ import annotations

import contextlib
import dataclasses

import finsy as fy
import pytest
from scapy.layers.l2 import Ether

from bmv2_tests.bmv2_harness import PORTS, Bmv2Harness
from wiresum.controller import DriverError
from wiresum.controller.p4runtime import STANDBY_ID, Client, admit, deliver
from wiresum.join.constants import SWITCH_PORT
from wiresum_lab.doubles.workers import MISSING, QUESTION
from wiresum_lab.processes import wait_until

HALF_CIRCLE = 1 << 31


def test_a_reloaded_program_has_none_of_the_earlier_entries_or_cells(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        job.send(job.packet(0))
        harness.load()
        assert not harness.switch.tables.read("admission", [fy.P4TableEntry("admit")])
        (group,) = harness.switch.tables.read("groups", [fy.P4MulticastGroupEntry()])
        assert len(group.replicas) == PORTS
        frame = bytes(Ether(src=harness.hosts[0].mac, dst="ff:ff:ff:ff:ff:ff", type=0x88B5) / bytes(46))
        assert sorted(harness.exchange([(0, frame)])) == [(port, frame) for port in range(1, PORTS)]
        harness.switch.admit(job.entry)
        for worker, copies in ((0, 0), (1, 2)):
            assert len(job.send(job.packet(worker)).copies) == copies
        harness.switch.evict(job.entry.job)
        assert job.counters().results == 1


def test_cells_of_a_reloaded_program_belong_to_no_job(harness: Bmv2Harness) -> None:
    """Not even to a job with the same key."""
    with harness.job(2) as job:
        job.send(job.packet(0, 8, words=job.words(1)))
        harness.load()
        harness.switch.admit(job.entry)
        assert job.send(job.packet(0, 8, kind=QUESTION)).result.kind == MISSING
        assert job.send(job.packet(0, words=job.words(2))).reason == "admitted"
        assert job.send(job.packet(1, words=job.words(3))).result.words == job.words(5)


def test_a_restarted_controller_does_not_disturb_a_running_job(harness: Bmv2Harness) -> None:
    """The controller restarts between the two contributions to a cell."""
    with harness.job(2) as job:
        assert job.send(job.packet(0, words=job.words(5))).reason == "admitted"
        harness.restart_controller([job.entry])
        assert job.send(job.packet(1, words=job.words(7))).result.words == job.words(12)
        assert job.counters().packets["admitted"] == 2


def test_reconciliation_adds_missing_entries_and_removes_foreign_ones(harness: Bmv2Harness) -> None:
    tables = harness.switch.tables
    with harness.job(2) as job:
        ports = [host.port for host in job.hosts]
        stranger = dataclasses.replace(job.entry, job=99, key=1)
        tables.insert("a stranger's admission", admit.entries(stranger, 100, ports))
        tables.insert("a stranger's group", [deliver.group(100, ports)])
        tables.modify("the job's group", [deliver.group(job.entry.job + 1, [ports[0]])])
        tables.delete("a worker's admission", admit.entries(job.entry, job.entry.job + 1, ports)[1:])
        tables.delete("a worker's delivery", deliver.entries(job.entry, job.hosts)[:1])
        changes = harness.switch.reconcile([job.entry]).changes
        assert [line.split()[:2] for line in changes] == [
            ["-", "admit"],
            ["-", "admit"],
            ["-", "group"],
            ["+", "deliver"],
            ["~", "group"],
            ["+", "admit"],
        ]
        assert not harness.switch.reconcile([job.entry]).changes
        assert job.send(job.packet(0)).reason == "admitted"
        assert sorted(copy.port for copy in job.send(job.packet(1)).copies) == sorted(ports)


def test_hosts_are_reached_at_their_new_ports_after_a_change_of_the_configuration(harness: Bmv2Harness) -> None:
    """Tables and groups are modified in place."""
    moved = [dataclasses.replace(host, port=(host.port + 1) % (PORTS - 1)) for host in harness.hosts]
    harness.restart_controller([], moved)
    try:
        flood = bytes(Ether(src="02:00:00:00:99:99", dst="ff:ff:ff:ff:ff:ff", type=0x88B5) / bytes(46))
        assert sorted(harness.exchange([(0, flood)])) == [(port, flood) for port in range(1, PORTS - 1)]
        frame = bytes(Ether(src="02:00:00:00:99:99", dst=moved[0].mac, type=0x88B5) / bytes(46))
        assert harness.exchange([(0, frame)]) == [(moved[0].port, frame)]
    finally:
        assert any("~ group 256" in line for line in harness.restart_controller([]))


def test_a_standby_takes_over_when_the_primary_controller_closes(harness: Bmv2Harness) -> None:
    with harness.job(1) as job, contextlib.closing(harness.controller(STANDBY_ID)) as standby:
        wait_until(lambda: "stands by" in standby.trouble, "the switch has answered the standby")
        with pytest.raises(DriverError, match="stands by: another one programs"):
            standby.wait_ready(0.2)
        assert job.send(job.packet()).reason == "admitted"
        harness.switch.close()
        standby.wait_ready()
        older = harness.switch = harness.controller(harness.next_election_id())
        older.wait_ready()
        assert not older.reconcile([job.entry]).changes
        assert job.send(job.packet(0, 1)).reason == "admitted"
        with contextlib.closing(older):
            harness.switch = harness.controller(harness.next_election_id())
            harness.switch.wait_ready()
            assert not harness.switch.reconcile([job.entry]).changes
            wait_until(lambda: "another controller programs" in older.trouble, "the older one noticed")
            with pytest.raises(DriverError, match="another controller programs"):
                older.evict(job.entry.job)
        assert job.send(job.packet(0, 2)).reason == "admitted"


def test_a_wrong_device_id_is_refused(harness: Bmv2Harness) -> None:
    with contextlib.closing(Client(harness.star.p4runtime, harness.star.device + 1, election_id=2)) as client:
        client.wait_ready()
        with pytest.raises(DriverError, match="did not take the program"):
            client.load(harness.program)


def test_a_switch_with_another_program_is_reloaded_and_its_jobs_are_lost(harness: Bmv2Harness) -> None:
    other = dataclasses.replace(harness.program, device_config=harness.program.device_config + b"\n")
    with harness.job(1) as job:
        harness.switch.close()
        with contextlib.closing(
            Client(harness.star.p4runtime, harness.star.device, election_id=harness.next_election_id())
        ) as client:
            client.wait_ready()
            client.load(other)
            assert client.runs(other) is not client.runs(harness.program)
        switch = harness.switch = harness.controller(harness.next_election_id())
        switch.wait_ready()
        with pytest.raises(DriverError, match="has not been reconciled"):
            switch.evict(job.entry.job)
        assert switch.reconcile([job.entry]) == switch.reconcile([job.entry])
        assert switch.reconcile([job.entry]).reloaded
        assert not harness.switch.tables.held()
        assert switch.reconcile([]).reloaded
        assert not switch.reconcile([]).reloaded
        assert not harness.copies([(job.hosts[0].port, bytes(job.frame(job.packet())))])
        assert switch.stray().packets["unknown"] == 1
    harness.load()


@pytest.mark.parametrize("ahead", [-HALF_CIRCLE, -2, -1, 0, 1, 2, HALF_CIRCLE - 1])
def test_a_next_job_can_use_cells_that_hold_any_round(harness: Bmv2Harness, ahead: int) -> None:
    """The cells hold a round that is `ahead` of the next job's first one; half of them are complete."""
    with harness.job(2, slots=2) as before:
        for slot in range(2):
            for worker in range(1 + slot % 2):
                for after in range(2):
                    packet = before.packet(worker, after, slot=slot, words=before.words(0xBAD))
                    assert before.send(packet).reason == "admitted"
        harness.switch.evict(before.entry.job)
        entry = dataclasses.replace(before.entry, key=7 + (ahead & 0xFFFF))
        harness.switch.admit(entry)
        job = dataclasses.replace(before, entry=entry, first=(before.first - ahead) % (1 << 32))
        for slot in range(2):
            for after in range(3):
                assert job.send(job.packet(0, after, slot=slot, kind=QUESTION)).result.kind == MISSING
                assert job.send(job.packet(0, after, slot=slot, words=job.words(3, 4))).reason == "admitted"
                outcome = job.send(job.packet(1, after, slot=slot, words=job.words(5, 6)))
                assert outcome.result.words == job.words(8, 10)
        assert job.counters().results == 6


@pytest.mark.slow
def test_a_full_table_refuses_a_job_without_leaving_entries(harness: Bmv2Harness) -> None:
    """The table admit has room for 4096 entries: eight jobs of 32 workers and 16 threads."""
    hosts = [harness.hosts[i % len(harness.hosts)] for i in range(32)]
    read = harness.switch.tables.read
    with harness.job(32, threads=16, slots=16, hosts=hosts) as job:
        numbers = range(100, 107)
        try:
            for number in numbers:
                harness.switch.admit(dataclasses.replace(job.entry, job=number))
            with pytest.raises(
                DriverError, match=r"table admit of .* room for 4096 entries; 4096 are taken and this job needs 512"
            ):
                harness.switch.admit(dataclasses.replace(job.entry, job=107))
            assert len(read("admission", [fy.P4TableEntry("admit")])) == 4096
            assert len(read("delivery", [fy.P4TableEntry("deliver")])) == 8 * 32
        finally:
            for number in numbers:
                harness.switch.evict(number)


def test_the_drivers_endpoint_is_the_switchs_address(harness: Bmv2Harness) -> None:
    assert harness.switch.endpoint.address == harness.star.address
    assert harness.switch.endpoint.port == SWITCH_PORT
    assert harness.switch.sizes.lanes_max == harness.program.lanes
