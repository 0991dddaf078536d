"""Stage `verdict`: the order of its rows. The vectors cover each row."""

from __future__ import annotations

from dataclasses import replace

from bmv2_tests.bmv2_harness import Bmv2Harness


def test_only_the_first_of_several_faults_is_counted(harness: Bmv2Harness) -> None:
    with harness.job(2, slots=4) as job:
        job.send(job.packet(0, 2))
        stale_and_outside = job.packet(0, 0, slot=4)
        assert job.send(stale_and_outside).reason == "out_of_lease"
        assert job.send(replace(stale_and_outside, cell=stale_and_outside.cell ^ 1)).reason == "malformed"
        assert job.send(replace(stale_and_outside, key=0)).reason == "unknown"
        assert job.send(replace(stale_and_outside, key=0, kind=9)).reason == "malformed"
