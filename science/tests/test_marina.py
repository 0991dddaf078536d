"""MARINA: compressed differences and whole gradients, with a state for each worker."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from wiresum.compress import QSGD, Engine, InProcess, IntegerCompressor, Piece, Segment, Turn
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.convex import DASHA, MARINA, marina_rule

SIZE, WORKERS = 40, 3
SEGMENT = Segment((Piece("x", (SIZE,)),))
WHOLE_BYTES, DIFFERENCE_BYTES = 4 * (SIZE + 2) + 8, SIZE + 4
"""Sent in a step: a maximum and integers of 32 bits, or integers of 8; each with two flags, and filled to words."""


@dataclass(frozen=True)
class Coarse(IntegerCompressor):
    """Multiples of a quarter, the nearest."""

    def bits_at(self, turn: Turn) -> int:
        return 8

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        return np.clip(np.rint(vector * 4), -40, 40).astype(np.int32)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        return integers / 4 / contributors


def gradients(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(WORKERS, SIZE))


def averaged(engine: Engine, step: int) -> tuple[np.ndarray, bool]:
    """The estimate, and whether whole gradients were sent."""
    before = engine.aggregator.traffic.sent_bytes
    estimate = engine.average([SEGMENT], [[one] for one in gradients(step)])[0]
    engine.advance()
    sent = engine.aggregator.traffic.sent_bytes - before
    assert sent in (WHOLE_BYTES, DIFFERENCE_BYTES)
    return estimate, sent == WHOLE_BYTES


def test_it_is_the_papers_algorithm() -> None:
    engine, whole_steps = Engine(MARINA(Coarse(), 0.25), InProcess(WORKERS), seed=3), 0
    for step in range(200):
        now = gradients(step)
        estimate, whole = averaged(engine, step)
        if whole:
            expected = now.mean(axis=0)
        else:
            assert step > 0
            expected = expected + np.mean(np.clip(np.rint(4 * (now - gradients(step - 1))), -40, 40) / 4, axis=0)
        whole_steps += whole
        assert estimate == pytest.approx(expected, abs=1e-5)
    assert 30 <= whole_steps <= 70, "a quarter of the steps, within 3 standard deviations"


def test_with_another_seed_other_steps_are_whole() -> None:
    coins = []
    for seed in (1, 2):
        engine = Engine(MARINA(Coarse(), 0.5), InProcess(WORKERS), seed=seed)
        coins.append([averaged(engine, step)[1] for step in range(30)])
    assert coins[0] != coins[1]


def test_a_checkpoint_has_the_states_of_each_worker() -> None:
    engine = Engine(MARINA(QSGD(), 0.1), InProcess(WORKERS), seed=4)
    for step in range(5):
        engine.average([SEGMENT], [[one] for one in gradients(step)])
        engine.advance()
    state = pickle.loads(pickle.dumps(engine.state_dict()))
    assert [one["state"]["gradient"].tolist() for (one,) in state["own_states"]] == gradients(4).tolist()
    other = Engine(MARINA(QSGD(), 0.1), InProcess(WORKERS))
    other.load_state_dict(state)
    for step in range(5, 15):
        both = [one.average([SEGMENT], [[one] for one in gradients(step)])[0] for one in (engine, other)]
        assert both[0].tobytes() == both[1].tobytes()
        engine.advance()
        other.advance()
    with pytest.raises(ValueError, match="own_states is of 2 workers, not of 3"):
        other.load_state_dict({**state, "own_states": state["own_states"][:2]})


def test_a_step_that_is_not_finite_changes_no_state() -> None:
    engine, other = (Engine(MARINA(Coarse(), 0.1), InProcess(WORKERS), seed=4) for _ in range(2))
    averaged(engine, 0)
    averaged(other, 0)
    poisoned = gradients(1)
    poisoned[1, 7] = np.nan
    assert np.isnan(engine.average([SEGMENT], [[one] for one in poisoned])[0]).all()
    engine.advance()
    other.advance()
    assert averaged(engine, 2)[0].tobytes() == averaged(other, 2)[0].tobytes()


def test_after_another_group_has_formed_whole_gradients_are_sent() -> None:
    """A new worker has no gradient of the point before."""
    engine = Engine(MARINA(Coarse(), 1e-9), InProcess(WORKERS), seed=4)
    assert [averaged(engine, step)[1] for step in range(3)] == [True, False, False]
    smaller = Engine(MARINA(Coarse(), 1e-9), InProcess(WORKERS - 1), seed=4)
    for step in range(2):
        smaller.average([SEGMENT], [[one] for one in gradients(step)[:2]])
        smaller.advance()
    engine.load_state_dict(smaller.state_dict(), world_size_changed=True)
    engine.synchronize()
    state = engine.state_dict()
    estimate, whole = averaged(engine, 2)
    assert whole
    assert estimate == pytest.approx(gradients(2).mean(axis=0), abs=1e-6)
    engine.load_state_dict(state)
    assert averaged(engine, 2)[1]


def test_the_step_size_is_the_theorems() -> None:
    """With L = 4, mu = 1/2, omega = 6, n = 3, p = 1/5: sqrt(2 * 0.8 * 6 / 0.6) = 4."""
    assert marina_rule(smoothness=4, strong_convexity=0.5, omega=6, workers=3, probability=0.2) == pytest.approx(
        (1 / 20, 1 / 40)
    )
    few = marina_rule(smoothness=1, strong_convexity=0.9, omega=0, workers=3, probability=0.2)
    assert few == pytest.approx((0.2 / 1.8, 0.1))


def test_options_that_make_no_sense_are_refused() -> None:
    for probability in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"with a probability in \(0, 1\]"):
            MARINA(Coarse(), probability)
    with pytest.raises(ValueError, match='use memory="none"'):
        MARINA(Coarse(), 0.5, memory="diana")


@pytest.mark.parametrize("a", [0.1, 0.5])
def test_dasha_is_the_papers_algorithm(a: float) -> None:
    engine = Engine(Coarse(memory=DASHA(a)), InProcess(WORKERS))
    before, sent = np.zeros((2, WORKERS, SIZE))
    for step in range(40):
        now = gradients(step)
        sent = sent + np.clip(np.rint(4 * (now - before - a * (sent - before))), -40, 40) / 4
        before = now
        assert engine.average([SEGMENT], [[one] for one in now])[0] == pytest.approx(sent.mean(axis=0), abs=1e-9)
        engine.advance()


def test_dashas_rate_follows_from_omega() -> None:
    omega = QSGD().omega(SIZE, WORKERS)
    assert omega is not None
    assert DASHA().fitted(QSGD(), SIZE, WORKERS) == DASHA(1 / (1 + 2 * omega))
    with pytest.raises(ValueError, match="Coarse declares no omega"):
        DASHA().fitted(Coarse(), SIZE, WORKERS)
    with pytest.raises(ValueError, match=r"in \(0, 1\], or None, not 2"):
        DASHA(2)
