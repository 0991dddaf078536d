"""IntSGD and IntDIANA."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from wiresum.compress import Engine, InProcess, IntDIANA, IntSGD, Piece, Quantiser, Segment, Shift
from wiresum.compress.engine import CLAMPED_STEPS_MAX

from .rig import assert_unbiased, exchange, vectors

LENGTH = 0.7


def test_the_first_step_is_nearly_exact_at_every_width() -> None:
    values = vectors(4)
    mean = exchange(IntSGD(8, scale="estimate"), values).means[0]
    assert mean == pytest.approx(np.mean(values, axis=0), abs=1e-7)


def test_the_scale_follows_the_paper() -> None:
    """a_k = eta sqrt(d) / sqrt(2 n r_k + eta^2 eps^2), of SGD's motion eta |g|: results are multiples of 1/(n a_k)."""
    values, rate, moved = vectors(4), 0.1, 0.005
    scale = rate * np.sqrt(60) / np.sqrt(2 * 4 * moved + rate**2 * 1e-16)
    mean = exchange(IntSGD(scale="estimate"), values, step=3, length=np.sqrt(moved) / rate).means[0]
    multiples = mean * 4 * scale
    assert np.abs(multiples - np.round(multiples)).max() < 1e-9
    assert np.abs(mean - np.mean(values, axis=0)).max() < 1 / scale


def test_no_maximum_is_exchanged_after_the_first_estimate() -> None:
    aggregator = InProcess(4)
    exchange(IntSGD(8, scale="estimate"), vectors(4), step=3, length=LENGTH, aggregator=aggregator)
    assert aggregator.traffic.rounds == 1
    exchange(IntSGD(8), vectors(4), step=3, aggregator=aggregator)
    assert aggregator.traffic.rounds == 3


@pytest.mark.parametrize(("bits", "words"), [(8, 16), (16, 31), (32, 62)])
def test_few_bits_send_a_fraction_of_the_bytes(bits: int, words: int) -> None:
    """60 values and two flags."""
    aggregator = InProcess(4)
    exchange(IntSGD(bits, scale="estimate"), vectors(4), step=1, length=LENGTH, aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 4 * words


def test_it_is_unbiased_where_nothing_is_clamped() -> None:
    class Told(IntSGD):
        def exchange(self, batch, aggregator):  # type: ignore[no-untyped-def]
            turns = [[replace(turn, length=LENGTH) for turn in row] for row in batch.turns]
            return super().exchange(type(batch)(turns, batch.vectors, batch.states), aggregator)

    assert_unbiased(Told(scale="estimate"), vectors(3))


def test_the_clamped_part_stays_in_the_workers_memory() -> None:
    """100 at a quantum of about 0.1 does not fit 8 bits; a worker records the clamped value as sent."""
    values = [np.full(4, 100.0), np.full(4, -100.0)]
    outcome = exchange(IntSGD(8, scale="estimate"), values, step=1, length=0.1)
    quantum = np.sqrt(2 * 2 * 0.01 / 4)
    assert outcome.own[0][0] == pytest.approx(np.full(4, 63 * quantum))
    assert outcome.means[0] == pytest.approx(np.zeros(4))


def test_clamped_values_are_counted() -> None:
    """Values within the bound are not counted, even if they are rounded to it."""
    quantum = np.sqrt(2 * 2 * 0.01 / 4)
    values = [np.array([62.9, 63.1, -70, 1]) * quantum, np.array([0, 63, -63, -100]) * quantum]
    assert exchange(IntSGD(8, scale="estimate"), values, step=1, length=0.1).clamped == 3
    assert exchange(IntSGD(16, scale="estimate"), values, step=1, length=0.1).clamped == 0
    assert exchange(IntSGD(8), values, step=1).clamped == 0


def test_an_engine_warns_once_of_clamping_if_no_memory_keeps_the_rest() -> None:
    segments, gradients = [Segment((Piece("x", (4,)),))], [[np.full(4, 100.0)], [np.full(4, -100.0)]]
    for method, warns in ((IntSGD(8, scale="estimate"), True), (IntDIANA(8, scale="estimate"), False)):
        engine = Engine(method, InProcess(2))
        engine.average(segments, [[np.full(4, 0.05)], [np.full(4, 0.05)]])
        engine.advance()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                engine.average(segments, gradients)
        texts = [str(one.message) for one in caught]
        assert len(texts) == warns
        assert engine.clamped == (24 if warns else engine.clamped)
        assert engine.clamped > 0
        assert all("IntSGD cut 8 integers in step 1" in text and 'Use scale="maximum"' in text for text in texts)


def test_an_engine_warns_once_of_clamping_that_does_not_end_though_a_memory_keeps_the_rest() -> None:
    """The gradient grows faster than the estimate of its length, so that 8 bits never suffice."""
    segments, engine = [Segment((Piece("x", (4,)),))], Engine(IntDIANA(8, scale="estimate"), InProcess(2))
    growth = 1e4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(CLAMPED_STEPS_MAX + 4):
            if step == CLAMPED_STEPS_MAX:
                assert not caught
            engine.average(segments, [[np.full(4, growth**step)]] * 2)
            engine.advance()
    assert [f"in {CLAMPED_STEPS_MAX} steps in a row" in str(one.message) for one in caught] == [True]


def test_a_step_without_clamping_begins_the_row_anew() -> None:
    segments, engine = [Segment((Piece("x", (4,)),))], Engine(IntDIANA(8, scale="estimate"), InProcess(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(CLAMPED_STEPS_MAX + 10):
            before, grows = engine.clamped, step != 20
            engine.average(segments, [[np.full(4, 1e4**step if grows else 0.0)]] * 2)
            assert (engine.clamped > before) == (grows and step > 0)
            engine.advance()


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_width_clamps_from_the_documented_length_on(bits: int) -> None:
    """docs/compress.md: an estimate must be at least n/(2^(b-1) - 1) * sqrt(d/2n) times the largest value."""
    workers, size = 4, 60
    value = np.linspace(-1, 1, size)
    end = workers / (2 ** (bits - 1) - 1) * np.sqrt(size / (2 * workers))
    for factor, cut in ((1.5, False), (0.7, True)):
        outcome = exchange(IntSGD(bits, scale="estimate"), [value] * workers, step=1, length=factor * end)
        assert (outcome.clamped > 0) == cut


def test_intdiana_is_intsgd_with_a_shift_of_the_rate_that_theory_allows() -> None:
    assert isinstance(IntDIANA(8), IntSGD)
    assert IntDIANA(8).memory == Shift()
    omega = Quantiser(bits=8).omega(40, 100)
    assert omega is not None and omega > 1, "so that a rate of 1 would not be stable"
    assert Shift().fitted(IntDIANA(8), 40, 100) == Shift(1 / (1 + omega))
    assert Shift().fitted(IntDIANA(8, scale="estimate"), 40, 100) == Shift(1.0), "the paper's"


PIECES = (Piece("a", (2,)), Piece("b", (1,)))


def told(segments: list[Segment], gradients: list[list[float]]) -> tuple[list[list[float | None]], list[np.ndarray]]:
    """The lengths given to each step's compressor, by segment, and the estimates; by layer after the first step."""
    lengths: list[list[float | None]] = []

    class Listening(IntSGD):
        def exchange(self, batch, aggregator):  # type: ignore[no-untyped-def]
            lengths.append([turn.length for turn in batch.turns[0]])
            return super().exchange(batch, aggregator)

    engine, estimates = Engine(Listening(32, scale="estimate"), InProcess(1)), []
    for gradient in gradients:
        ends = np.cumsum([segment.size for segment in segments])[:-1]
        estimates.append(np.concatenate(engine.average(segments, [np.split(np.array(gradient), ends)])))
        engine.advance()
        segments = [Segment((piece,)) for segment in segments for piece in segment.pieces]
    return lengths, estimates


def test_a_length_is_the_averaged_norm_of_estimates_and_is_kept_by_piece() -> None:
    lengths, estimates = told([Segment(PIECES)], [[3.0, 0.0, 4.0], [0.0, 0.0, 2.0], [1.0, 1.0, 1.0]])
    squares = [np.array([np.sum(one[:2] ** 2), one[2] ** 2]) for one in estimates]
    assert lengths[0] == [None]
    assert lengths[1] == pytest.approx(np.sqrt(squares[0]))
    assert lengths[2] == pytest.approx(np.sqrt(0.9 * squares[0] + 0.1 * squares[1]))


def test_there_is_no_length_of_estimates_that_are_zero_or_not_finite() -> None:
    nan = float("nan")
    lengths, _ = told([Segment(PIECES[1:])], [[0.0], [nan], [2.0], [nan], [1.0]])
    assert lengths[:3] == [[None], [None], [None]]
    assert lengths[3] == lengths[4] == [pytest.approx(np.sqrt(0.1) * 2)]
