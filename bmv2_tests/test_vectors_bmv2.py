"""The test vectors on bmv2, frame by frame."""

from __future__ import annotations

import pytest

from bmv2_tests.bmv2_harness import Bmv2Harness
from bmv2_tests.vectors import Scenario, load_all
from bmv2_tests.vectors_on_bmv2 import FreshSlots, complaints


@pytest.fixture(scope="module")
def fresh_slots(harness: Bmv2Harness) -> FreshSlots:
    return FreshSlots(harness)


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_bmv2_answers_as_the_protocol_says(scenario: Scenario, harness: Bmv2Harness, fresh_slots: FreshSlots) -> None:
    assert list(complaints(scenario, harness, fresh_slots)) == []
