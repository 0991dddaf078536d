"""Sets up bmv2 and the vendor's model of a Tofino, where they are installed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bmv2_tests.bmv2_harness import Bmv2Harness
    from bmv2_tests.tna_interpreter.switch import Switch
    from bmv2_tests.tofino_model.model_switch import ModelSwitch

MODEL_TIMEOUT_S = 3600
"""Time limit of a test on the vendor's model of a Tofino; the first one compiles the program."""


@pytest.fixture(scope="session")
def bmv2() -> None:
    """Skips where bmv2 cannot run, with the reason and what to install."""
    from wiresum_lab.namespaces.bmv2 import bmv2_missing
    from wiresum_lab.namespaces.star import StarError, check_prerequisites

    try:
        check_prerequisites()
    except StarError as error:
        pytest.skip(f"not tested on bmv2: {error}")
    if missing := bmv2_missing():
        pytest.skip(f"not tested on bmv2: {missing}")


@pytest.fixture(scope="module", params=[1, 2], ids=["tofino1", "tofino2"])
def generation(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def switch(generation: int) -> Switch:
    """An interpreted Tofino."""
    from bmv2_tests.tna_interpreter.switch import Switch
    from bmv2_tests.tofino_network import MAIN

    return Switch(MAIN, generation=generation)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tofino_generation" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(MODEL_TIMEOUT_S))


@pytest.fixture(scope="session", params=[1, 2], ids=["tofino1", "tofino2"])
def tofino_generation(request: pytest.FixtureRequest) -> int:
    """Skips where the vendor's model or the compiler is missing, and names it."""
    from bmv2_tests.tofino_model.model_switch import missing

    generation = int(request.param)
    if absent := missing(generation):
        pytest.skip(f"not tested on the model of Tofino {generation}: {absent}")
    return generation


@pytest.fixture(scope="session")
def tofino_model(tofino_generation: int) -> Iterator[ModelSwitch]:
    """One chip for all tests; each test uses cells of its own."""
    from bmv2_tests.tofino_model import assembled
    from bmv2_tests.tofino_model.model_switch import ModelSwitch

    switch = ModelSwitch(tofino_generation, assembled.program(tofino_generation))
    yield switch
    switch.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports all skips by the fixture above under one line, so that pytest shows them as one."""
    report = yield
    fixtures = {"bmv2", "tofino_generation"} & set(getattr(item, "fixturenames", ()))
    if report.skipped and fixtures and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="module")
def harness(bmv2: None) -> Iterator[Bmv2Harness]:
    """One switch for all tests of a file; each test has a job and slots of its own."""
    from bmv2_tests.bmv2_harness import Bmv2Harness

    harness = Bmv2Harness()
    yield harness
    harness.close()
