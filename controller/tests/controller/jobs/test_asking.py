"""A worker that asks again, and one that takes another's place."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import Sizes
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Grant, Refuse
from wiresum.controller.testing import JobsBench as Bench


def test_whoever_asks_again_with_its_attempt_gets_the_same_place() -> None:
    bench = Bench()
    first = bench.ask(rank=0, world_size=2, attempt="first")
    bench.jobs.hung_up(first, first.call, bench.now)
    bench.wait(2)
    assert bench.ask(rank=0, world_size=2, attempt="first") is first
    bench.wait(5)
    bench.ask(rank=1, world_size=2, attempt="second")
    assert [grant.worker.rank for grant in bench.outputs(Grant)] == [0, 1]
    granted = bench.outputs(Grant)[0].reply
    bench.done.clear()
    assert bench.ask(rank=0, world_size=2, attempt="first") is first, "its grant was lost on the way"
    (again,) = bench.outputs(Grant)
    assert again.reply == granted


def test_the_call_that_a_newer_one_replaced_may_break() -> None:
    bench = Bench()
    worker = bench.ask(rank=0, world_size=2, attempt="first")
    call = worker.call
    bench.ask(rank=0, world_size=2, attempt="first")
    bench.jobs.hung_up(worker, call, bench.now)
    bench.wait(5)
    assert worker.away_since is None
    assert bench.outputs(Refuse) == []


@pytest.mark.parametrize("fields", [{"attempt": "second"}, {"attempt": ""}, {"attempt": "first", "port": 9000}])
def test_another_attempt_of_a_rank_is_somebody_else(fields: dict[str, object]) -> None:
    bench = Bench()
    bench.ask(rank=0, world_size=2, attempt="first")
    port = fields.pop("port", 5000)
    again = {"rank": 0, "world_size": 2, "endpoint": join.Endpoint(address="127.0.0.1", port=port)} | fields
    code, text = bench.refusal_of(lambda: bench.ask(**again))
    assert code == "ALREADY_EXISTS"
    assert "rank 0 (host-0, process 1000) has that place" in text
    bench.ask(rank=1, world_size=2)
    assert bench.refusal_of(lambda: bench.ask(**again))[0] == "ALREADY_EXISTS", "also when the job runs"


def test_another_attempt_takes_the_place_of_one_that_is_away() -> None:
    bench = Bench()
    old = bench.ask(rank=0, world_size=2, attempt="old")
    bench.jobs.hung_up(old, old.call, bench.now)
    new = bench.ask(rank=0, world_size=2, attempt="new", process_id=77)
    bench.wait(5)
    bench.ask(rank=1, world_size=2)
    assert bench.outputs(Grant)[0].worker is new
    assert bench.refusal_of(lambda: bench.ask(rank=0, world_size=2, attempt="old"))[0] == "ALREADY_EXISTS"


def test_a_job_does_not_begin_while_one_of_its_workers_is_away() -> None:
    bench = Bench()
    away = bench.ask(rank=0, world_size=2, attempt="first")
    bench.jobs.hung_up(away, away.call, bench.now)
    there = bench.ask(rank=1, world_size=2)
    bench.wait(1.5)
    assert there.job.state is State.FORMING
    assert "waits for rank 0 (host-0, process 1000) to ask again" in bench.said(there)
    bench.ask(rank=0, world_size=2, attempt="first")
    assert there.job.state is State.RUNNING


def test_a_queued_job_whose_worker_goes_away_for_good_is_given_up() -> None:
    bench = Bench(Sizes(slots=16, lanes_max=360, jobs_max=8))
    holder = bench.ask(job_name="holder", slots=16)
    workers = bench.ask_all(2, slots=16)
    bench.jobs.hung_up(workers[0], workers[0].call, bench.now)
    bench.leave(holder)
    assert workers[0].job.state is State.QUEUED, "it does not get slots for somebody who may be gone"
    bench.wait(3.2)
    code, text = bench.refused(workers[1])
    assert code == "ABORTED"
    assert "went away before job 'a-job' began; missing now: rank 0 of 2" in text
    assert bench.slots_free == 16


def test_workers_of_one_job_say_the_same_tenant_and_priority() -> None:
    bench = Bench()
    bench.ask(rank=0, world_size=2, tenant="vision", priority=3)
    for fields, complaint in (
        ({"tenant": "sound", "priority": 3}, "another tenant's than 'sound'"),
        ({"tenant": "vision", "priority": 4}, "has priority 3, says rank 0"),
        ({}, "another tenant's than ''"),
    ):
        code, text = bench.refusal_of(lambda fields=fields: bench.ask(rank=1, world_size=2, **fields))
        assert code == "FAILED_PRECONDITION"
        assert complaint in text
    assert bench.ask(rank=1, world_size=2, tenant="vision", priority=3).job.state is State.RUNNING


@pytest.mark.parametrize("state", ["forming", "running", "ending"])
def test_whoever_asks_for_another_tenants_job_learns_nothing_of_it(state: str) -> None:
    bench = Bench()
    ranks = range(1 if state == "forming" else 2)
    workers = [bench.ask(rank=rank, world_size=2, tenant="vision", host_name="secret-host") for rank in ranks]
    if state == "ending":
        bench.switch_answers = False
        bench.abort(workers[0], "secret reason")
    _, text = bench.refusal_of(lambda: bench.ask(tenant="sound", key=7, world_size=5))
    assert "another tenant's" in text
    assert "secret" not in text
    assert "vision" not in text
