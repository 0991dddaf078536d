"""Options that select the simulation's seeds."""

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
}
"""By the name of a test's argument."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, action="append", help="run the simulation with this seed (may be repeated)")
    group.addoption(
        "--seeds",
        type=int,
        default=int(os.environ.get("WIRESUM_SIM_SEEDS", "0")),
        help="run each simulation with seeds 0, 1, ... up to this many (default: WIRESUM_SIM_SEEDS, or a number that "
        "takes seconds)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, default in SEEDS_DEFAULT.items():
        if name in metafunc.fixturenames:
            seeds = metafunc.config.getoption("--seed", default=None)
            count = metafunc.config.getoption("--seeds", default=0) or default
            metafunc.parametrize(name, seeds or range(count))
