"""Stage `verdict`: what becomes of a packet, for each row of its table. The stages before have tests of their own."""

from __future__ import annotations

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum_lab.doubles.workers import MISSING, QUESTION, RESULT


def test_a_contribution_to_an_incomplete_cell_is_held(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        outcome = job.send(job.packet(0))
        assert (outcome.reason, outcome.copies) == ("admitted", ())


def test_the_completing_one_goes_to_everybody(harness: Bmv2Harness) -> None:
    with harness.job(3) as job:
        for worker in range(2):
            job.send(job.packet(worker))
        outcome = job.send(job.packet(2))
        assert outcome.reason == "admitted"
        assert sorted(copy.address for copy in outcome.copies) == sorted(host.address for host in job.hosts)


def test_a_duplicate_of_a_complete_cell_goes_to_its_sender_alone(harness: Bmv2Harness) -> None:
    with harness.job(3) as job:
        for worker in range(3):
            job.send(job.packet(worker))
        for worker in range(3):
            outcome = job.send(job.packet(worker))
            assert outcome.reason == "resent"
            assert [(copy.address, copy.port) for copy in outcome.copies] == [
                (job.hosts[worker].address, job.hosts[worker].port)
            ]


def test_a_question_before_its_contribution_is_answered_missing(harness: Bmv2Harness) -> None:
    """Of the cell's round, even where all others are in, and of one that it has not begun."""
    with harness.job(2) as job:
        job.send(job.packet(0))
        for after in (0, 2):
            outcome = job.send(job.packet(1, after, kind=QUESTION))
            assert outcome.reason == "resent"
            assert [(copy.address, copy.port) for copy in outcome.copies] == [(job.hosts[1].address, job.hosts[1].port)]
            assert outcome.result.kind == MISSING


def test_a_question_of_a_job_of_one_is_answered_missing_too(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        assert job.send(job.packet(kind=QUESTION)).result.kind == MISSING
        assert job.send(job.packet()).result.kind == RESULT


def test_a_question_after_its_contribution_waits_with_it(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        job.send(job.packet(0))
        outcome = job.send(job.packet(0, kind=QUESTION))
        assert (outcome.reason, outcome.copies) == ("duplicate", ())


def test_a_question_about_a_complete_cell_gets_the_result_alone(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        job.send(job.packet(0))
        first = job.send(job.packet(1)).result
        outcome = job.send(job.packet(0, kind=QUESTION))
        assert outcome.reason == "resent"
        assert [copy.address for copy in outcome.copies] == [job.hosts[0].address]
        assert outcome.result == first._replace(worker=0)


def test_what_is_dropped_is_counted_by_its_reason(harness: Bmv2Harness) -> None:
    with harness.job(2, slots=4) as job:
        job.send(job.packet(0, 2))
        right = job.packet(0, 2)
        for packet, reason in (
            (right, "duplicate"),
            (job.packet(0, 0), "stale"),
            (job.packet(0, 2, slot=4), "out_of_lease"),
            (right._replace(key=right.key ^ 1), "unknown"),
            (right._replace(kind=MISSING), "malformed"),
            (job.packet(0, 0, kind=QUESTION), "stale"),
            (job.packet(0, 2, slot=4, kind=QUESTION), "out_of_lease"),
            (job.packet(0, 2, kind=QUESTION, key=right.key ^ 1), "unknown"),
        ):
            outcome = job.send(packet)
            assert (outcome.reason, outcome.copies) == (reason, ())


def test_of_several_faults_the_first_of_the_protocols_rows_is_counted(harness: Bmv2Harness) -> None:
    with harness.job(2, slots=4) as job:
        job.send(job.packet(0, 2))
        stale_and_outside = job.packet(0, 0, slot=4)
        assert job.send(stale_and_outside).reason == "out_of_lease"
        assert job.send(stale_and_outside._replace(cell=stale_and_outside.cell ^ 1)).reason == "malformed"
        assert job.send(stale_and_outside._replace(key=0)).reason == "unknown"
        assert job.send(stale_and_outside._replace(key=0, kind=9)).reason == "malformed"
