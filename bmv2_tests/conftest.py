"""Sets up bmv2 and the vendor's model of a Tofino, where they are installed."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wiresum_lab.absent import leave_one_for_each_reason

if TYPE_CHECKING:
    from bmv2_tests.bmv2_harness import Bmv2Harness
    from bmv2_tests.tna_interpreter.switch import Switch
    from bmv2_tests.tofino_model.model_switch import ModelSwitch

FOLDER = Path(__file__).parent
MODEL_TIMEOUT_S = 3600
"""Time limit of a test on the vendor's model of a Tofino; the first one compiles the program."""


@functools.cache
def namespaces_absent() -> str:
    from wiresum_lab.namespaces.star import StarError, check_prerequisites

    try:
        check_prerequisites()
    except StarError as error:
        return str(error)
    return ""


@functools.cache
def bmv2_absent() -> str:
    from wiresum_lab.namespaces.bmv2 import bmv2_missing

    return f"not run on bmv2: {missing}" if (missing := namespaces_absent() or bmv2_missing()) else ""


@functools.cache
def model_absent(generation: int) -> str:
    from bmv2_tests.tofino_model.model_switch import missing

    return f"not run on the model of Tofino {generation}: {absent}" if (absent := missing(generation)) else ""


@functools.cache
def p4c_absent() -> str:
    from wiresum.compiled.compile_program import COMPILER, INSTALL

    return "" if shutil.which(COMPILER) else f"not compiled: {COMPILER} is not on PATH: {INSTALL}"


@functools.cache
def p4testgen_absent() -> str:
    from bmv2_tests import testgen

    return f"without new cases: {absent}" if (absent := testgen.missing()) else ""


CHECKS = {"namespaces": namespaces_absent, "bmv2": bmv2_absent, "p4c": p4c_absent, "further": p4testgen_absent}
"""By fixture, why the tests that use it cannot run here."""


def why_not(item: pytest.Item) -> str:
    uses = getattr(item, "fixturenames", ()) if item.path.is_relative_to(FOLDER) else ()
    if "tofino_generation" in uses:
        return model_absent(item.callspec.params["tofino_generation"])
    return next((absent for fixture, check in CHECKS.items() if fixture in uses and (absent := check())), "")


def pytest_itemcollected(item: pytest.Item) -> None:
    if "tofino_generation" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.nightly)
        item.add_marker(pytest.mark.timeout(MODEL_TIMEOUT_S))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_one_for_each_reason(items, why_not)


@pytest.fixture(scope="session")
def namespaces() -> None:
    """A test that uses this is skipped where no network namespaces can be made."""


@pytest.fixture(scope="session")
def bmv2() -> None:
    """A test that uses this is skipped where bmv2 cannot run."""


@pytest.fixture(scope="session")
def p4c() -> None:
    """A test that uses this is skipped where p4c is not installed."""


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


@pytest.fixture(scope="session", params=[1, 2], ids=["tofino1", "tofino2"])
def tofino_generation(request: pytest.FixtureRequest) -> int:
    """A test that uses this is skipped where the vendor's model or the compiler is missing."""
    number: int = request.param
    return number


@pytest.fixture(scope="session")
def tofino_model(tofino_generation: int) -> Iterator[ModelSwitch]:
    """One chip for all tests; each test uses cells of its own."""
    from bmv2_tests.tofino_model import assembled
    from bmv2_tests.tofino_model.model_switch import ModelSwitch

    switch = ModelSwitch(tofino_generation, assembled.program(tofino_generation))
    yield switch
    switch.close()


@pytest.fixture(scope="module")
def harness(bmv2: None) -> Iterator[Bmv2Harness]:
    """One switch for all tests of a file; each test has a job and slots of its own."""
    from bmv2_tests.bmv2_harness import Bmv2Harness

    harness = Bmv2Harness()
    yield harness
    harness.close()
