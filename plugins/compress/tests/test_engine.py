"""The engine: granularity, checkpoints, repeated steps, compression in both directions, and workers that join later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wiresum.compress as wc
from wiresum.compress.engine import _dense
from wiresum_lab.float_modes import MODES, float_mode

from .methods import METHODS

PIECES = [wc.Piece("a", (6, 5)), wc.Piece("b", (7,)), wc.Piece("c", (4, 4))]
BY_LAYER = [wc.Segment((piece,)) for piece in PIECES]
BY_BUCKET = [wc.Segment((PIECES[2], PIECES[1])), wc.Segment((PIECES[0],))]
WHOLE = [wc.Segment(tuple(PIECES))]

ALL = {
    **METHODS,
    "BlockRandomK, momentum corrected": wc.BlockRandomK(0.3, block=4, memory="momentum-correction"),
    "TopK, with a memory down": wc.TopK(0.2, down=wc.TopK(0.3)),
    "own scale": wc.OwnScale(wc.QSGD(), memory="diana"),
}


def gradients(step: int, segments: list[wc.Segment], workers: int = 3) -> list[list[np.ndarray]]:
    """The same gradient for each piece, however pieces are grouped into segments."""
    by_piece = [
        {
            piece.name: np.random.default_rng([step, worker, at]).normal(size=piece.size)
            for at, piece in enumerate(PIECES)
        }
        for worker in range(workers)
    ]
    return [
        [np.concatenate([mine[piece.name] for piece in segment.pieces]) for segment in segments] for mine in by_piece
    ]


def average(engine: wc.Engine, values: Any, segments: list[wc.Segment]) -> list[np.ndarray]:
    """Averages, and passes the parameters that some methods need."""
    return engine.average(segments, values, parameters_of(segments))


def parameters_of(segments: list[wc.Segment]) -> dict[str, np.ndarray]:
    return {segment.name: np.linspace(1, 2, segment.size) for segment in segments}


def run(engine: wc.Engine, steps: range, segments: list[wc.Segment] = BY_LAYER) -> list[list[np.ndarray]]:
    results = []
    for step in steps:
        results.append(average(engine, gradients(step, segments, engine.aggregator.workers), segments))
        engine.advance()
    return results


def same_bits(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same_bits(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def test_memories_are_kept_by_piece_and_segments_may_change() -> None:
    """DDP's buckets change after the first step. Without loss, every grouping gives the mean."""
    engine = wc.Engine(wc.Identity(memory="diana"), wc.InProcess(3))
    for step, segments in enumerate([BY_BUCKET, WHOLE, BY_LAYER, BY_BUCKET]):
        values = gradients(step, segments)
        for s, estimate in enumerate(engine.average(segments, values)):
            assert estimate == pytest.approx(np.mean([row[s] for row in values], axis=0), abs=1e-12)
        engine.advance()
    assert set(engine.state_dict()["common"]) == {"a", "b", "c"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ALL.values(), ids=ALL)
def test_the_threads_floating_point_mode_does_not_change_bits(method: wc.Compressor, mode: str) -> None:
    """Workers with different modes would decode one sum to different gradients."""
    values = [gradients(step, BY_LAYER) for step in range(2)]
    for step in values:
        for row in step:
            row[:] = [(gradient * 2.0**-126).astype(np.float32) for gradient in row]
    parameters = {segment.name: np.linspace(1, 2, segment.size) for segment in BY_LAYER}

    def trained() -> list[Any]:
        engine = wc.Engine(method, wc.InProcess(3))
        results: list[Any] = []
        for step in values:
            results.append(engine.average(BY_LAYER, step, parameters))
            engine.advance()
        engine.rescale(1 / 3)
        return [*results, engine.state_dict()]

    expected = trained()
    with float_mode(mode):
        found = trained()
    assert same_bits(found, expected)


class Failing(wc.InProcess):
    """Fails after the contributions were sent: the aggregate does not arrive."""

    def _sum_words(self, contributions: Any) -> Any:
        raise RuntimeError("the switch died")

    _gather = _sum_words


@pytest.mark.parametrize("method", [wc.DIANA(), wc.TopK(0.2)], ids=repr)
def test_a_step_whose_aggregate_does_not_arrive_changes_nothing_and_can_be_repeated(method: wc.Compressor) -> None:
    """An engine reuses its vectors for residuals and input: a failed step must not mix them up."""
    engine, straight = (wc.Engine(method, wc.InProcess(3)) for _ in range(2))
    run(engine, range(3), WHOLE)
    run(straight, range(3), WHOLE)
    before, working = engine.state_dict(), engine.aggregator
    for _ in range(3):
        engine.aggregator = Failing(3)
        with pytest.raises(RuntimeError, match="the switch died"):
            engine.average(WHOLE, gradients(3, WHOLE))
        assert same_bits(engine.state_dict(), before)
    engine.aggregator = working
    assert same_bits(run(engine, range(3, 6), WHOLE), run(straight, range(3, 6), WHOLE))


def memories(engine: wc.Engine) -> dict[str, Any]:
    """A state without the number of the step."""
    state = engine.state_dict()
    for part in (state, state["down"]):
        if part is not None:
            del part["step"]
    return state


@pytest.mark.parametrize("at_once", [True, False], ids=["in one call", "in a call for each segment"])
@pytest.mark.parametrize("poisoned", [0, 2])
@pytest.mark.parametrize("name", ALL)
def test_a_nan_reaches_its_segment_and_no_memory_of_any(name: str, poisoned: int, at_once: bool) -> None:
    """A loss scaler skips the step for all tensors, so what the others sent reaches no model."""
    engine = wc.Engine(ALL[name], wc.InProcess(3))
    run(engine, range(2), BY_LAYER)
    before = memories(engine)
    values = gradients(2, BY_LAYER)
    values[1][poisoned][3] = np.nan
    if at_once:
        estimates = average(engine, values, BY_LAYER)
    else:
        estimates = [average(engine, [[row[s]] for row in values], [BY_LAYER[s]])[0] for s in range(3)]
    for s, estimate in enumerate(estimates):
        assert np.isnan(estimate).all() == (s == poisoned)
        assert np.isfinite(estimate).all() == (s != poisoned)
    engine.advance()
    assert same_bits(memories(engine), before)
    run(engine, range(3, 4), BY_LAYER)
    assert ALL[name].memory == "none" or not same_bits(memories(engine), before), "the next step changes them again"


def test_a_step_that_its_caller_calls_not_finite_changes_no_memory() -> None:
    engine = wc.Engine(ALL["TopK, with a memory down"], wc.InProcess(3))
    run(engine, range(2), BY_LAYER)
    before = memories(engine)
    average(engine, gradients(2, BY_LAYER), BY_LAYER)
    engine.advance(finite=False)
    assert same_bits(memories(engine), before)
    assert engine.step == 3


def test_what_a_failed_step_averaged_is_forgotten_even_if_the_next_one_has_other_segments() -> None:
    engine, straight = (wc.Engine(wc.TopK(0.2, down=wc.TopK(0.3)), wc.InProcess(3)) for _ in range(2))
    run(engine, range(1), BY_BUCKET)
    run(straight, range(1), BY_BUCKET)
    values = gradients(1, BY_BUCKET)
    values[0][0][0] = np.nan
    engine.average(BY_BUCKET[:1], [[row[0]] for row in values])
    engine.forget()
    assert same_bits(run(engine, range(1, 3), BY_LAYER), run(straight, range(1, 3), BY_LAYER))
    assert same_bits(engine.state_dict(), straight.state_dict())


FOLLOWING = sorted(name for name, method in ALL.items() if method.follows_scale and "estimates" not in name)
"""The paper's scale has an epsilon, in the units of the gradient: it follows, but not bit for bit."""


def of_piece(engine: wc.Engine | None, piece: str) -> list[Any]:
    """All that the engine keeps of a piece."""
    if engine is None:
        return []
    stores = [engine._common, engine._squares, *(store for mine in engine._own for store in mine.values())]
    return [*(np.array(store.get(piece, "nothing")).tolist() for store in stores), *of_piece(engine._down, piece)]


@pytest.mark.parametrize("segments", [BY_LAYER, BY_BUCKET, WHOLE], ids=["layer", "bucket", "model"])
@pytest.mark.parametrize("name", ALL)
def test_an_estimate_that_no_optimizer_sees_changes_no_memory(name: str, segments: list[wc.Segment]) -> None:
    """Piece b is unused before its first use, too. A checkpoint can be loaded after any step."""
    engine = wc.Engine(ALL[name], wc.InProcess(3), seed=4)
    for step, unused in enumerate([{"b"}, {"b"}, set(), {"b"}, {"a", "b"}, set()]):
        masks = [
            np.concatenate([np.full(piece.size, piece.name not in unused) for piece in segment.pieces])
            for segment in segments
        ]
        values = [[one * mask for one, mask in zip(row, masks, strict=True)] for row in gradients(step, segments)]
        restored = wc.Engine(ALL[name], wc.InProcess(3))
        restored.load_state_dict(engine.state_dict())
        before = {piece: of_piece(engine, piece) for piece in unused}
        for one in (engine, restored):
            one.estimates(segments, values, parameters_of(segments), unused=unused)
            one.advance()
        assert {piece: of_piece(engine, piece) for piece in unused} == before, step
        assert same_bits(restored.state_dict(), engine.state_dict())


@pytest.mark.parametrize("name", ALL)
def test_by_layer_other_pieces_are_averaged_as_without_the_unused_one(name: str) -> None:
    engines = [wc.Engine(ALL[name], wc.InProcess(3), seed=4) for _ in range(2)]
    for step, segments in enumerate([BY_LAYER, [BY_LAYER[0], BY_LAYER[2]], BY_LAYER]):
        values = gradients(step, BY_LAYER)
        unused = {"b"} if len(segments) == 2 else set()
        zeroed = [[one * (i != 1 or not unused) for i, one in enumerate(row)] for row in values]
        found = engines[0].estimates(BY_LAYER, zeroed, parameters_of(BY_LAYER), unused=unused)
        expected = average(engines[1], gradients(step, segments), segments)
        for segment, estimate in zip(BY_LAYER, found, strict=True):
            if segment in segments:
                assert same_bits(_dense(estimate, segment), expected[segments.index(segment)])
        for engine in engines:
            engine.advance()
    assert same_bits(engines[0].state_dict(), engines[1].state_dict())


@pytest.mark.parametrize("name", [*FOLLOWING, "IntDIANA, by estimates"])
def test_rescaled_memories_continue_in_the_units_of_the_new_gradients(name: str) -> None:
    """A power of two changes no digit."""
    factor = 0.25
    plain, scaled = (wc.Engine(ALL[name], wc.InProcess(3)) for _ in range(2))
    assert same_bits(run(plain, range(3)), run(scaled, range(3)))
    scaled.rescale(factor)
    for step in range(3, 6):
        values = gradients(step, BY_LAYER)
        expected = average(plain, values, BY_LAYER)
        found = average(scaled, [[factor * one for one in row] for row in values], BY_LAYER)
        if name in FOLLOWING:
            assert same_bits([one / factor for one in found], expected)
        else:
            assert [one / factor for one in found] == [pytest.approx(one, abs=0.2) for one in expected]
        plain.advance()
        scaled.advance()


@pytest.mark.parametrize("factor", [0.0, -2.0, np.inf, np.nan])
def test_memories_are_rescaled_by_a_positive_finite_factor(factor: float) -> None:
    with pytest.raises(ValueError, match="positive finite factor"):
        wc.Engine(wc.DIANA(), wc.InProcess(3)).rescale(factor)


def test_a_batch_of_segments_takes_no_more_rounds_than_one() -> None:
    for method, rounds in ((wc.DIANA(), 2), (wc.TopK(0.1), 2), (wc.PowerSGD(1), 4)):
        engine = wc.Engine(method, wc.InProcess(3))
        run(engine, range(1), BY_LAYER)
        assert engine.aggregator.traffic.rounds == rounds


def test_the_random_numbers_depend_on_the_seed_and_on_the_tensors_name() -> None:
    """Equal numbers would give all trainings, and all layers of one size, the same errors."""
    values = [[np.full(50, 0.3)]]

    def drawn(seed: int, name: str) -> bytes:
        return wc.Engine(wc.TernGrad(), wc.InProcess(1), seed=seed).average([segment_of(name)], values)[0].tobytes()

    def segment_of(name: str) -> wc.Segment:
        return wc.Segment((wc.Piece(name, (50,)),))

    values[0][0][0] = 1.0  # the maximum: the others are drawn
    assert drawn(1, "a") == drawn(1, "a")
    assert len({drawn(seed, name) for seed in (1, 2) for name in ("a", "b")}) == 4


def test_the_way_down_has_other_random_numbers_in_each_step() -> None:
    engine = wc.Engine(wc.Identity(down=wc.TernGrad()), wc.InProcess(1))
    value = np.full(50, 0.3)
    value[0] = 1.0
    found = set()
    for _ in range(4):
        found.add(engine.average([wc.Segment((wc.Piece("a", (50,)),))], [[value]])[0].tobytes())
        engine.advance()
    assert len(found) == 4


def test_the_way_down_is_compressed_identically_at_all_workers() -> None:
    """The way up loses nothing, so the result is Q_M of the mean, with the same randomness at every worker."""
    engines = [wc.Engine(wc.Identity(down=wc.QSGD(3)), wc.InProcess(workers), seed=9) for workers in (1, 3)]
    mean = gradients(0, WHOLE, 1)
    alone = engines[0].average(WHOLE, mean)
    together = engines[1].average(WHOLE, mean * 3)
    assert np.allclose(alone[0], together[0])
    assert len(np.unique(np.round(np.abs(alone[0]), 9))) <= 4


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_may_come_in_parts(name: str) -> None:
    """DDP has one part for each parameter."""
    flat, parted = (wc.Engine(ALL[name], wc.InProcess(3), seed=4) for _ in range(2))
    ends = np.cumsum([piece.size for piece in PIECES])[:-1]
    for step in range(4):
        values = gradients(step, WHOLE)
        before = [row[0].copy() for row in values]
        parts = [[[part.copy() for part in np.split(row[0], ends)]] for row in values]
        assert same_bits(average(parted, parts, WHOLE), average(flat, values, WHOLE))
        assert same_bits([row[0] for row in values], before), "a gradient is the caller's"
        flat.advance()
        parted.advance()
    assert same_bits(parted.state_dict(), flat.state_dict())


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (np.arange(4), "worker 1's gradient of 'x' is int64: give float32 or float64"),
        (np.zeros(4, np.float16), "is float16: give float32 or float64"),
        (np.zeros(3), "worker 1's gradient of 'x' has 3 values, not 4"),
        ([np.zeros(4), np.zeros(1)], "has 5 values, not 4"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused_before_anything_is_sent(gradient: Any, text: str) -> None:
    engine = wc.Engine(wc.Identity(), wc.InProcess(2))
    with pytest.raises(ValueError, match=text):
        engine.average([wc.Segment((wc.Piece("x", (4,)),))], [[np.zeros(4)], [gradient]])
    assert engine.aggregator.traffic.rounds == 0
