"""What a worker has said of its job's end is heard by all, whatever the services do meanwhile: in virtual time, with
real memberships and services with real jobs."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from wiresum.agent import life_table, lifetime, membership
from wiresum.agent.aggregators import Aggregators
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    JobAbortedError,
    SessionClosedError,
    WiresumError,
    WorkerLeftError,
)
from wiresum.agent.life_table import Event, Phase
from wiresum.agent.orders import Abort
from wiresum_lab.doubles.resuming import DataPath, Job, Paths, Start
from wiresum_lab.doubles.virtual_network import LIMITS, Host, Network, Service

REASON = "the loss is NaN"


def all_hear(job: Job, kind: type[WiresumError], text: str, *, but: int | None = None) -> None:
    """`but`: a rank that leaves, and so need not hear it."""
    others = [path for rank, path in enumerate(job.paths) if rank != but]
    job.network.wait_until(lambda: all(path.errors for path in others), "all hear it")
    for path in job.paths:
        assert len(path.errors) <= 1 and all(type(error) is kind for error in path.errors), path.errors
        assert all(text in str(error) for error in path.errors)
        assert path.moves == [], "nobody goes on"


def looking(job: Job, service: Service) -> Callable[[], object]:
    """All have halted, and look for a lease."""
    service.kill()
    job.network.wait_until(
        lambda: all(member._life.has_lost_lease for member in job.members), "they look", meanwhile=job.check
    )
    return service.start


def test_a_job_of_that_name_can_begin_when_all_have_heard(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    back = looking(job, service)
    job.members[0].abort(REASON)
    back()
    all_hear(job, JobAbortedError, REASON)
    again = start(service.endpoint, [DataPath(), DataPath()])
    again.check()


def test_an_order_takes_the_place_of_a_question_whose_answer_does_not_count_any_more(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.hosts[1].cut("refused")
    service.kill()
    service.start()
    network.wait_until(lambda: job.members[0]._life.phase is Phase.ASKING, "the first asks for a place")
    network.sleep(1.0)
    question = job.members[0]._asking
    job.members[0].abort(REASON)
    network.wait_until(lambda: question._error is not None, "it is taken back")
    job.hosts[1].cut_off = ""
    all_hear(job, JobAbortedError, REASON)


@pytest.mark.parametrize("reattach_ms", [300, 600_000])
def test_an_order_without_any_service_is_given_up_in_time_and_a_warning_says_so(
    network: Network, start: Start, caplog: pytest.LogCaptureFixture, reattach_ms: int
) -> None:
    """However long a service may stay away before its workers look for another lease."""
    service = Service(network, dataclasses.replace(LIMITS, reattach_ms=reattach_ms)).start()
    job = start(service.endpoint, [DataPath(), DataPath()])
    service.kill()
    network.sleep(5.0)
    given_at = network.now()
    job.members[0].abort(REASON)
    job.members[0].leave()
    assert "no service has heard yet that this worker has ended job 'a-job' (the loss is NaN)" in caplog.text
    assert network.now() - given_at <= life_table.ABORT_S_MAX + membership.THREAD_END_S_MAX


@pytest.mark.parametrize("leaves", [False, True])
def test_a_data_path_that_cannot_halt_ends_the_job_for_all(
    network: Network, service: Service, start: Start, *, leaves: bool
) -> None:
    """`leaves`: the worker does so as soon as it hears of it."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    failing, errors = job.members[1], job.paths[1].errors

    def leave(error: WiresumError) -> None:
        errors.append(error)
        network.start(failing.leave, "test")

    if leaves:
        failing._on_ended = leave
    job.paths[1].fails["halt"] = ValueError("a thread has died")
    service.kill()
    service.start()
    first, second = job.await_errors()
    assert "the job cannot move to another lease: a thread has died" in str(second)
    assert isinstance(first, JobAbortedError) and "a thread has died" in first.reason


def test_an_abort_is_heard_where_the_others_go_though_another_service_has_heard_it(
    network: Network, service: Service, start: Start, tmp_path: Path
) -> None:  # R7.33
    first = Service(network, state=tmp_path / "state").start()
    job = start(f"{first.endpoint},{service.endpoint}", [DataPath(), DataPath()])
    first.kill()
    job.hosts[1].cut("refused")
    job.members[0].abort(REASON)
    network.wait_until(lambda: job.members[0]._life.phase is Phase.SPREADING, "the second has heard it")
    network.sleep(5.0)
    service.kill()
    first.start()
    job.hosts[1].cut_off = ""
    all_hear(job, JobAbortedError, REASON)


@pytest.mark.parametrize("inner", ["abort", "leave"])
@pytest.mark.parametrize("outer", ["abort", "leave"])
def test_the_handler_of_a_signal_may_end_the_job_while_its_thread_does(
    network: Network, service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, outer: str, inner: str
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    member = job.members[0]
    wait_for, interrupted = network.wait_for, [False]

    def end(how: str) -> None:
        ends.add(threading.get_ident())
        member.abort(REASON) if how == "abort" else member.leave()

    def wait_interrupted(is_true: Callable[[], bool], until: float) -> bool:
        if threading.get_ident() in ends and not interrupted[0]:
            interrupted[0] = True
            end(inner)
        return wait_for(is_true, until)

    ends: set[int] = set()
    monkeypatch.setattr(network, "wait_for", wait_interrupted)
    began_at = network.now()
    with network.meanwhile(partial(end, outer)):
        network.wait_until(lambda: job.paths[1].errors, "the other one hears it")
    assert interrupted == [True]
    assert network.now() - began_at < life_table.ABORT_S_MAX, "no thread has waited for itself"
    assert (REASON in str(job.paths[1].errors[0])) == (outer == "abort")


def test_all_jobs_of_a_process_that_ends_look_for_a_service_in_the_same_time(
    network: Network, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = [Service(network).start() for _ in range(3)]
    jobs = [start(service.endpoint, [DataPath(), DataPath()]) for service in services]
    for job, service in zip(jobs, services, strict=True):
        looking(job, service)
    ending = [job.members[0] for job in jobs]
    monkeypatch.setattr(lifetime, "_alive", set(ending))
    monkeypatch.setattr(sys, "last_value", ValueError("a bug"), raising=False)
    began_at = network.now()
    lifetime._end_all()
    ends_s = life_table.LEAVE_S_MAX + membership.THREAD_END_S_MAX
    assert network.now() - began_at < life_table.ABORT_S_MAX + len(jobs) * ends_s
    assert all("ended with ValueError: a bug" in member._abort.order.reason for member in ending if member._abort.order)


@pytest.mark.parametrize("order", ["abort", "leave"])
def test_a_process_that_can_start_no_thread_any_more_tells_what_it_has_to(
    network: Network, service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """As it ends, from Python 3.12 on."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    begin = network.start

    def start_none(target: Callable[[], object], name: str) -> threading.Thread:
        if name.startswith("wiresum-"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        return begin(target, name)

    monkeypatch.setattr(network, "start", start_none)
    if order == "abort":
        job.members[0].abort(REASON)
    job.members[0].leave()
    network.wait_until(lambda: job.paths[1].errors, "the other one hears it")
    assert (REASON in str(job.paths[1].errors[0])) == (order == "abort")


# At several aggregators.


@pytest.mark.parametrize("gone", [[0], [1], [0, 1]], ids=str)
def test_one_aggregator_that_hears_it_is_enough(network: Network, gone: list[int]) -> None:
    two = [Service(network).start() for _ in range(2)]
    config = AgentConfig(switch="+".join(service.endpoint for service in two))
    errors: list[list[WiresumError]] = [[], []]
    moving = [Paths(), Paths()]

    def join(rank: int) -> Aggregators:
        return Aggregators.join(
            config, job_name="a-job", rank=rank, world_size=2, bind=lambda *_: 5000 + 100 * rank,
            on_ended=errors[rank].append, paths=moving[rank], world=Host(network),
        )  # fmt: skip

    first, second = network.run(*(partial(join, rank) for rank in range(2)))
    for index in gone:
        two[index].kill()
    first.abort(REASON)
    with network.meanwhile(first.leave):
        if len(gone) == 2:
            network.sleep(5.0)
            two[1].start()
        network.wait_until(lambda: errors[1], "the other one hears it")
        heard_at = network.now()
    assert network.now() - heard_at <= 2 * life_table.LEAVE_S_MAX + membership.THREAD_END_S_MAX
    assert isinstance(errors[1][0], JobAbortedError) and REASON in str(errors[1][0])
    second.leave()
    assert all("move" not in dict(paths.done) for paths in moving), "nobody goes on"


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("order", ["abort", "leave"])
def test_one_that_leaves_since_its_job_has_ended_at_another_aggregator_says_why(
    network: Network, start: Start, tmp_path: Path, order: str, *, knows: bool
) -> None:  # R7.34
    """`knows`: its service still knows the job."""
    first, second = (Service(network, state=state).start() for state in (tmp_path / "s" if knows else None, None))
    here = start(first.endpoint, [DataPath() for _ in range(3)])
    beside = start(second.endpoint, [DataPath() for _ in range(3)], beside=here)
    first.kill()
    ender = here.members[0], beside.members[0]
    if order == "abort":
        network.run(*(partial(member.abort, REASON) for member in ender))
    network.run(*(member.leave for member in ender))
    network.wait_until(lambda: beside.paths[1].errors, "the second has said so")
    first.start()
    began_at = network.now()
    here.members[1].leave()
    assert network.now() - began_at <= life_table.LEAVE_S_MAX + membership.THREAD_END_S_MAX
    network.wait_until(lambda: here.paths[2].errors, "the first says so, too")
    (error,) = here.paths[2].errors
    assert isinstance(error, WorkerLeftError) == (order == "leave") and (REASON in str(error)) == (order == "abort")


def test_of_a_jobs_ends_at_several_aggregators_the_first_is_the_reason() -> None:
    abort = Abort()
    for reason in ("the first", "the second"):
        abort.note_end(reason)
    abort.give_known_end()
    assert abort.order is not None and abort.order.reason == "the first"


# A worker that leaves looks for no other lease.


@pytest.mark.parametrize("aborts", [False, True])
def test_one_that_has_said_good_bye_neither_halts_nor_looks_for_a_lease(
    network: Network, service: Service, start: Start, *, aborts: bool
) -> None:
    """Though it hears meanwhile that its job is unknown, which may come faster than the answer to what it has said."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    member, path = job.members[0], job.paths[0]
    put = member._put

    def put_slowly(event: Event, *what: object, **more: Any) -> None:
        if event is Event.TOLD:
            service.kill()
            service.start()  # it does not know the job
            network.sleep(1.0)
        put(event, *what, **more)

    member._put = put_slowly  # type: ignore[method-assign]
    if aborts:
        member.abort(REASON)
    member.leave()
    assert (path.halted, path.moves, member._life.has_lost_lease) == (0, [], False)


def test_a_session_that_is_being_closed_neither_halts_nor_ends_the_job(
    network: Network, service: Service, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Its data path has ended, and its good-bye is still to come."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    for path in job.paths:
        path.fails["halt"] = SessionClosedError("the session was left")
    service.kill()
    service.start()
    network.wait_until(lambda: any(path.halted for path in job.paths), "one was to halt")
    job.leave()
    assert [path.errors for path in job.paths] == [[], []]
    assert "looks for another lease" not in caplog.text
    assert "cannot move" not in caplog.text
