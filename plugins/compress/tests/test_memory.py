"""Memories: what they keep, and that the identities of their theory hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import wiresum.compress as wc
from wiresum.compress.memory import memory_of

SEGMENT = wc.Segment((wc.Piece("x", (40,)),))


def gradients(workers: int, step: int) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(step)
    return [[generator.normal(size=40) + worker] for worker in range(workers)]


def test_the_common_shift_is_the_mean_of_the_workers_own() -> None:
    engine = wc.Engine(wc.DIANA(), wc.InProcess(3))
    for step in range(50):
        engine.average([SEGMENT], gradients(3, step))
        engine.advance()
    state = engine.state_dict()
    assert state["common"]["x"] == pytest.approx(
        np.mean([mine["shift"]["x"] for mine in state["own"]], axis=0), abs=1e-12
    )


def test_the_rate_of_a_shift_follows_from_the_compressor() -> None:
    omega = wc.DIANA().omega(40, 3)
    assert omega is not None
    assert wc.Shift().fitted(wc.DIANA(), 40, 3) == wc.Shift(1 / (1 + omega))
    assert wc.Shift().fitted(wc.TopK(0.1), 40, 3) == wc.Shift(1.0)
    assert wc.Shift(0.3).fitted(wc.TopK(0.1), 40, 3) == wc.Shift(0.3)


@pytest.mark.parametrize("scaled", [True, False])
def test_error_feedback_is_the_papers_if_it_is_rescaled_when_the_learning_rate_falls(scaled: bool) -> None:
    """arXiv 1901.09847, algorithm 2, keeps residuals of steps: p = rate g + e, x -= C(p), e = p - C(p)."""
    engine, residuals = wc.Engine(wc.TopK(0.1), wc.InProcess(3)), np.zeros((3, 40))
    rates, apart = [0.5, 0.5, 0.1, 0.02], []
    for step, rate in enumerate(rates):
        values = gradients(3, step)
        waiting = residuals + rate * np.array([row[0] for row in values])
        moved = np.zeros_like(waiting)
        for mine, wait in zip(moved, waiting, strict=True):
            largest = np.argsort(-np.abs(wait))[:4]
            mine[largest] = wait[largest]
        residuals = waiting - moved
        if scaled and step:
            engine.rescale(rates[step - 1] / rate)
        apart.append(np.abs(rate * engine.average([SEGMENT], values)[0] - moved.mean(axis=0)).max())
        engine.advance()
    assert max(apart[:2]) < 1e-6, "a constant rate"
    assert (max(apart) < 1e-6) == scaled


def momentum_by_the_paper(
    steps: list[list[np.ndarray]], count: int, *, momentum: float, masking: bool = True, clip: float = np.inf
) -> list[np.ndarray]:
    """Deep Gradient Compression's algorithm 4, with the top k of each worker, in plain NumPy: the means by step."""
    workers = len(steps[0])
    u, v = np.zeros((2, workers, len(steps[0][0])))
    means = []
    for gradients in steps:
        total = np.zeros(len(u[0]))
        for worker, gradient in enumerate(gradients):
            norm = np.linalg.norm(gradient)
            clipped = gradient * min(1.0, clip / np.sqrt(workers) / norm)
            u[worker] = momentum * u[worker] + clipped
            v[worker] += u[worker]
            sent = np.argsort(-np.abs(v[worker]), kind="stable")[:count]
            total[sent] += v[worker][sent]
            v[worker][sent] = 0
            if masking:
                u[worker][sent] = 0
        means.append(total / workers)
    return means


@pytest.mark.parametrize(
    "options",
    [{}, {"masking": False}, {"clip": 3.0}, {"clip": 3.0, "masking": False, "momentum": 0.5}, {"momentum": 0.0}],
    ids=str,
)
def test_momentum_correction_is_the_papers_algorithm(options: dict[str, Any]) -> None:
    options = {"momentum": 0.9, **options}
    engine = wc.Engine(wc.TopK(0.1, memory=wc.MomentumCorrection(**options)), wc.InProcess(3))
    steps = [[row[0] for row in gradients(3, step)] for step in range(40)]
    expected = momentum_by_the_paper([[one.copy() for one in step] for step in steps], 4, **options)
    for step, mean in zip(steps, expected, strict=True):
        estimate = engine.average([SEGMENT], [[one] for one in step])[0]
        assert estimate == pytest.approx(mean, rel=1e-6, abs=1e-6)
        engine.advance()


@pytest.mark.parametrize(
    ("method", "alpha"),
    [
        # DIANA's lemma 1 for one worker: alpha_p = 1/sqrt(d) for p = 2, 2/(1 + sqrt(d)) for p = inf; 1/d for p = 1.
        (wc.DIANA(norm="2"), 1 / math.sqrt(40)),
        (wc.DIANA(norm="inf"), 2 / (1 + math.sqrt(40))),
        (wc.DIANA(norm="1"), 1 / 40),
        (wc.DIANA(norm="2", block=10), 1 / math.sqrt(10)),
        (wc.RandK(0.1, memory="diana"), 0.1),
        (wc.IntDIANA(8, scale="estimate"), 1.0),
        (wc.TopK(0.1, memory="diana"), 1.0),
    ],
    ids=repr,
)
def test_a_shift_moves_by_the_papers_part_of_what_was_sent(method: wc.Compressor, alpha: float) -> None:
    engine = wc.Engine(method, wc.InProcess(1))
    sent = engine.average([SEGMENT], gradients(1, 0))[0]
    engine.advance()
    state = engine.state_dict()
    assert np.count_nonzero(sent)
    assert state["own"][0]["shift"]["x"] == pytest.approx(alpha * sent, rel=1e-6)
    assert state["common"]["x"] == pytest.approx(alpha * sent, rel=1e-6)


def test_masking_resets_the_velocity_of_values_that_were_sent() -> None:
    """A ternary quantiser sends most values as zeros, whose velocity is kept."""
    engine = wc.Engine(wc.TernGrad(memory=wc.MomentumCorrection(0.9)), wc.InProcess(1))
    value = gradients(1, 0)[0][0]
    sent = engine.average([SEGMENT], [[value]])[0]
    engine.advance()
    own = engine.state_dict()["own"][0]
    assert 0 < np.count_nonzero(sent) < 40
    assert own["velocity"]["x"] == pytest.approx(np.where(sent != 0, 0, value))
    assert own["residual"]["x"] == pytest.approx(value - sent)


@pytest.mark.parametrize("memory", [wc.ErrorFeedback(clip=2.0), wc.MomentumCorrection(0.0, clip=2.0)], ids=repr)
def test_each_workers_gradient_is_clipped_to_its_part_of_the_norm(memory: wc.Memory) -> None:
    """The limit is clip/sqrt(N) on the whole segment's norm, even if it comes in parts; smaller gradients are
    unchanged."""
    segment = wc.Segment((wc.Piece("a", (2,)), wc.Piece("b", (2,))))
    engine = wc.Engine(wc.Identity(memory=memory), wc.InProcess(4))
    long, short = np.array([3.0, 0.0, 4.0, 0.0]), np.array([0.1, 0.0, 0.0, 0.2])
    estimate = engine.average([segment], [[[long[:2], long[2:]]], [[short[:2], short[2:]]], [short], [long]])[0]
    assert estimate == pytest.approx((2 * long / 5 + 2 * short) / 4)
    assert long.tolist() == [3, 0, 4, 0], "a gradient is the caller's"


@pytest.mark.parametrize("memory", [wc.ErrorFeedback(), wc.MomentumCorrection()], ids=repr)
def test_rounding_errors_of_the_wire_are_held_back(memory: wc.Memory) -> None:
    engine, values = wc.Engine(wc.GTopK(0.5, bits=16, memory=memory), wc.InProcess(3)), gradients(3, 0)
    estimate = engine.average([SEGMENT], values)[0]
    engine.advance()
    held = np.mean([mine["residual"]["x"] for mine in engine.state_dict()["own"]], axis=0)
    assert estimate + held == pytest.approx(np.mean([row[0] for row in values], axis=0), abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_gradient_that_is_not_finite_is_not_clipped_to_zeros() -> None:
    engine = wc.Engine(wc.TopK(0.5, memory=wc.ErrorFeedback(clip=1.0)), wc.InProcess(2))
    for poison in (np.inf, np.nan):
        estimate = engine.average([SEGMENT], [[np.full(40, poison)], [np.ones(40)]])[0]
        engine.advance()
        assert np.isnan(estimate).all()
    assert engine.state_dict()["own"] == [{"residual": {}}] * 2


def test_a_compressor_without_constants_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="declares neither omega nor a contraction"):
        wc.Shift().fitted(wc.SignMajority(), 40, 3)


def test_memories_can_be_given_by_name() -> None:
    assert isinstance(memory_of("error-feedback"), wc.ErrorFeedback)
    own = wc.ErrorFeedback()
    assert memory_of(own) is own
    with pytest.raises(
        ValueError, match="no memory 'momentum'; there are none, error-feedback, momentum-correction, diana,"
    ):
        memory_of("momentum")


def test_without_loss_all_memories_give_the_mean() -> None:
    for memory in ("none", "error-feedback", wc.MomentumCorrection(0.0), "diana"):
        engine = wc.Engine(wc.Identity(memory=memory), wc.InProcess(3))
        for step in range(4):
            values = gradients(3, step)
            estimate = engine.average([SEGMENT], values)[0]
            assert estimate == pytest.approx(np.mean([row[0] for row in values], axis=0), abs=1e-12)
            engine.advance()
