"""distributed_minimize: every named method reaches the expected solution, and runs are repeatable bit for bit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from wiresum.compress import (
    DIANA,
    QSGD,
    Compressor,
    Identity,
    InProcess,
    IntDIANA,
    IntSGD,
    OwnScale,
    QuantisedRandK,
    Quantiser,
    RandK,
    Shift,
    TopK,
)
from wiresum.convex import (
    L1,
    LSVRG,
    SAGA,
    Box,
    Estimator,
    Plain,
    Progress,
    decreasing_steps,
    diana_rule,
    distributed_minimize,
)

from .problems import differing

PROBLEM = differing()
SOLUTION = PROBLEM.solution()


def error(x: np.ndarray) -> float:
    return float(np.sum((x - SOLUTION) ** 2) / np.sum(SOLUTION**2))


@dataclass(frozen=True)
class Case:
    method: Compressor
    step_size: float
    steps: int
    estimator: Estimator | None = None


L = PROBLEM.worker_smoothness
REACH_THE_SOLUTION = {
    "gradient descent": Case(Identity(), 1 / L, 500),
    "DIANA": Case(DIANA(block=4), 1 / (3 * L), 1200),
    "quantised RandK of differences": Case(QuantisedRandK(0.5), 1 / (6 * L), 2200),
    "IntDIANA": Case(IntDIANA(), 1 / L, 500),
    "EF21 with Top-k": Case(TopK(0.25, memory="ef21"), 1 / (4 * L), 1800),
    "ISEGA": Case(RandK(0.25, memory="diana"), 1 / (4 * L), 1800),
    "VR-DIANA, L-SVRG": Case(Quantiser(7, memory="diana"), 1 / (4 * PROBLEM.row_smoothness), 2500, LSVRG()),
    "VR-DIANA, SAGA": Case(Quantiser(7, memory="diana"), 1 / (4 * PROBLEM.row_smoothness), 2500, SAGA()),
    "ISAGA": Case(RandK(0.25, memory="diana"), 1 / (8 * PROBLEM.row_smoothness), 5000, SAGA()),
}
STALL = {
    "QSGD": Case(QSGD(1), 1 / (3 * L), 1200),
    "IBCD where workers differ": Case(RandK(0.25), 1 / (4 * L), 1200),
    "minibatches without variance reduction": Case(DIANA(block=4), 1 / (3 * L), 1200, Plain(2)),
}


def minimize(case: Case, **options: object) -> np.ndarray:
    result = distributed_minimize(
        PROBLEM, case.method, step_size=case.step_size, steps=case.steps, estimator=case.estimator, **options
    )  # type: ignore[arg-type]
    return result.x


@pytest.mark.slow
@pytest.mark.parametrize("name", REACH_THE_SOLUTION)
def test_each_method_reaches_the_solution(name: str) -> None:
    assert error(minimize(REACH_THE_SOLUTION[name])) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", STALL)
def test_methods_stall_where_theory_says_so(name: str) -> None:
    assert error(minimize(STALL[name])) > 1e-6


@pytest.mark.slow
def test_decreasing_steps_go_on_where_a_constant_step_stalls() -> None:
    """With minibatches the error falls as 1/k: to a quarter from a quarter of the steps to the end."""
    omega = DIANA(norm="inf").omega(8, 4)
    assert omega is not None
    constants = {"smoothness": L, "strong_convexity": PROBLEM.strong_convexity, "omega": omega, "workers": 4}
    rules = {"constant": diana_rule(**constants).step_size, "decreasing": decreasing_steps(**constants)}
    falls = {}
    for name, step_size in rules.items():
        errors: list[float] = []
        distributed_minimize(
            PROBLEM, DIANA(norm="inf", memory=Shift(diana_rule(**constants).alpha)), step_size=step_size, steps=2400,
            estimator=Plain(2), observe=lambda progress, kept=errors: kept.append(error(progress.x)),
        )  # fmt: skip
        falls[name] = float(np.mean(errors[450:750]) / np.mean(errors[1800:]))
    assert 0.5 < falls["constant"] < 2
    assert 2 < falls["decreasing"] < 8


@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), lambda step: 1.0 - step])
def test_a_step_size_that_is_not_positive_is_refused(step_size: Any) -> None:
    with pytest.raises(ValueError, match=r"the step size of step [01] is .*positive and finite"):
        distributed_minimize(PROBLEM, Identity(), step_size=step_size, steps=2)


def test_ibcd_reaches_a_solution_that_all_workers_share() -> None:
    """All workers have the same rows, so grad f_i(x*) = 0 at each of them."""
    alone = differing(1)
    shared = type(alone)(np.tile(alone._signed[0], (4, 1)), np.ones(4 * 48), workers=4, l2=alone.l2)
    solution = shared.solution()
    result = distributed_minimize(shared, RandK(0.25), step_size=1 / (4 * shared.smoothness), steps=1500)
    assert np.sum((result.x - solution) ** 2) < 1e-10 * np.sum(solution**2)


@pytest.mark.parametrize("name", ["DIANA", "IntDIANA", "VR-DIANA, SAGA"])
def test_a_run_repeats_itself_bit_for_bit_and_another_seed_does_not(name: str) -> None:
    case = REACH_THE_SOLUTION[name]
    short = Case(case.method, case.step_size, 20, case.estimator)
    assert minimize(short, seed=3).tobytes() == minimize(short, seed=3).tobytes()
    assert minimize(short, seed=3).tobytes() != minimize(short, seed=4).tobytes()


def test_proximal_terms_are_solved() -> None:
    """Optimality of l1: |grad f_j| <= weight where x_j = 0, and = -weight sign(x_j) elsewhere."""
    x = distributed_minimize(PROBLEM, DIANA(block=4), step_size=1 / (3 * L), steps=1500, proximal=L1(0.15)).x
    gradient = np.mean([PROBLEM.gradient(worker, x) for worker in range(4)], axis=0)
    zero = x == 0
    assert 0 < zero.sum() < 8
    assert (np.abs(gradient[zero]) <= 0.15 + 1e-6).all()
    assert gradient[~zero] == pytest.approx(-0.15 * np.sign(x[~zero]), abs=1e-6)
    assert distributed_minimize(PROBLEM, DIANA(), step_size=0.1, steps=50, proximal=Box(-0.1, 0.1)).x.max() <= 0.1


def test_momentum_follows_the_papers_algorithm() -> None:
    x, velocity = np.zeros(8), np.zeros(8)
    for _ in range(5):
        velocity = 0.5 * velocity + np.mean([PROBLEM.gradient(worker, x) for worker in range(4)], axis=0)
        x = x - 0.1 * velocity
    ours = distributed_minimize(PROBLEM, Identity(), step_size=0.1, steps=5, momentum=0.5).x
    assert ours == pytest.approx(x, rel=1e-12)


def test_an_observer_sees_every_step_and_may_end_the_run() -> None:
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return progress.step == 3

    result = distributed_minimize(PROBLEM, IntSGD(8), step_size=0.1, steps=10, observe=observe)
    assert [progress.step for progress in seen] == [0, 1, 2, 3]
    assert result.steps == 3
    assert result.sent_bytes == seen[-1].sent_bytes == 3 * (12 + 8)
    assert result.dense_bytes == 3 * 8 * 4


def test_a_group_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="dealt to 4 workers, and the group has 3"):
        distributed_minimize(PROBLEM, DIANA(), step_size=0.1, steps=1, aggregator=InProcess(3))


class Thread(InProcess):
    """One worker of several, each in its own thread."""

    def __init__(self, worker: int, there: threading.Barrier, said: list[Any]) -> None:
        super().__init__(len(said))
        self.local = (worker,)
        self._there, self._said = there, said

    def _gather(self, contributions: Any) -> Any:
        self._said[self.local[0]] = contributions[0].copy()
        self._there.wait()
        said = list(self._said)
        self._there.wait()
        return said


DIFFERENT: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "step_size": {"step_size": lambda step: 0.2},
    "steps": {"steps": 6},
    "momentum": {"momentum": 0.5},
    "start": {"start": np.ones(PROBLEM.dimension)},
    "estimator.type": {"estimator": SAGA()},
    "proximal": {"proximal": L1(0.1)},
    "method.quantiser.levels": {"method": OwnScale(QSGD(3))},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_workers_of_a_group_whose_arguments_differ_all_raise_the_same_error(name: str) -> None:
    workers = PROBLEM.workers
    there, said = threading.Barrier(workers, timeout=30), [None] * workers

    def run(worker: int) -> str:
        options = {"method": OwnScale(QSGD()), "step_size": 0.1, "steps": 5}
        options |= DIFFERENT[name] if worker == 2 else {}
        try:
            distributed_minimize(PROBLEM, aggregator=Thread(worker, there, said), **options)  # type: ignore[arg-type]
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(workers) as threads:
        first, *others = threads.map(run, range(workers))
    assert others == [first] * (workers - 1)
    assert "must be the same at all ranks, and differ: " in first and f"{name} (ranks 0, 1, 3 have " in first


@pytest.mark.slow
def test_the_rate_of_a_shift_can_be_fixed() -> None:
    result = distributed_minimize(PROBLEM, QSGD(1, memory=Shift(0.2)), step_size=1 / (3 * L), steps=1200)
    assert error(result.x) < 1e-8
