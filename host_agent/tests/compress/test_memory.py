"""Memories: what they keep, and that theory's identities hold."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.compress import (
    DIANA,
    EF21,
    Compressor,
    Engine,
    ErrorFeedback,
    Identity,
    InProcess,
    IntSGD,
    Piece,
    RandK,
    Segment,
    Shift,
    TopK,
)
from wiresum.compress.memory import memory_of

SEGMENT = Segment((Piece("x", (40,)),))


def gradients(workers: int, step: int) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(step)
    return [[generator.normal(size=40) + worker] for worker in range(workers)]


def test_error_feedback_sends_everything_in_the_end() -> None:
    """What has come out and what is in the memories add up to what went in."""
    engine = Engine(TopK(0.1), InProcess(3))
    given, received = np.zeros(40), np.zeros(40)
    for step in range(30):
        values = gradients(3, step)
        given += np.mean([row[0] for row in values], axis=0)
        received += engine.average([SEGMENT], values)[0]
        engine.advance()
    held = np.mean([mine["x"] for mine in engine.state_dict()["own"]], axis=0)
    assert received + held == pytest.approx(given, abs=1e-9)


@pytest.mark.parametrize(
    "method", [DIANA(), RandK(0.2, memory="diana"), TopK(0.1, memory="ef21")], ids=lambda m: type(m).__name__
)
def test_a_shift_follows_constant_gradients_so_that_the_estimate_becomes_exact(method: Compressor) -> None:
    engine = Engine(method, InProcess(3))
    values = gradients(3, 0)
    for _ in range(600):
        estimate = engine.average([SEGMENT], values)[0]
        engine.advance()
    assert estimate == pytest.approx(np.mean([row[0] for row in values], axis=0), abs=1e-6)


def test_the_common_shift_is_the_mean_of_the_workers_own() -> None:
    engine = Engine(DIANA(), InProcess(3))
    for step in range(50):
        engine.average([SEGMENT], gradients(3, step))
        engine.advance()
    state = engine.state_dict()
    assert state["common"]["x"] == pytest.approx(np.mean([mine["x"] for mine in state["own"]], axis=0), abs=1e-12)


def test_the_rate_of_a_shift_follows_from_the_compressor() -> None:
    omega = DIANA().omega(40, 3)
    assert omega is not None
    assert Shift().fitted(DIANA(), 40, 3) == Shift(1 / (1 + omega))
    assert Shift().fitted(TopK(0.1), 40, 3) == Shift(1.0)
    assert Shift(0.3).fitted(TopK(0.1), 40, 3) == Shift(0.3)


def test_a_compressor_without_constants_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="declares neither omega nor a contraction"):
        Shift().fitted(IntSGD(), 40, 3)


def test_ef21_is_for_contractive_compressors() -> None:
    with pytest.raises(ValueError, match="RandK declares none"):
        EF21().fitted(RandK(0.1), 40, 3)
    assert EF21().fitted(TopK(0.1), 40, 3) == Shift(1.0)


def test_memories_have_names() -> None:
    assert isinstance(memory_of("error-feedback"), ErrorFeedback)
    own = ErrorFeedback()
    assert memory_of(own) is own
    with pytest.raises(ValueError, match="no memory 'momentum'; there are none, error-feedback, diana, ef21"):
        memory_of("momentum")


def test_without_loss_all_memories_give_the_mean() -> None:
    for memory in ("none", "error-feedback", "diana", "ef21"):
        engine = Engine(Identity(memory=memory), InProcess(3))
        for step in range(4):
            values = gradients(3, step)
            estimate = engine.average([SEGMENT], values)[0]
            assert estimate == pytest.approx(np.mean([row[0] for row in values], axis=0), abs=1e-12)
            engine.advance()


@pytest.mark.parametrize("alpha", [-2, 1.5, float("nan")])
def test_a_rate_that_no_shift_can_have_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha is in \[0, 1\]"):
        Shift(alpha)
