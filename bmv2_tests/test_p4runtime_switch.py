"""The driver loads the program anew: what bmv2 held is gone."""

from __future__ import annotations

import finsy as fy
from scapy.layers.l2 import Ether

from bmv2_tests.bmv2_harness import PORTS, Bmv2Harness
from wiresum_lab.doubles.workers import MISSING, QUESTION


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
