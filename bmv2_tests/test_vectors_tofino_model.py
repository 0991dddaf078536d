"""The test vectors on the compiled Tofino program, on the vendor's model of the chip."""

from __future__ import annotations

import pytest

from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.vectors import Scenario, load_all
from bmv2_tests.vectors_on_tofino import UNAVAILABLE, complaint


@pytest.mark.parametrize("scenario", load_all(without=UNAVAILABLE), ids=lambda scenario: str(scenario.name))
def test_the_compiled_program_answers_as_the_protocol_says(scenario: Scenario, tofino_model: ModelSwitch) -> None:
    assert complaint(scenario, tofino_model) == ""
