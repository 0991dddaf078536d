"""The test vectors on the interpreted source of the Tofino program: both passes, and the bytes of each copy."""

from __future__ import annotations

import pytest

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.vectors import Scenario, load_all
from bmv2_tests.vectors_on_tofino import UNAVAILABLE, complaint


@pytest.mark.parametrize("scenario", load_all(without=UNAVAILABLE), ids=lambda scenario: str(scenario.name))
def test_the_tofino_program_answers_as_the_protocol_says(scenario: Scenario, switch: Switch) -> None:
    assert complaint(scenario, switch) == ""
