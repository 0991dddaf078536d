"""Stage `admit` decides who may contribute. The vectors cover what is not tested here."""

from __future__ import annotations

import finsy as fy

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum.controller.p4runtime import admit


def test_two_workers_on_one_host_are_distinguished(harness: Bmv2Harness) -> None:  # R3.1
    with harness.job(2, hosts=[harness.hosts[5]] * 2) as job:
        assert job.send(job.packet(0, words=job.words(4))).reason == "admitted"
        outcome = job.send(job.packet(1, words=job.words(5)))
        assert [copy.port for copy in outcome.copies] == [1, 1]
        assert outcome.result.words == job.words(9)


def test_the_largest_job_has_all_its_entries(harness: Bmv2Harness) -> None:
    """32 workers with 16 threads each have 512 entries."""
    with harness.job(32, threads=16, slots=16) as job:
        read = harness.switch.tables.read("admission", [fy.P4TableEntry("admit")])
        ports = [host.port for host in job.hosts]
        written = admit.entries(job.entry, 1, ports)
        assert len(read) == len(written) == 512
        for worker in range(32):
            assert job.send(job.packet(worker, slot=15), thread=15).reason == "admitted"
