"""Stage `verdict`: what becomes of a packet, for each row of its table. The stages before have tests of their own."""

from __future__ import annotations

from bench import Bench


def test_a_contribution_to_an_incomplete_cell_is_held(bench: Bench) -> None:
    with bench.job(2) as job:
        outcome = job.send(job.packet(0))
        assert (outcome.reason, outcome.copies) == ("admitted", ())


def test_the_completing_one_goes_to_everybody(bench: Bench) -> None:
    with bench.job(3) as job:
        for worker in range(2):
            job.send(job.packet(worker))
        outcome = job.send(job.packet(2))
        assert outcome.reason == "admitted"
        assert sorted(copy.address for copy in outcome.copies) == sorted(host.address for host in job.hosts)


def test_a_duplicate_of_a_complete_cell_goes_to_its_sender_alone(bench: Bench) -> None:
    with bench.job(3) as job:
        for worker in range(3):
            job.send(job.packet(worker))
        for worker in range(3):
            outcome = job.send(job.packet(worker))
            assert outcome.reason == "resent"
            assert [(copy.address, copy.port) for copy in outcome.copies] == [
                (job.hosts[worker].address, job.hosts[worker].port)
            ]


def test_what_is_dropped_is_counted_by_its_reason(bench: Bench) -> None:
    with bench.job(2, slots=4) as job:
        job.send(job.packet(0, 2))
        right = job.packet(0, 2)
        for packet, reason in (
            (right, "duplicate"),
            (job.packet(0, 0), "stale"),
            (job.packet(0, 2, slot=4), "out_of_lease"),
            (right._replace(key=right.key ^ 1), "unknown"),
            (right._replace(kind=5), "malformed"),
        ):
            outcome = job.send(packet)
            assert (outcome.reason, outcome.copies) == (reason, ())


def test_of_several_faults_the_first_of_the_protocols_rows_is_counted(bench: Bench) -> None:
    with bench.job(2, slots=4) as job:
        job.send(job.packet(0, 2))
        stale_and_outside = job.packet(0, 0, slot=4)
        assert job.send(stale_and_outside).reason == "out_of_lease"
        assert job.send(stale_and_outside._replace(cell=stale_and_outside.cell ^ 1)).reason == "malformed"
        assert job.send(stale_and_outside._replace(key=0)).reason == "unknown"
        assert job.send(stale_and_outside._replace(key=0, kind=9)).reason == "malformed"
