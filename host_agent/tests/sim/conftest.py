"""Options of the simulation: which seeds to run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests' own modules, and wiresum_sim beside them

SEEDS_DEFAULT = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, action="append", help="run the simulation with this seed (may be repeated)")
    group.addoption(
        "--seeds",
        type=int,
        default=int(os.environ.get("WIRESUM_SIM_SEEDS", SEEDS_DEFAULT)),
        help="run the simulation with seeds 0, 1, ... up to this many (default: WIRESUM_SIM_SEEDS or %(default)s)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seed", default=None)
        count = metafunc.config.getoption("--seeds", default=SEEDS_DEFAULT)
        metafunc.parametrize("seed", seeds or range(count))
