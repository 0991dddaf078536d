"""Makes the modules of this folder and of the stars importable; sets up the bench with bmv2 where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "mininet/namespaces")]

if TYPE_CHECKING:
    from bench import Bench


@pytest.fixture(scope="session")
def bmv2() -> None:
    """Skips where bmv2 cannot run, and says why and what to install."""
    from bmv2_star import bmv2_missing
    from star import StarError, check_prerequisites

    try:
        check_prerequisites()
    except StarError as error:
        pytest.skip(f"not tested on bmv2: {error}")
    if missing := bmv2_missing():
        pytest.skip(f"not tested on bmv2: {missing}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """All that the fixture above skips is told in one line, as if it stood there."""
    report = yield
    if report.skipped and "bmv2" in getattr(item, "fixturenames", ()) and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="module")
def bench(bmv2: None) -> Iterator[Bench]:
    """One switch for all tests of a file; each has jobs and slots of its own."""
    from bench import Bench

    bench = Bench()
    yield bench
    bench.close()
