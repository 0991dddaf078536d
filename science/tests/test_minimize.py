"""distributed_minimize: it follows its definition, in one process and in a group, and repeats itself bit for bit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from wiresum.compress import (
    DIANA,
    QSGD,
    Identity,
    InProcess,
    IntSGD,
    OwnScale,
    RandK,
)
from wiresum.convex import (
    L1,
    LSVRG,
    SAGA,
    Box,
    Estimator,
    Plain,
    Progress,
    distributed_minimize,
)
from wiresum_lab.patience import PATIENCE_S

from .problems import differing

PROBLEM = differing()
L = PROBLEM.worker_smoothness


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


@pytest.mark.parametrize("estimator", [Plain(), SAGA()], ids=repr)
def test_a_run_repeats_itself_bit_for_bit_and_another_seed_does_not(estimator: Estimator) -> None:
    def found(seed: int) -> list[float]:
        options: dict[str, Any] = {"step_size": 0.1, "steps": 20, "estimator": estimator, "seed": seed}
        return distributed_minimize(PROBLEM, DIANA(block=4), **options).x.tolist()

    assert found(3) == found(3) != found(4)


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


SAME: dict[str, Any] = {"method": OwnScale(QSGD()), "step_size": 0.1, "steps": 5, "estimator": LSVRG(2)}
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


def minimized_in_a_group(**at_worker_2: Any) -> list[Any]:
    """What each worker finds, or the text of its error."""
    workers = PROBLEM.workers
    there, said = threading.Barrier(workers, timeout=PATIENCE_S), [None] * workers

    def run(worker: int) -> Any:
        options = SAME | (at_worker_2 if worker == 2 else {})
        try:
            return distributed_minimize(PROBLEM, aggregator=Thread(worker, there, said), **options).x.tolist()
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(run, range(workers)))


def test_workers_of_a_group_get_the_bits_of_simulated_ones() -> None:
    assert minimized_in_a_group() == [distributed_minimize(PROBLEM, **SAME).x.tolist()] * PROBLEM.workers


@pytest.mark.parametrize("name", DIFFERENT)
def test_workers_of_a_group_whose_arguments_differ_all_raise_the_same_error(name: str) -> None:
    first, *others = minimized_in_a_group(**DIFFERENT[name])
    assert others == [first] * (PROBLEM.workers - 1)
    assert "must be the same at all ranks, and differ: " in first and f"{name} (ranks 0, 1, 3 have " in first
