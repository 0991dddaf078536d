"""The test vectors against the Tofino program, its P4 source interpreted: both passes, and each copy's bytes."""

from __future__ import annotations

import pytest

from tna_interpreter.switch import Switch
from tofino_network import MAIN
from vectors import Scenario, load_all
from vectors_on_tofino import complaint


@pytest.fixture(scope="module", params=[1, 2], ids=["tofino1", "tofino2"])
def switch(request: pytest.FixtureRequest) -> Switch:
    return Switch(MAIN, generation=request.param)


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_tofino_program_answers_as_the_protocol_says(scenario: Scenario, switch: Switch) -> None:
    assert complaint(scenario, switch) == ""
