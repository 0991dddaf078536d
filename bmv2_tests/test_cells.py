"""Stage `cells`: rounds, bitmaps, exponents, and tensor numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from bmv2_tests.bmv2_harness import Bmv2Harness, Job
from wiresum_lab.doubles.workers import DATA, EMPTY, META, MISSING, QUESTION


@pytest.fixture
def job(harness: Bmv2Harness) -> Iterator[Job]:
    with harness.job(2) as job:
        yield job


def test_a_newer_round_starts_the_cell_anew(job: Job) -> None:
    job.send(job.packet(0, words=job.words(7)))
    for after in (2, 4):
        assert job.send(job.packet(0, after, words=job.words(after))).reason == "admitted"
    assert job.send(job.packet(1, 4, words=job.words(10))).result.words == job.words(14)


def test_an_older_round_is_stale_and_changes_nothing(job: Job) -> None:
    job.send(job.packet(0, 2, words=job.words(5)))
    assert job.send(job.packet(1, 0, words=job.words(99))).reason == "stale"
    outcome = job.send(job.packet(1, 2, words=job.words(6)))
    assert outcome.result.words == job.words(11)


@pytest.mark.parametrize("first", [1, 0, (1 << 31) - 1, (1 << 32) - 3, (1 << 32) - 2])
def test_a_cell_goes_on_to_its_next_round_alone(harness: Bmv2Harness, first: int) -> None:
    with harness.job(1) as made:
        job = dataclasses.replace(made, first=first)
        for after, reason in (
            (0, "admitted"),
            (4, "stale"),
            (1 << 31, "stale"),
            ((1 << 31) + 2, "stale"),
            (-2, "stale"),
            (2, "admitted"),
            (0, "stale"),
            (6, "stale"),
            (4, "admitted"),
            (4, "resent"),
        ):
            assert job.send(job.packet(0, after)).reason == reason, after


def test_both_rounds_of_a_slot_have_cells_of_their_own(job: Job) -> None:
    job.send(job.packet(0, 0, words=job.words(1)))
    job.send(job.packet(0, 1, words=job.words(2)))
    assert job.send(job.packet(1, 0, words=job.words(10))).result.words == job.words(11)
    assert job.send(job.packet(1, 1, words=job.words(20))).result.words == job.words(22)


def test_a_duplicate_before_completion_is_counted_and_not_added(job: Job) -> None:
    job.send(job.packet(0, words=job.words(3)))
    assert job.send(job.packet(0, words=job.words(3))).reason == "duplicate"
    assert job.send(job.packet(1, words=job.words(4))).result.words == job.words(7)


@pytest.mark.parametrize("kind", [DATA, EMPTY, META])
def test_a_duplicate_after_completion_gets_the_result_again(job: Job, kind: int) -> None:
    job.send(job.packet(0, kind=kind))
    first = job.send(job.packet(1, kind=kind)).result
    again = job.send(job.packet(0, kind=kind))
    assert again.reason == "resent"
    assert [copy.address for copy in again.copies] == [job.hosts[0].address]
    assert again.result == first._replace(worker=0)


def test_a_cell_of_32_is_complete_with_the_last(harness: Bmv2Harness) -> None:
    with harness.job(32) as job:
        order = [31, 0, *range(30, 0, -1)]
        for worker in order[:-1]:
            outcome = job.send(job.packet(worker, words=job.words(1 << worker)))
            assert (outcome.reason, outcome.copies) == ("admitted", ())
        outcome = job.send(job.packet(order[-1], words=job.words(1 << order[-1])))
        assert outcome.result.words == job.words(0xFFFFFFFF)
        assert sorted(copy.address for copy in outcome.copies) == sorted(host.address for host in job.hosts)


def test_a_job_of_one_is_answered_at_once(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        assert job.send(job.packet(words=job.words(42))).result.words == job.words(42)
        assert job.send(job.packet(words=job.words(42))).reason == "resent"


@pytest.mark.parametrize("exponents", [(0, 0), (0, 255), (255, 0), (5, 200), (200, 5)])
def test_the_largest_exponent_is_told(job: Job, exponents: tuple[int, int]) -> None:
    job.send(job.packet(0, exponent=exponents[0]))
    assert job.send(job.packet(1, exponent=exponents[1])).result.exponent == max(exponents)


def test_a_new_round_forgets_exponents(job: Job) -> None:
    job.send(job.packet(0, 0, exponent=255))
    job.send(job.packet(0, 2, exponent=3))
    assert job.send(job.packet(1, 2, exponent=4)).result.exponent == 4


def test_a_duplicate_with_another_exponent_does_no_harm(job: Job) -> None:
    job.send(job.packet(0, exponent=9))
    job.send(job.packet(0, exponent=9))
    assert job.send(job.packet(1, exponent=1)).result.exponent == 9


def test_different_tensors_in_one_round_are_flagged_for_everybody(job: Job) -> None:
    job.send(job.packet(0, tensor=1))
    assert job.send(job.packet(1, tensor=2)).result.flags == 2
    assert job.send(job.packet(0, tensor=1)).result.flags == 2
    job.send(job.packet(0, 2, tensor=3))
    assert job.send(job.packet(1, 2, tensor=3)).result.flags == 0


def test_fields_that_are_echoed_are_those_of_the_trigger(job: Job) -> None:
    job.send(job.packet(0, flags=1, tensor=1, chunk=100))
    result = job.send(job.packet(1, flags=1, tensor=1, chunk=200)).result
    assert (result.worker, result.chunk, result.tensor, result.flags) == (1, 200, 1, 0)
    assert (result.job, result.key) == (job.entry.job, job.entry.key)


def test_a_question_is_no_contribution(job: Job) -> None:
    for worker in range(2):
        assert job.send(job.packet(worker, kind=QUESTION)).result.kind == MISSING
    assert job.send(job.packet(0, words=job.words(1))).reason == "admitted"
    assert job.send(job.packet(1, kind=QUESTION)).result.kind == MISSING
    assert job.send(job.packet(1, words=job.words(2))).result.words == job.words(3)


def test_a_question_about_a_newer_round_leaves_the_cell_where_it_is(job: Job) -> None:
    job.send(job.packet(0, words=job.words(1)))
    assert job.send(job.packet(0, 2, kind=QUESTION)).result.kind == MISSING
    assert job.send(job.packet(0, kind=QUESTION)).reason == "duplicate"
    assert job.send(job.packet(1, words=job.words(2))).result.words == job.words(3)


@pytest.mark.parametrize("sender", [0, 1])
def test_an_exponent_in_a_question_is_not_merged(job: Job, sender: int) -> None:
    job.send(job.packet(0, exponent=3))
    job.send(job.packet(sender, kind=QUESTION, exponent=255))
    assert job.send(job.packet(1, exponent=4)).result.exponent == 4
    for exponent in (0, 255):
        assert job.send(job.packet(sender, kind=QUESTION, exponent=exponent)).result.exponent == 4


@pytest.mark.parametrize("sender", [0, 1])
def test_a_tensor_in_a_question_is_not_compared(job: Job, sender: int) -> None:
    job.send(job.packet(0, tensor=1))
    job.send(job.packet(sender, kind=QUESTION, tensor=2))
    assert job.send(job.packet(1, tensor=1)).result.flags == 0
    result = job.send(job.packet(sender, kind=QUESTION, tensor=2)).result
    assert (result.tensor, result.flags) == (2, 0)
    assert job.send(job.packet(1, tensor=1)).result.flags == 0


def test_a_question_is_told_that_its_cell_has_diverged(job: Job) -> None:
    job.send(job.packet(0, tensor=1))
    job.send(job.packet(1, tensor=2))
    assert job.send(job.packet(0, kind=QUESTION, tensor=1)).result.flags == 2


def test_cells_of_a_program_loaded_anew_are_nobodys(harness: Bmv2Harness) -> None:
    """Not even those of a job with the same key."""
    with harness.job(2) as job:
        job.send(job.packet(0, 8, words=job.words(1)))
        harness.load()
        harness.switch.admit(job.entry)
        assert job.send(job.packet(0, 8, kind=QUESTION)).result.kind == MISSING
        assert job.send(job.packet(0, words=job.words(2))).reason == "admitted"
        assert job.send(job.packet(1, words=job.words(3))).result.words == job.words(5)
