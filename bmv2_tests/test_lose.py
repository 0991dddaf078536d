"""Stage `lose`: the fault injector drops the selected copies, and no others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import finsy as fy
import pytest

from bmv2_tests.bmv2_harness import Bmv2Harness, Job
from wiresum_lab.doubles.workers import META, QUESTION

ROUNDS = 400
CHANCES = 1 << 16


@contextlib.contextmanager
def losing(harness: Bmv2Harness, fraction: float, **match: int) -> Iterator[None]:
    """Loses a random `fraction`, above 0, of the copies of RESULTs that match `egress_port`, `job`, `receiver` (the
    worker's index) and `round`; omitted fields match anything."""
    action = fy.Action("lose_copies", chance=round(fraction * CHANCES) - 1)
    entry = fy.P4TableEntry("lose", match=fy.Match(match), action=action, priority=1)
    harness.switch.tables.insert("a fault", [entry])
    try:
        yield
    finally:
        harness.switch.tables.delete("a fault", [entry])


def test_loss_for_one_receiver_spares_the_others(harness: Bmv2Harness) -> None:
    with harness.job(3) as job, losing(harness, 1.0, job=job.entry.job, receiver=1):
        assert _receivers(job, 0) == [job.hosts[0].address, job.hosts[2].address]


def test_loss_at_one_port_spares_the_others(harness: Bmv2Harness) -> None:
    with harness.job(3) as job, losing(harness, 1.0, egress_port=2):
        assert _receivers(job, 0) == [job.hosts[0].address, job.hosts[1].address]


def test_loss_in_one_round_spares_the_others(harness: Bmv2Harness) -> None:
    with harness.job(2) as job, losing(harness, 1.0, round=job.first + 1):
        assert [len(_receivers(job, after)) for after in range(3)] == [2, 0, 2]


def test_loss_in_one_job_spares_the_others(harness: Bmv2Harness) -> None:
    with harness.job(2) as job, harness.job(2) as other, losing(harness, 1.0, job=other.entry.job):
        assert len(_receivers(job, 0)) == 2
        assert len(_receivers(other, 0)) == 0


def test_a_lost_copy_is_sent_again_on_request(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        with losing(harness, 1.0, job=job.entry.job):
            assert not _receivers(job, 0)
        assert len(job.send(job.packet(1)).copies) == 1


def test_missing_can_be_lost_like_a_result(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        with losing(harness, 1.0, job=job.entry.job, receiver=1):
            assert [len(job.send(job.packet(worker, kind=QUESTION)).copies) for worker in range(2)] == [1, 0]
        assert len(job.send(job.packet(1, kind=QUESTION)).copies) == 1


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_a_fraction_is_lost_at_random(harness: Bmv2Harness, fraction: float) -> None:
    """Within five standard deviations; one run in two million exceeds that."""
    with harness.job(1) as job, losing(harness, fraction, job=job.entry.job):
        frames = [(0, bytes(job.frame(job.packet(0, after, kind=META)))) for after in range(ROUNDS)]
        came = sum(len(harness.copies(frames[start : start + 20])) for start in range(0, ROUNDS, 20))
    deviation = (ROUNDS * fraction * (1 - fraction)) ** 0.5
    assert abs(came - ROUNDS * (1 - fraction)) < 5 * deviation


def test_other_traffic_is_never_lost(harness: Bmv2Harness) -> None:
    with losing(harness, 1.0, egress_port=1):
        frame = bytes(harness.own_frame(harness.hosts[0]))
        frame = bytes.fromhex(harness.hosts[1].mac.replace(":", "")) + frame[6:30] + bytes([10, 111, 1, 2]) + frame[34:]
        assert harness.exchange([(0, frame)]) == [(1, frame)]


def _receivers(job: Job, after: int) -> list[str]:
    for worker in range(job.entry.workers - 1):
        job.send(job.packet(worker, after))
    return sorted(copy.address for copy in job.send(job.packet(job.entry.workers - 1, after)).copies)
