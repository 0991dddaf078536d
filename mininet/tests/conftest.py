"""Requirements of tests with Mininet: Mininet, root, and the kinds of switch."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from wiresum_lab.absent import leave_one_for_each_reason
from wiresum_lab.namespaces.bmv2 import bmv2_missing
from wiresum_mininet import mininet_package
from wiresum_mininet.topology import BMV2, KINDS

FOLDER = Path(__file__).parent


@functools.cache
def mininet_absent() -> str:
    if os.geteuid() != 0:
        return "not run in Mininet, which needs root"
    return f"not run in Mininet: {missing}" if (missing := mininet_package.missing()) else ""


def why_not(item: pytest.Item) -> str:
    uses = getattr(item, "fixturenames", ()) if item.path.is_relative_to(FOLDER) else ()
    if "mininet_here" in uses and (absent := mininet_absent()):
        return absent
    needs_bmv2 = "bmv2_here" in uses or ("kind" in uses and item.callspec.params["kind"] == BMV2)
    return f"not run on bmv2 in Mininet: {missing}" if needs_bmv2 and (missing := bmv2_missing()) else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_one_for_each_reason(items, why_not)


@pytest.fixture(scope="session")
def mininet_here() -> None:
    """A test that uses this is skipped where Mininet cannot run."""


@pytest.fixture(scope="session")
def bmv2_here() -> None:
    """A test that uses this is skipped where bmv2 is not installed."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, mininet_here: None) -> str:
    """Each kind of switch; a test with one that is not installed is skipped."""
    return str(request.param)
