"""The test vectors against the compiled program, on the vendor's model of the chip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tofino_model import assembled, model_switch
from tofino_model.model_switch import ModelSwitch
from vectors import Scenario, load_all
from vectors_on_tofino import complaint


@pytest.fixture(scope="module", params=[1], ids=["tofino1"])
def switch(request: pytest.FixtureRequest) -> Iterator[ModelSwitch]:
    if missing := model_switch.missing(request.param):
        pytest.skip(f"not tested on the model of Tofino {request.param}: {missing}")
    switch = ModelSwitch(request.param, assembled.program(request.param))
    yield switch
    switch.close()


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_compiled_program_answers_as_the_protocol_says(scenario: Scenario, switch: ModelSwitch) -> None:
    assert complaint(scenario, switch) == ""
