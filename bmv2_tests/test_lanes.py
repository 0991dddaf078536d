"""Stage `lanes`: the words."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bmv2_tests.bmv2_harness import Bmv2Harness, Job
from wiresum_lab.doubles.workers import DATA, EMPTY, META, QUESTION, Packet

SEED = 20_26


def test_every_word_is_summed_by_itself(harness: Bmv2Harness) -> None:
    generator = random.Random(SEED)
    with harness.job(4) as job:
        for after in range(12):
            rows = [_random_words(generator, job.entry.lanes) for _ in range(4)]
            outcome = _play(job, [job.packet(worker, after, words=row) for worker, row in enumerate(rows)])
            assert outcome.words == tuple(sum(column) % (1 << 32) for column in zip(*rows, strict=True)), after


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (0xFFFFFFFF, 1),
        (0x7FFFFFFF, 1),
        (0x80000000, 0x80000000),
        (0x80000000, 0x7FFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0, 0),
    ],
)
def test_no_carry_crosses_into_the_next_word(harness: Bmv2Harness, a: int, b: int) -> None:
    with harness.job(2) as job:
        for after, position in enumerate((0, 1, 31, 62, 63)):
            rows = [[0] * job.entry.lanes for _ in range(2)]
            rows[0][position], rows[1][position] = a, b
            result = _play(job, [job.packet(w, after, words=tuple(row)) for w, row in enumerate(rows)])
            expected = [0] * job.entry.lanes
            expected[position] = (a + b) % (1 << 32)
            assert list(result.words) == expected


def test_words_are_in_the_order_of_the_wire(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        ramp = tuple(0x01020304 * (i + 1) % (1 << 32) for i in range(job.entry.lanes))
        assert job.send(job.packet(words=ramp)).result.words == ramp


@pytest.mark.parametrize("kinds", [(EMPTY, DATA, DATA), (DATA, EMPTY, DATA), (DATA, DATA, EMPTY), (EMPTY, EMPTY, DATA)])
def test_empty_adds_nothing_wherever_it_comes(harness: Bmv2Harness, kinds: Sequence[int]) -> None:
    with harness.job(3) as job:
        packets = [job.packet(w, kind=kind, words=job.words(10**w)) for w, kind in enumerate(kinds)]
        packets = [packet if packet.kind == DATA else packet._replace(words=()) for packet in packets]
        expected = sum(10**worker for worker, kind in enumerate(kinds) if kind == DATA)
        assert _play(job, packets).words == job.words(expected)


def test_all_empty_gives_zeros_though_the_cell_held_other_words(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        _play(job, [job.packet(worker, 0, words=job.words(0xDEADBEEF)) for worker in range(2)])
        assert _play(job, [job.packet(worker, 2, kind=EMPTY) for worker in range(2)]).words == job.words(0)


def test_meta_has_no_words_and_its_result_has_none(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        result = _play(job, [job.packet(worker, kind=META, exponent=worker) for worker in range(2)])
        assert (result.words, result.exponent) == ((), 1)


def test_the_first_data_of_a_round_writes_whoever_sends_it(harness: Bmv2Harness) -> None:
    """Also a worker that has sent EMPTY before in this round."""
    with harness.job(2) as job:
        assert job.send(job.packet(0, kind=EMPTY)).reason == "admitted"
        assert job.send(job.packet(0, words=job.words(5))).reason == "duplicate"
        assert job.send(job.packet(1, words=job.words(6))).result.words == job.words(11)


def test_words_of_the_round_before_do_not_stay(harness: Bmv2Harness) -> None:
    with harness.job(2) as job:
        job.send(job.packet(0, 0, words=job.words(1000)))
        assert _play(job, [job.packet(w, 2, words=job.words(w + 1)) for w in range(2)]).words == job.words(3)


@pytest.mark.parametrize("kind", [EMPTY, META])
def test_a_question_about_a_round_without_data_gets_zeros(harness: Bmv2Harness, kind: int) -> None:
    with harness.job(2) as job:
        _play(job, [job.packet(worker, 0, words=job.words(0xDEADBEEF)) for worker in range(2)])
        job.send(job.packet(0, 2, kind=QUESTION))
        _play(job, [job.packet(worker, 2, kind=kind) for worker in range(2)])
        assert job.send(job.packet(0, 2, kind=QUESTION)).result.words == job.words(0)


def test_a_question_reads_words_and_writes_none(harness: Bmv2Harness) -> None:
    generator = random.Random(SEED)
    with harness.job(2) as job:
        rows = [_random_words(generator, job.entry.lanes) for _ in range(2)]
        job.send(job.packet(0, words=rows[0]))
        assert job.send(job.packet(1, kind=QUESTION)).result.words == ()
        assert not job.send(job.packet(0, kind=QUESTION)).copies
        total = job.send(job.packet(1, words=rows[1])).result.words
        assert total == tuple(sum(column) % (1 << 32) for column in zip(*rows, strict=True))
        for worker in (0, 1, 0):
            assert job.send(job.packet(worker, kind=QUESTION)).result.words == total


def _random_words(generator: random.Random, count: int) -> tuple[int, ...]:
    return tuple(generator.choice((generator.getrandbits(32), 0xFFFFFFFF, 0x80000000)) for _ in range(count))


def _play(job: Job, packets: Sequence[Packet]) -> Packet:
    """The RESULT of the last."""
    for packet in packets[:-1]:
        assert not job.send(packet).copies
    return job.send(packets[-1]).result
