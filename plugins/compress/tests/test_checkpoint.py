"""Checkpoints: training continues bit for bit, and a state is refused by an engine that it does not fit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wiresum.compress import (
    DIANA,
    QSGD,
    Compressor,
    Engine,
    GTopK,
    Identity,
    InProcess,
    IntDIANA,
    IntSGD,
    Piece,
    PowerSGD,
    QuantisedRandK,
    Quantiser,
    RandK,
    Segment,
    Shift,
    TopK,
    WarmUp,
)
from wiresum.compress.aggregator import Bytes
from wiresum.compress.checkpoint import described

from .test_engine import ALL, BY_BUCKET, BY_LAYER, PIECES, WHOLE, gradients, run, same_bits

State = dict[str, Any]


def trained(method: Compressor, steps: int = 3, *, workers: int = 3, segments: list[Segment] = BY_LAYER) -> Engine:
    engine = Engine(method, InProcess(workers), seed=4)
    run(engine, range(steps), segments)
    return engine


@pytest.mark.parametrize("segments", [BY_LAYER, BY_BUCKET, WHOLE], ids=["layer", "bucket", "model"])
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_continues_bit_for_bit(name: str, segments: list[Segment]) -> None:
    expected = run(Engine(ALL[name], InProcess(3), seed=4), range(6), segments)
    first = trained(ALL[name], segments=segments)
    state = pickle.dumps(first.state_dict())
    for at_once in range(2):
        handed_out = first.state_dict() if at_once else pickle.loads(state)
        second = Engine(ALL[name], InProcess(3))
        second.load_state_dict(handed_out)
        if at_once:
            run(first, range(3, 5), segments)  # going on does not change the state handed out before
        assert same_bits(second.state_dict(), pickle.loads(state))
        assert same_bits(run(second, range(3, 6), segments), expected[3:])
    third = Engine(ALL[name], InProcess(3))
    third.load_state_dict(handed_out)  # going on from a loaded state does not change it either
    assert same_bits(run(third, range(3, 6), segments), expected[3:])


def test_a_state_from_before_the_first_step_can_be_loaded() -> None:
    for name, method in ALL.items():
        engine = Engine(method, InProcess(3))
        engine.load_state_dict(Engine(method, InProcess(3), seed=4).state_dict())
        assert same_bits(run(engine, range(2)), run(Engine(method, InProcess(3), seed=4), range(2))), name


def refused(state: Any, engine: Engine, *texts: str, **options: Any) -> None:
    """The state is refused with an error that contains all the texts, and the engine is unchanged."""
    before = engine.state_dict()
    with pytest.raises(ValueError, match="nothing of it was loaded") as error:
        engine.load_state_dict(state, **options)
    assert all(text in str(error.value) for text in texts), str(error.value)
    assert same_bits(engine.state_dict(), before)


@pytest.mark.parametrize(
    ("there", "here", "text"),
    [
        (TopK(0.1), IntDIANA(8), "method is TopK in the state and IntDIANA here"),
        (DIANA(), DIANA(norm="inf"), "method.norm is '2' in the state and 'inf' here"),
        (TopK(0.1), TopK(WarmUp(0.1, 2)), "method.ratio is 0.1 in the state and WarmUp here"),
        (GTopK(WarmUp(0.1, 2)), GTopK(WarmUp(0.1, 3)), "method.ratio.steps is 2 in the state and 3 here"),
        (QSGD(), Quantiser(15, "2", 512, bits=8), "method is QSGD in the state and Quantiser here"),
        (TopK(0.1), TopK(0.1, memory="diana"), "method.memory is ErrorFeedback in the state and Shift here"),
        (RandK(0.1, memory=Shift(0.1)), RandK(0.1, memory="diana"), "method.memory.alpha is 0.1 in the state and None"),
        (TopK(0.1, down=QSGD()), TopK(0.1), "method.down is QSGD in the state and None here"),
        (QuantisedRandK(0.3, QSGD()), QuantisedRandK(0.3, QSGD(3)), "method.quantiser.levels is 15"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_state_of_another_method_or_of_other_options_is_refused(
    there: Compressor, here: Compressor, text: str
) -> None:
    refused(trained(there).state_dict(), trained(here), text)
    refused(trained(there).state_dict(), Engine(here, InProcess(3)), text)


def test_the_name_of_a_memory_is_the_memory() -> None:
    assert described(TopK(0.1, memory="diana")) == described(TopK(0.1, memory=Shift()))
    Engine(TopK(0.1, memory=Shift()), InProcess(3)).load_state_dict(trained(TopK(0.1, memory="diana")).state_dict())


class Scaled(Identity):
    """A compressor that is no dataclass: its options are its attributes."""

    def __init__(self, factor: Any) -> None:
        object.__setattr__(self, "factor", factor)


def test_a_users_compressor_is_described_by_its_attributes() -> None:
    text = "method.factor is [1.0, 2.0] in the state and 3.0 here"
    refused(trained(Scaled(np.array([1.0, 2.0]))).state_dict(), trained(Scaled(np.float32(3))), text)


def test_a_users_compressor_may_contain_itself() -> None:
    def made(number: int) -> Scaled:
        part = SimpleNamespace(number=number)
        method = Scaled([part, {"again": part}])
        part.owner, part.whole = method, method.factor
        return method

    here = Engine(made(1), InProcess(3))
    here.load_state_dict(trained(made(1)).state_dict())
    refused(trained(made(2)).state_dict(), here, "method.factor is [", "'number': 2", "'number': 1")
    in_two_places = Scaled([number := SimpleNamespace(number=1), number])
    assert described(in_two_places)["factor"] == [{"type": "SimpleNamespace", "number": 1}] * 2


def of_one_worker(worker: int, workers: int = 3, method: Compressor = DIANA()) -> Engine:  # noqa: B008
    """An engine as in a process group: one real worker, with zeros in place of the others."""

    class Alone(InProcess):
        def __init__(self) -> None:
            super().__init__(workers)
            self.local = (worker,)

    return Engine(method, Alone())


def test_a_state_of_another_worker_is_refused() -> None:
    engine = of_one_worker(2)
    engine.average(BY_LAYER, gradients(0, BY_LAYER, 1))
    engine.advance()
    refused(engine.state_dict(), of_one_worker(0), "worker is [2] in the state and [0] here")
    of_one_worker(2).load_state_dict(engine.state_dict())


def test_a_state_of_another_number_of_workers_is_refused_unless_allowed() -> None:
    state = trained(DIANA()).state_dict()
    fewer = Engine(DIANA(), InProcess(2))
    refused(state, fewer, "it is of 3 workers, and here are 2", "world_size_changed=True", "synchronize()")
    refused(
        state,
        Engine(DIANA(), InProcess(3)),
        "it is of 3 workers, as many as here, despite world_size_changed",
        world_size_changed=True,
    )


@pytest.mark.parametrize(
    ("piece", "dtype", "text"),
    [
        (Piece("b", (9,)), np.float64, "'b' is [9] of float64 in the state and [7] of float64 here"),
        (Piece("a", (5, 6)), np.float64, "'a' is [5, 6] of float64 in the state and [6, 5] of float64 here"),
        (Piece("c", (4, 4)), np.float32, "'c' is [4, 4] of float32 in the state and [4, 4] of float64 here"),
    ],
)
def test_a_state_of_other_tensors_is_refused_at_once_or_with_the_first_gradient(
    piece: Piece, dtype: Any, text: str
) -> None:
    other = Engine(TopK(0.2), InProcess(3))
    other.average([Segment((piece,))], [[np.ones(piece.size, dtype)]] * 3)
    other.advance()
    refused(other.state_dict(), trained(TopK(0.2)), text)
    fresh = Engine(TopK(0.2), InProcess(3))
    fresh.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=f"'{piece.name}' is .*, and was .* before"):
        run(fresh, range(1))
    assert fresh.aggregator.traffic.rounds == 0


def changed(change: Callable[[State], object], method: Compressor = DIANA()) -> State:  # noqa: B008
    state = copy.deepcopy(trained(method).state_dict())
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: state.pop("common"), "the state lacks 'common'"),
        (lambda state: state.update(motion={}), "the state has in addition 'motion'"),
        (lambda state: state["common"].pop("b"), "common lacks 'b'"),
        (lambda state: state["own"].pop(), "own is of 2 workers, not of 3"),
        (lambda state: state["own"][1].clear(), "own[1] lacks 'shift'"),
        (lambda state: state["own"][2]["shift"].pop("a"), "own[2].shift lacks 'a'"),
        (lambda state: state["own"][2]["shift"].update(a=np.zeros(29)), "own[2].shift.a has 29 values of float64"),
        (lambda state: state["own"][2]["shift"].update(a=np.zeros(30, "f4")), "has 30 values of float32, and its"),
        (lambda state: state["own"][2]["shift"].update(a=np.zeros((6, 5))), "own[2].shift.a is no flat array"),
        (lambda state: state["own"][2]["shift"].update(a=[0.0] * 30), "own[2].shift.a is no flat array"),
        (lambda state: state["own"][0].update(shift=None), "own[0].shift is NoneType"),
        (lambda state: state["states"].pop(0), "states lacks 'a'"),
        (lambda state: state["squares"].update(a=1.0), "squares has in addition 'a'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_incomplete_state_is_refused(change: Callable[[State], object], text: str) -> None:
    refused(changed(change), trained(DIANA(), 1), text)
    refused(changed(change), Engine(DIANA(), InProcess(3)), text)


def test_lengths_that_are_missing_are_refused() -> None:
    method = IntSGD(scale="estimate")
    refused(changed(lambda state: state["squares"].pop("b"), method), Engine(method, InProcess(3)), "squares lacks 'b'")


def test_a_bad_state_for_the_way_down_is_refused_before_anything_changes() -> None:
    method = TopK(0.2, down=TopK(0.3))
    state = changed(lambda state: state["down"]["own"][0]["residual"].pop("c"), method)
    refused(state, trained(method, 1), "own[0].residual lacks 'c'")


def test_long_lists_of_names_are_cut() -> None:
    method, segments = TopK(0.5), [Segment((Piece(f"layer{at}", (4,)),)) for at in range(9)]
    engine = Engine(method, InProcess(1))
    engine.average(segments, [[np.ones(4)] * 9])
    engine.advance()
    state = engine.state_dict()
    state["own"][0]["residual"] = {}
    refused(state, Engine(method, InProcess(1)), "lacks 'layer0', 'layer1', 'layer2', 'layer3', 'layer4' and 4 more")


@pytest.mark.parametrize("version", [0, 3, 5])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"has version {version}, and only 4 can be loaded: finish with"):
        Engine(DIANA(), InProcess(3)).load_state_dict({"version": version, "step": 1})


@pytest.mark.parametrize("state", [None, [], 7, "state"])
def test_an_object_that_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not a compression state"):
        Engine(DIANA(), InProcess(3)).load_state_dict(state)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("name", ALL)
def test_with_more_or_fewer_workers_own_memories_stay_and_the_common_one_is_their_mean(name: str, workers: int) -> None:
    """New workers start with zero memories, state that is equal at all workers is kept, and training goes on from
    there."""
    before = trained(ALL[name], 5).state_dict()
    engine = Engine(ALL[name], InProcess(workers))
    engine.load_state_dict(before, world_size_changed=True)
    for attempt in (engine.state_dict, lambda: run(engine, range(1))):
        with pytest.raises(RuntimeError, match=r"another number of workers: call synchronize\(\) at all workers first"):
            attempt()
    assert engine.synchronize("told") == "told"
    after = engine.state_dict()
    assert after["world_size"] == workers and after["step"] == 5 and after["seed"] == 4
    assert same_bits([after[part] for part in ("states", "squares", "tensors")],
                     [before[part] for part in ("states", "squares", "tensors")])  # fmt: skip
    assert same_bits(after["own"][:3], before["own"][:workers])
    assert all(not vector.any() for mine in after["own"][3:] for store in mine.values() for vector in store.values())
    for piece, common in after["common"].items():
        assert common == pytest.approx(np.mean([mine["shift"][piece] for mine in after["own"]], axis=0), abs=1e-15)
    assert bool(after["common"]) == bool(before["common"])
    values = gradients(5, BY_LAYER, workers)
    estimate = engine.average(BY_LAYER, values, {piece.name: np.linspace(1, 2, piece.size) for piece in PIECES})[0]
    assert np.isfinite(estimate).all()


def test_a_worker_that_lost_its_state_gets_consistent_memories() -> None:
    for method in (DIANA(), PowerSGD(1), TopK(0.2, down=TopK(0.3))):
        before = trained(method, 5).state_dict()
        state = copy.deepcopy(before)
        for store in state["own"][2].values():
            for vector in store.values():
                vector[...] = 0
        engine = Engine(method, InProcess(3))
        engine.load_state_dict(state)
        engine.synchronize()
        after = engine.state_dict()
        for piece, common in after["common"].items():
            own = [mine["shift"][piece] for mine in after["own"]]
            assert common == pytest.approx(np.mean(own, axis=0), abs=1e-15)
        assert same_bits({**after, "common": None}, {**state, "common": None})


class Gathering(InProcess):
    """The first worker may be another process's, whose parcel is there."""

    first: Bytes | None = None
    sent: Bytes

    def gather(self, contributions: Sequence[Bytes], *, sizes_equal: bool = True) -> list[Bytes]:
        self.sent = contributions[0]
        return super().gather(
            [self.sent if self.first is None else self.first, *contributions[1:]], sizes_equal=sizes_equal
        )


def test_all_take_the_step_of_the_worker_that_is_furthest() -> None:
    ahead, behind = (Engine(TopK(0.2), Gathering(3), seed=4) for _ in range(2))
    run(ahead, range(5))
    run(behind, range(2))
    ahead.synchronize("ahead")
    behind.aggregator.first = ahead.aggregator.sent  # type: ignore[attr-defined]
    assert behind.synchronize("behind") == "ahead"
    assert behind.state_dict()["step"] == 5
