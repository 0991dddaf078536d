"""Jobs that operators create, and end."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.jobs.outputs import Grant, Tell
from wiresum_lab.doubles.controller import JobsBench as Bench
from wiresum_lab.doubles.controller import switch


def test_a_created_job_is_joined_with_its_token_alone() -> None:
    bench = Bench()
    token = bench.create(world_size=2, slots=64, tenant="vision", priority=7)
    for wrong in ("", "guess", token[:-1]):
        code, text = bench.refusal_of(lambda wrong=wrong: bench.ask(world_size=2, job_token=wrong))
        assert code == "PERMISSION_DENIED"
        assert "WIRESUM_JOB_TOKEN" in text
    assert bench.refusal_of(lambda: bench.ask(world_size=3, job_token=token))[0] == "FAILED_PRECONDITION"
    workers = bench.ask_all(2, job_token=token)
    assert [grant.reply.slots for grant in bench.outputs(Grant)] == [64, 64]
    assert (workers[0].job.tenant, workers[0].job.priority) == ("vision", 7)
    assert bench.refusal_of(lambda: bench.ask(world_size=2, job_token="guess"))[0] == "PERMISSION_DENIED"
    for worker in workers:
        bench.leave(worker)
    assert bench.ask(world_size=1).job.state is State.RUNNING, "afterwards the name is anybody's"


def test_a_created_job_whose_forming_failed_is_still_kept() -> None:
    bench = Bench()
    token = bench.create(world_size=2)
    bench.ask(rank=0, world_size=2, job_token=token, timeout_ms=1000)
    bench.wait(2)
    assert len(bench.jobs) == 0
    assert bench.refusal_of(lambda: bench.ask(world_size=2))[0] == "PERMISSION_DENIED"
    assert bench.ask_all(2, job_token=token)[0].job.state is State.RUNNING


def test_a_created_job_that_nobody_joins_is_forgotten() -> None:
    bench = Bench()
    bench.create(keep_seconds=5)
    bench.wait(4.5)
    assert [reservation.job_name for reservation in bench.jobs.reservations.all()] == ["a-job"]
    bench.wait(1)
    assert bench.jobs.reservations.all() == []
    assert bench.ask().job.state is State.RUNNING


def test_a_created_job_can_be_bound_to_a_switch() -> None:
    bench = Bench(switches=[switch("left"), switch("right", addresses=("127.0.0.9",))])
    token = bench.create(switch_name="right")
    code, text = bench.refusal_of(lambda: bench.ask(job_token=token))
    assert code == "FAILED_PRECONDITION"
    assert "at left, and the job can only be at right" in text


@pytest.mark.parametrize(
    ("fields", "code", "advice"),
    [
        ({"job_name": "runs"}, "ALREADY_EXISTS", "there is a job 'runs'"),
        ({"job_name": "created"}, "ALREADY_EXISTS", "was created already"),
        ({"job_name": "two\nlines"}, "INVALID_ARGUMENT", "job_name must be letters"),
        ({"world_size": 1025}, "INVALID_ARGUMENT", "1 to 1024 workers"),
        ({"world_size": 33}, "RESOURCE_EXHAUSTED", "33 workers are more than the switches here sum for in one job, 32"),
        ({"slots": 8192}, "RESOURCE_EXHAUSTED", "8192 slots are more than a switch here has, 4096"),
        ({"switch_name": "spine"}, "RESOURCE_EXHAUSTED", "there is no switch 'spine' here; there are: leaf"),
        ({"tenant": "vision", "slots": 200}, "RESOURCE_EXHAUSTED", "does not allow 200 slots"),
        ({"tenant": "vision", "priority": 5}, "RESOURCE_EXHAUSTED", "priority 5 is more than"),
    ],
)
def test_what_cannot_be_created_is_refused(fields: dict[str, object], code: str, advice: str) -> None:
    bench = Bench(quotas=[Quota("vision", slots=128, priority_max=4)])
    bench.running(job_name="runs")
    bench.create(job_name="created")
    refused, text = bench.refusal_of(lambda: bench.create(**fields))
    assert refused == code
    assert advice in text


def test_an_operator_ends_a_running_job_with_a_reason() -> None:
    bench = Bench()
    bench.running()
    bench.jobs.end("a-job", "maintenance", bench.now)
    bench.settle()
    told = bench.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 1, 2}
    assert told[0].ended.cause == join.JobEnded.ENDED_BY_OPERATOR
    assert told[0].ended.reason == "an operator ended it: maintenance"
    bench.jobs.end("a-job", "again", bench.now)
    assert bench.refusal_of(lambda: bench.jobs.end("no job", "", bench.now))[0] == "NOT_FOUND"


def test_an_operator_ends_a_job_that_forms_or_is_only_created() -> None:
    bench = Bench()
    token = bench.create(world_size=2)
    worker = bench.ask(world_size=2, job_token=token)
    bench.jobs.end("a-job", "", bench.now)
    bench.settle()
    assert bench.refused(worker)[0] == "ABORTED"
    assert bench.jobs.reservations.all() == []
    bench.create(job_name="created")
    bench.jobs.end("created", "", bench.now)
    assert bench.ask(job_name="created").job.state is State.RUNNING
