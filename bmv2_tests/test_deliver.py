"""Stage `deliver`: the copies of a RESULT and their receivers."""

from __future__ import annotations

import finsy as fy

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum.controller.p4runtime import deliver
from wiresum.join.constants import FLOOD_GROUP
from wiresum_lab.doubles.workers import QUESTION


def test_a_receiver_without_an_entry_gets_no_copy_and_the_others_do(harness: Bmv2Harness) -> None:  # R3.27
    """This happens while a job is being removed."""
    with harness.job(3) as job:
        for worker in range(2):
            job.send(job.packet(worker))
        entries = deliver.entries(job.entry, job.hosts)
        harness.switch.tables.delete("one delivery", entries[1:2])
        outcome = job.send(job.packet(2))
        assert sorted(copy.address for copy in outcome.copies) == sorted(job.hosts[w].address for w in (0, 2))
        assert job.send(job.packet(1)).copies == ()
        assert job.send(job.packet(1, 2, kind=QUESTION)).copies == ()
        harness.switch.tables.insert("one delivery", entries[1:2])
        for packet in (job.packet(1), job.packet(1, 2, kind=QUESTION)):
            assert [copy.address for copy in job.send(packet).copies] == [job.hosts[1].address]


def test_a_job_without_its_group_gets_no_result(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        groups = harness.switch.tables.read("its groups", [fy.P4MulticastGroupEntry()])
        harness.switch.tables.delete(
            "the job's group", [group for group in groups if group.multicast_group_id != FLOOD_GROUP]
        )
        outcome = job.send(job.packet())
        assert (outcome.reason, outcome.copies) == ("admitted", ())
        assert len(job.send(job.packet()).copies) == 1  # an answer to the sender alone needs no group
