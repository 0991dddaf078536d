"""The model says what the vectors say, and random sequences reach what there is to reach."""

from __future__ import annotations

from collections import Counter

import pytest

from wiresum.conformance import traffic
from wiresum.conformance.model import Model
from wiresum.conformance.reader import load_all
from wiresum.conformance.scenarios import DROP_REASONS, PROFILES, Job, Scenario, Step, Verdict
from wiresum.join.constants import Header, Kind


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_the_model_gives_what_the_vectors_expect(scenario: Scenario) -> None:
    model = Model()
    for event in scenario.events:
        answer = None if isinstance(event, Step) and event.refused_by_hosts else model.handle(event)
        if isinstance(event, Step) and answer is not None:
            assert answer.expectation == event.expectation, scenario.where(event)


def test_the_jobs_of_the_vectors_have_the_lanes_of_the_hardware_programs() -> None:
    assert {job.lanes for scenario in load_all() for job in scenario.jobs} == {64}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sequence_meets_every_reason_and_every_kind_of_answer(seed: int) -> None:
    steps = traffic.scenario(seed, 1000, 64, PROFILES).steps
    reasons = Counter(step.expectation.reason for step in steps)
    assert reasons.keys() == DROP_REASONS | {"admitted", "resent"}
    assert {step.expectation.verdict for step in steps} == set(Verdict) - {Verdict.PASS}
    answers = Counter(Header.unpack(step.expectation.datagram).kind for step in steps if step.expectation.datagram)
    assert answers.keys() == set(Kind)
    assert answers[Kind.RESULT] > 100 and answers[Kind.MISSING] > 20


def test_a_sequence_has_only_what_the_profiles_name() -> None:
    sequence = traffic.scenario(1, 1000, 64, {"required"})
    assert all(job.parent is None for job in sequence.events if isinstance(job, Job))
    counted = [step for step in sequence.steps if step.expectation.reason in ("admitted", "resent", "duplicate")]
    assert {step.kind for step in counted} == {Kind.DATA, Kind.EMPTY}


def test_a_seed_gives_one_sequence() -> None:
    assert traffic.scenario(7, 300, 64, PROFILES) == traffic.scenario(7, 300, 64, PROFILES)
    assert traffic.scenario(7, 300, 64, PROFILES) != traffic.scenario(8, 300, 64, PROFILES)
