"""IntSGD and IntDIANA."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from rig import Unpacked, assert_unbiased, assert_variance_within_omega, exchange, vectors

from wiresum.compress import Engine, InProcess, IntDIANA, IntSGD, Motion, MotionTracker, Piece, Segment, Shift

MOVING = Motion(speed=0.5, share=1.0)


def test_the_first_step_is_nearly_exact_whatever_the_bits() -> None:
    values = vectors(4)
    assert exchange(IntSGD(8), values).means[0] == pytest.approx(np.mean(values, axis=0), abs=1e-7)


def test_the_scale_is_that_of_the_paper() -> None:
    """a_k = eta sqrt(d) / sqrt(2 n r_k + eta^2 eps^2): results are multiples of 1/(n a_k)."""
    values, rate, moved = vectors(4), 0.1, 0.005
    scale = rate * np.sqrt(60) / np.sqrt(2 * 4 * moved + rate**2 * 1e-16)
    mean = exchange(IntSGD(), values, step=3, motion=Motion(moved / rate**2, 1.0)).means[0]
    multiples = mean * 4 * scale
    assert np.abs(multiples - np.round(multiples)).max() < 1e-9
    assert np.abs(mean - np.mean(values, axis=0)).max() < 1 / scale


def test_no_maximum_is_taken_once_the_model_moves() -> None:
    aggregator = InProcess(4)
    exchange(IntSGD(8), vectors(4), step=3, motion=MOVING, aggregator=aggregator)
    assert aggregator.traffic.rounds == 1
    exchange(IntSGD(8, scale="maximum"), vectors(4), step=3, motion=MOVING, aggregator=aggregator)
    assert aggregator.traffic.rounds == 3


@pytest.mark.parametrize(("bits", "words"), [(8, 16), (16, 31), (32, 62)])
def test_few_bits_send_a_fraction_of_the_bytes(bits: int, words: int) -> None:
    """60 values and two flags."""
    aggregator = InProcess(4)
    exchange(IntSGD(bits), vectors(4), step=1, motion=MOVING, aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 4 * words


def test_it_is_unbiased_where_nothing_is_clamped() -> None:
    class Moving(IntSGD):
        def exchange(self, batch, aggregator):  # type: ignore[no-untyped-def]
            turns = [[type(turn)(**{**vars(turn), "motion": MOVING}) for turn in row] for row in batch.turns]
            return super().exchange(type(batch)(turns, batch.vectors, batch.states), aggregator)

    assert_unbiased(Moving(), vectors(3))


@pytest.mark.parametrize("workers", [1, 4])
def test_with_a_maximum_for_its_scale_the_variance_is_within_the_declared_omega(workers: int) -> None:
    assert_variance_within_omega(IntSGD(8, scale="maximum"), vectors(workers))
    assert_unbiased(IntSGD(8, scale="maximum"), vectors(workers))


def test_what_is_clamped_stays_with_the_worker() -> None:
    """100 at a quantum of about 0.1 does not fit 8 bits; a worker takes for sent what was sent."""
    values = [np.full(4, 100.0), np.full(4, -100.0)]
    motion = Motion(0.01, 1.0)
    outcome = exchange(IntSGD(8), values, step=1, motion=motion)
    quantum = np.sqrt(2 * 2 * 0.01 / 4)
    assert outcome.own[0][0] == pytest.approx(np.full(4, 63 * quantum))
    assert outcome.means[0] == pytest.approx(np.zeros(4))


def test_what_is_clamped_is_counted() -> None:
    """Values within the bound, which may be rounded to it, are not."""
    motion = Motion(0.01, 1.0)
    quantum = np.sqrt(2 * 2 * 0.01 / 4)
    values = [np.array([62.9, 63.1, -70, 1]) * quantum, np.array([0, 63, -63, -100]) * quantum]
    assert exchange(IntSGD(8), values, step=1, motion=motion).clamped == 3
    assert exchange(IntSGD(16), values, step=1, motion=motion).clamped == 0
    assert exchange(IntSGD(8, scale="maximum"), values, step=1, motion=motion).clamped == 0


def test_an_engine_warns_once_of_integers_that_were_cut_where_no_memory_keeps_the_rest() -> None:
    segments, gradients = [Segment((Piece("x", (4,)),))], [[np.full(4, 100.0)], [np.full(4, -100.0)]]
    for method, warns in ((IntSGD(8), True), (IntDIANA(8), False)):
        engine = Engine(method, InProcess(2))
        engine.step = 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                engine.average(segments, gradients, {"x": Motion(0.01, 1.0)})
        texts = [str(one.message) for one in caught]
        assert len(texts) == warns
        assert engine.clamped == (24 if warns else engine.clamped)
        assert engine.clamped > 0
        assert all("IntSGD cut 8 integers in step 1" in text and "Use IntDIANA" in text for text in texts)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_width_ends_where_the_docs_say(bits: int) -> None:
    """docs/compress.md: once the model's motion is below n/(2^(b-1) - 1) of sqrt(d/2n) times the largest value."""
    workers, size = 4, 60
    value = np.linspace(-1, 1, size)
    end = workers / (2 ** (bits - 1) - 1) * np.sqrt(size / (2 * workers))
    for factor, cut in ((1.5, False), (0.7, True)):
        motion = Motion((factor * end) ** 2, 1.0)
        assert (exchange(IntSGD(bits), [value] * workers, step=1, motion=motion).clamped > 0) == cut


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: IntSGD(12), "integers have 8, 16 or 32 bits, not 12"),
        (lambda: IntSGD(scale="mean"), "'mean'"),  # type: ignore[arg-type]
        (lambda: IntSGD(epsilon=-1.0), "epsilon is finite and not negative"),
        (lambda: MotionTracker(1.0), r"beta is in \[0, 1\), not 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_the_mean_has_the_bits_of_a_reference_that_adds_in_64_bits() -> None:
    for bits in (8, 16, 32):
        ours = exchange(IntSGD(bits), vectors(5), step=2, motion=MOVING)
        reference = exchange(IntSGD(bits), vectors(5), step=2, motion=MOVING, aggregator=Unpacked(5))
        assert ours.means[0].tobytes() == reference.means[0].tobytes()


def test_intdiana_is_intsgd_of_differences() -> None:
    assert IntDIANA(8).memory == Shift(alpha=1.0)
    assert isinstance(IntDIANA(8), IntSGD)


def test_the_tracker_averages_motion_over_steps_and_rates() -> None:
    tracker = MotionTracker(beta=0.9)
    assert tracker.motion(["a"], {"a": 0.1}, 1.0) is None
    tracker.record({"a": 4.0, "b": 1.0})
    tracker.record({"a": 2.0, "b": 1.0})
    motion = tracker.motion(["a", "b"], {"a": 0.1, "b": 0.5}, 0.25)
    assert motion is not None
    assert motion.speed == pytest.approx((0.9 * 4 + 0.1 * 2) / 0.01 + 1 / 0.25)
    assert motion.share == 0.25


def test_a_model_that_does_not_move_or_learn_has_no_motion() -> None:
    tracker = MotionTracker()
    tracker.record({"a": 0.0, "b": 1.0})
    assert tracker.motion(["a"], {"a": 0.1}, 1.0) is None
    assert tracker.motion(["b"], {"b": 0.0}, 1.0) is None


def test_a_tracker_continues_from_its_state() -> None:
    one, other = MotionTracker(0.7), MotionTracker()
    one.record({"a": 3.0})
    other.load_state_dict(one.state_dict())
    for tracker in (one, other):
        tracker.record({"a": 5.0})
    assert one.state_dict() == other.state_dict()
