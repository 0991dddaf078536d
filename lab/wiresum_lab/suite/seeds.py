"""Options that select the seeds of simulations and of other random tests."""

from __future__ import annotations

import os

import pytest

SEEDS_DEFAULT = {
    "seed": 300,
    "sparse_seed": 40,
    "scattered_seed": 30,
    "mixed_seed": 100,
    "fault_seed": 100,
    "return_seed": 100,
    "tree_seed": 200,
    "tree_fault_seed": 50,
    "move_seed": 200,
    "move_fault_seed": 100,
    "shared_seed": 100,
    "long_seed": 60,
    "long_fault_seed": 60,
    "wrong_bits_seed": 100,
    "life_seed": 360,
    "nccl_seed": 100,
}
"""By the name of a test's argument. `make test` runs the first quarter, `make test-nightly` all."""
SLOW = ("nccl_seed",)
"""`make test-all` runs all of these."""
COMMIT_VARIABLE = "SIMULATION_SEED"
"""Says a seed that no run had before: .ci/run derives it from the commit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, action="append", help="run each simulation with this seed (may be repeated)")
    group.addoption(
        "--seeds",
        type=int,
        default=int(os.environ.get("WIRESUM_SIM_SEEDS", "0")),
        help="run each simulation with so many seeds (default: WIRESUM_SIM_SEEDS, or the tier's)",
    )
    group.addoption("--first-seed", type=int, default=0, help="the first of so many seeds (default: 0)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that name their seeds themselves keep them."""
    own = {name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
    for name in SEEDS_DEFAULT:
        if name in metafunc.fixturenames and name not in own:
            seeds = metafunc.config.getoption("--seed", default=None)
            first = metafunc.config.getoption("--first-seed", default=0)
            count = metafunc.config.getoption("--seeds", default=0)
            metafunc.parametrize(name, seeds or range(first, first + count) or seeds_of_a_tier(name))


def seeds_of_a_tier(name: str) -> list[object]:
    count, mark = SEEDS_DEFAULT[name], pytest.mark.slow if name in SLOW else pytest.mark.nightly
    of_commit = [int(text) for text in os.environ.get(COMMIT_VARIABLE, "").split()]
    quick = count // 4
    return [*range(quick), *of_commit, *(pytest.param(seed, marks=mark) for seed in range(quick, count))]
