"""Jobs that operators create and end."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.jobs.outputs import Grant, Tell
from wiresum_lab.doubles.controller import JobsHarness


def test_a_created_job_can_only_be_joined_with_its_token() -> None:
    harness = JobsHarness()
    token = harness.create(world_size=2, slots=64, tenant="vision", priority=7)
    for wrong in ("", "guess", token[:-1]):
        code, text = harness.refusal_of(lambda wrong=wrong: harness.ask(world_size=2, job_token=wrong))
        assert code == "PERMISSION_DENIED"
        assert "WIRESUM_JOB_TOKEN" in text
    assert harness.refusal_of(lambda: harness.ask(world_size=3, job_token=token))[0] == "FAILED_PRECONDITION"
    workers = harness.ask_all(2, job_token=token)
    assert [grant.reply.slots for grant in harness.outputs(Grant)] == [64, 64]
    assert (workers[0].job.tenant, workers[0].job.terms.priority) == ("vision", 7)
    assert harness.refusal_of(lambda: harness.ask(world_size=2, job_token="guess"))[0] == "PERMISSION_DENIED"
    for worker in workers:
        harness.leave(worker)
    assert harness.ask(world_size=1).job.state is State.RUNNING, "afterwards the name is anybody's"


def test_a_created_job_is_kept_when_forming_failed() -> None:
    harness = JobsHarness()
    token = harness.create(world_size=2)
    harness.ask(rank=0, world_size=2, job_token=token, timeout_ms=1000)
    harness.wait(2)
    assert len(harness.jobs) == 0
    assert harness.refusal_of(lambda: harness.ask(world_size=2))[0] == "PERMISSION_DENIED"
    assert harness.ask_all(2, job_token=token)[0].job.state is State.RUNNING


def test_a_created_job_that_nobody_joins_expires() -> None:
    harness = JobsHarness()
    harness.create(keep_seconds=5)
    harness.wait(4.5)
    assert [reservation.job_name for reservation in harness.jobs.reservations.all()] == ["a-job"]
    harness.wait(1)
    assert harness.jobs.reservations.all() == []
    assert harness.ask().job.state is State.RUNNING


@pytest.mark.parametrize(
    ("fields", "code", "advice"),
    [
        ({"job_name": "runs"}, "ALREADY_EXISTS", "there is a job 'runs'"),
        ({"job_name": "created"}, "ALREADY_EXISTS", "was created already"),
        ({"job_name": "two\nlines"}, "INVALID_ARGUMENT", "job_name must be letters"),
        ({"world_size": 4097}, "INVALID_ARGUMENT", "1 to 4096"),
        (
            {"world_size": 993},
            "RESOURCE_EXHAUSTED",
            "993 workers are more than the switches here sum for",
        ),
        ({"slots": 8192}, "RESOURCE_EXHAUSTED", "8192 slots are more than a switch here has, 4096"),
        ({"switch_name": "spine"}, "RESOURCE_EXHAUSTED", "there is no switch 'spine' here; there are: leaf"),
        ({"tenant": "vision", "slots": 200}, "RESOURCE_EXHAUSTED", "does not allow 200 slots"),
    ],
)
def test_an_invalid_creation_is_refused(fields: dict[str, object], code: str, advice: str) -> None:
    harness = JobsHarness(quotas=[Quota("vision", slots=128)])
    harness.running(job_name="runs")
    harness.create(job_name="created")
    refused, text = harness.refusal_of(lambda: harness.create(**fields))
    assert refused == code
    assert advice in text


def test_an_operator_ends_a_running_job_with_a_reason() -> None:
    harness = JobsHarness()
    harness.running()
    harness.jobs.end("a-job", "maintenance", harness.now)
    harness.settle()
    told = harness.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 1, 2}
    assert told[0].ended.cause == join.JobEnded.ENDED_BY_OPERATOR
    assert told[0].ended.reason == "an operator ended it: maintenance"
    harness.jobs.end("a-job", "again", harness.now)
    assert harness.refusal_of(lambda: harness.jobs.end("no job", "", harness.now))[0] == "NOT_FOUND"


def test_an_operator_ends_a_job_that_forms_or_has_only_been_created() -> None:
    harness = JobsHarness()
    token = harness.create(world_size=2)
    worker = harness.ask(world_size=2, job_token=token)
    harness.jobs.end("a-job", "", harness.now)
    harness.settle()
    assert harness.refused(worker)[0] == "ABORTED"
    assert harness.jobs.reservations.all() == []
    harness.create(job_name="created")
    harness.jobs.end("created", "", harness.now)
    assert harness.ask(job_name="created").job.state is State.RUNNING
