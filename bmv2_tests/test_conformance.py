"""The conformance suite on the switches that are here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmv2_tests.bmv2_harness import programmed_bmv2
from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import Tofino
from wiresum.conformance.checks import Check, all_checks, chosen
from wiresum.conformance.p4runtime import Programmed
from wiresum.conformance.scenarios import PROFILES

CHECKS = all_checks(seeds=(1, 2), packets=400)
every_check = pytest.mark.parametrize("check", chosen(CHECKS, PROFILES), ids=str)
of_tofino = pytest.mark.parametrize("check", chosen(CHECKS, Tofino.profiles), ids=str)


@pytest.fixture(scope="module")
def programmed(bmv2: None) -> Iterator[Programmed]:
    with programmed_bmv2() as switch:
        yield switch


@of_tofino
def test_the_tofino_program_follows_the_protocol(check: Check, switch: Switch) -> None:
    assert check.failures(Tofino(switch)) == []


@of_tofino
def test_the_compiled_tofino_program_follows_the_protocol(check: Check, tofino_model: ModelSwitch) -> None:
    assert check.failures(Tofino(tofino_model)) == []


@every_check
def test_bmv2_follows_the_protocol(check: Check, programmed: Programmed) -> None:
    assert check.failures(programmed) == []
