"""Requirements of tests with Mininet: Mininet, root, and the kinds of switch."""

from __future__ import annotations

import os
import shutil

import pytest

from wiresum_mininet import mininet_package


@pytest.fixture(scope="session")
def mininet_here() -> None:
    """Skips where Mininet cannot run, with the reason and what to install."""
    if os.geteuid() != 0:
        pytest.skip("not tested in Mininet, which needs root")
    if missing := mininet_package.missing():
        pytest.skip(f"not tested in Mininet: {missing}")


@pytest.fixture(params=["bmv2", "software"])
def kind(request: pytest.FixtureRequest, mininet_here: None) -> str:
    """Each kind of switch that is installed."""
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("not tested on bmv2 in Mininet: simple_switch_grpc is not on PATH; p4lang's packages have it")
    return str(request.param)
