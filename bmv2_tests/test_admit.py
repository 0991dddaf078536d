"""Stage `admit`: who may contribute, and to which cells."""

from __future__ import annotations

import finsy as fy
import pytest
from scapy.layers.inet import IP, UDP

from bmv2_tests.bmv2_harness import WORKER_PORT, Bmv2Harness
from wiresum.controller.p4runtime import admit


@pytest.mark.parametrize("field", ["job", "key"])
def test_a_wrong_number_is_unknown(harness: Bmv2Harness, field: str) -> None:
    with harness.job(2) as job:
        right = job.packet()
        wrong = right._replace(**{field: getattr(right, field) ^ 1})
        assert job.send(wrong).reason == "unknown"
        assert job.send(right).reason == "admitted"


@pytest.mark.parametrize("worker", [2, 31, 32, 255])
def test_a_worker_that_the_job_has_not_is_unknown(harness: Bmv2Harness, worker: int) -> None:
    with harness.job(2) as job:
        assert job.send(job.packet(worker), worker=0).reason == "unknown"


def test_a_worker_with_anothers_address_is_unknown(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        frame = job.frame(job.packet(0))
        frame[IP].src = job.hosts[1].address
        assert job.send_frame(job.hosts[0].port, frame).reason == "unknown"


def test_the_right_address_at_the_wrong_port_is_unknown(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        frame = job.frame(job.packet(0))
        assert job.send_frame(job.hosts[1].port, frame).reason == "unknown"
        assert job.send_frame(job.hosts[0].port, frame).reason == "admitted"


def test_a_packet_from_another_port_of_the_workers_host_is_unknown(harness: Bmv2Harness) -> None:
    with harness.job(1, threads=2) as job:
        right = job.frame(job.packet())
        for port in (0, WORKER_PORT - 1, WORKER_PORT + 1, WORKER_PORT + 256, 65535):
            wrong = right.copy()
            wrong[UDP].sport = port
            assert job.send_frame(job.hosts[0].port, wrong).reason == "unknown", port
        assert job.send_frame(job.hosts[0].port, right).reason == "admitted"


@pytest.mark.parametrize("thread", [2, 15])
def test_a_thread_that_the_job_has_not_is_unknown(harness: Bmv2Harness, thread: int) -> None:
    with harness.job(1, threads=2) as job:
        assert job.send(job.packet(), thread=thread).reason == "unknown"


def test_a_thread_may_use_its_own_slots_and_no_others(harness: Bmv2Harness) -> None:
    with harness.job(1, threads=4, slots=8) as job:
        for slot in range(8):
            for thread in range(4):
                outcome = job.send(job.packet(slot=slot), thread=thread)
                assert outcome.reason == ("admitted" if slot // 2 == thread else "out_of_lease"), (slot, thread)


@pytest.mark.parametrize("slot", [8, 9, 16, 100, 4095, 32767])
def test_slots_beyond_the_lease_are_refused(harness: Bmv2Harness, slot: int) -> None:
    with harness.job(1, slots=8) as job:
        assert job.send(job.packet(slot=slot)).reason == "out_of_lease"


def test_jobs_side_by_side_do_not_meet(harness: Bmv2Harness) -> None:
    with harness.job(2, slots=4) as a, harness.job(2, slots=4) as b:
        for slot in range(4):
            assert a.send(a.packet(0, slot=slot, words=a.words(1))).reason == "admitted"
            assert b.send(b.packet(0, slot=slot, words=b.words(100))).reason == "admitted"
        for slot in range(4):
            assert a.send(a.packet(1, slot=slot, words=a.words(2))).result.words == a.words(3)
            assert b.send(b.packet(1, slot=slot, words=b.words(200))).result.words == b.words(300)


def test_an_evicted_jobs_packets_are_unknown(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        harness.switch.evict(job.entry.job)
        assert job.send_frame(0, frame).reason == "unknown"


def test_two_workers_of_one_host_are_told_apart(harness: Bmv2Harness) -> None:
    with harness.job(2, hosts=[harness.hosts[5]] * 2) as job:
        assert job.send(job.packet(0, words=job.words(4))).reason == "admitted"
        outcome = job.send(job.packet(1, words=job.words(5)))
        assert [copy.port for copy in outcome.copies] == [1, 1]
        assert outcome.result.words == job.words(9)


def test_every_entry_of_the_largest_job_is_there(harness: Bmv2Harness) -> None:
    """32 workers of 16 threads: 512 entries."""
    with harness.job(32, threads=16, slots=16) as job:
        read = harness.switch.tables.read("admission", [fy.P4TableEntry("admit")])
        ports = [host.port for host in job.hosts]
        written = admit.entries(job.entry, 1, ports)
        assert len(read) == len(written) == 512
        for worker in range(32):
            assert job.send(job.packet(worker, slot=15), thread=15).reason == "admitted"
