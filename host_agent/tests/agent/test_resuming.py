"""Workers whose service has forgotten their job, or is gone, against the real service with switches that only record
what they are told. The data path is a double: positions that it says, and moves that it is told."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from concurrent import futures
from pathlib import Path

import pytest

from wiresum.agent import absence as absence_module
from wiresum.agent import resuming
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import JobAbortedError, SwitchUnreachableError, WorkerLostError
from wiresum.agent.membership import Membership
from wiresum.controller import JoinServer, Limits
from wiresum.controller.jobs import asking
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.doubles.resuming import LIMITS, SLOTS, CutOff, DataPath, FallbackOf, Service, Start
from wiresum_lab.processes import PATIENCE_S, wait_until


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
def test_a_job_goes_on_at_its_service_that_was_started_anew_again_and_again(
    service: Service, start: Start, pause_s: float
) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath(0, 3)])
    key = job.members[0].grant.key
    for times in (1, 2):
        service.kill()
        time.sleep(pause_s)
        service.start()
        roles = job.await_moves(times)
        assert [each[0] for each in roles] == [3, 1, 2]
        assert [each[3] for each in roles] == [1, 1, 3]
        assert job.paths[0].moves[-1][0].key != key
    (report,) = service.jobs()
    assert (report.name, report.state, report.slots, report.threads, report.lanes) == (
        "a-job",
        "running",
        SLOTS,
        2,
        100,
    )


def test_a_job_goes_on_at_a_service_that_was_stopped_in_an_orderly_way(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    service.stop()
    service.start()
    assert job.await_moves(1) == [bytes(SLOTS)] * 2


def test_it_goes_on_at_the_next_endpoint_if_the_first_stays_away(service: Service, start: Start) -> None:
    other = Service().start()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(other.kill)
        job = start(f"{service.endpoint},{other.endpoint}", [DataPath(), DataPath()])
        service.kill()
        job.await_moves(1)
        assert len(other.jobs()) == 1


def test_workers_that_wait_at_different_services_meet(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finds the second service while the first is away, and the other one finds the first."""
    monkeypatch.setattr(resuming, "TURN_S", 0.7)
    second = Service().start()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(second.kill)
        job = start(f"{service.endpoint},{second.endpoint}", [DataPath(), DataPath()])
        late = CutOff(job.members[1])
        service.kill()
        wait_until(second.jobs, "a worker waits at the second service", PATIENCE_S, job.check)
        service.start()
        control = job.members[1]._control
        while control.endpoint != service.endpoint:
            control.move_on(control.turns)
        late.over()
        job.await_moves(1)


def taken(service: Service, config: AgentConfig) -> Membership:
    """Starts the service, and gives all its slots to a job."""
    service.start()
    config = dataclasses.replace(config, switch=service.endpoint, slots=4096)
    holder = Membership.join(
        config, job_name="all", rank=0, world_size=1, address="127.0.0.1", port=6000, threads_max=2, lanes_max=100
    )
    holder.attend(on_ended=DataPath().errors.append, progress=lambda: 1)
    assert holder.grant.slots == 4096
    return holder


@pytest.mark.parametrize("late_s", [0.0, 1.1])
def test_services_without_a_place_for_the_job_are_left_out_in_turn(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """The first two are full, and the third one has room; one worker comes later than the others."""
    monkeypatch.setattr(resuming, "TURN_S", 0.5)
    second, third = Service(), Service().start()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(second.kill)
        cleanup.callback(third.kill)
        endpoints = f"{service.endpoint},{second.endpoint},{third.endpoint}"
        job = start(endpoints, [DataPath(0), DataPath(), DataPath()])
        away = [CutOff(member) for member in job.members]
        service.kill()
        for full in (service, second):
            cleanup.callback(taken(full, job.config).leave)
        for each in away[1:]:
            each.over()
        time.sleep(late_s)
        away[0].over()
        assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
        assert [report.name for report in third.jobs()] == ["a-job"]


def test_a_service_that_refuses_and_then_dies_keeps_no_worker_from_the_next(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "TURN_S", 0.5)
    second = Service()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(second.kill)
        job = start(f"{service.endpoint},{second.endpoint}", [DataPath(), DataPath()])
        away = [CutOff(member) for member in job.members]
        service.kill()
        holder = taken(service, job.config)
        for each in away:
            each.over()
        for member in job.members:
            wait_until(lambda: member._resuming and member._resuming._turns, "it was refused", PATIENCE_S)  # noqa: B023
        service.kill()
        second.start()
        job.await_moves(1)
        holder.leave()


def test_a_worker_that_halted_by_itself_is_moved_by_a_service_that_still_knows_it(start: Start) -> None:
    """Half of the workers have lost it, and the other half attends."""
    service = Service(dataclasses.replace(LIMITS, connection_lost_ms=60_000)).start()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(service.kill)
        job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()])
        lost = CutOff(job.members[0])
        wait_until(lambda: job.paths[0].halted, "it has halted", PATIENCE_S, job.check)
        assert [path.halted for path in job.paths[1:]] == [0, 0]
        lost.over()
        assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
        (report,) = (each for each in service.jobs() if each.state != "ending")
        assert report.moves == 1


def test_half_of_the_workers_attend_where_the_service_is_back_with_its_jobs_and_half_wait_elsewhere(
    start: Start, fallback: FallbackOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait come back, and the job moves."""
    monkeypatch.setattr(absence_module, "FALLBACK_S", 0.3)
    monkeypatch.setattr(resuming, "FALLBACK_AFTER_S", 0.3)
    service = Service(dataclasses.replace(LIMITS, connection_lost_ms=60_000), tmp_path / "state").start()
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(service.kill)
        job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()], fallback)
        key = job.members[0].grant.key
        stays = CutOff(job.members[1], halts=False)
        service.kill()
        wait_until(
            lambda: fallback.opened and fallback.service.jobs() and fallback.service.jobs()[0].joined == 2,
            "two wait at the fallback",
            PATIENCE_S,
            job.check,
        )
        service.start()
        stays.over()
        assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
        assert len([each for each in service.jobs() if each.state == "running"]) == 1
        assert job.members[0].grant.key != key
        assert job.members[1]._resuming is None


def test_a_service_that_does_not_say_what_to_repeat_ends_the_job(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release would take it for a job that begins."""
    monkeypatch.setattr(asking, "_settle_roles", lambda _: None)
    job = start(service.endpoint, [DataPath(0), DataPath()])
    service.kill()
    service.start()
    for error in job.await_errors():
        assert f"0 roles were given for {SLOTS} slots" in str(error)
    assert [path.moves for path in job.paths] == [[], []]


def test_a_worker_that_never_comes_ends_the_others_within_the_bound_and_is_named(
    service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()], lost_after_s=2)
    CutOff(job.members[1])
    service.kill()
    service.start()
    wait_until(lambda: job.paths[0].errors and job.paths[2].errors, "they have ended", 10)
    error = job.paths[0].errors[0]
    assert isinstance(error, SwitchUnreachableError)
    assert "this worker has looked for another lease, and got none" in str(error)
    assert "rank 1 of 3" in str(error)


def test_a_service_that_stays_away_is_an_error_within_the_bound(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()], lost_after_s=1)
    began_at = time.monotonic()
    service.kill()
    for error in job.await_errors():
        assert isinstance(error, SwitchUnreachableError)
        assert "does not answer" in str(error)
        assert "For 1 s this worker has looked for another lease, and got none" in str(error)
        assert "refused" in str(error)
    assert time.monotonic() - began_at < 6


def test_another_job_of_its_name_meanwhile_is_an_error_that_says_so(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    for member in job.members:  # it shall not be faster
        member._control.move_on(member._control.turns, "127.0.0.1:1")
    service.kill()
    service.start()
    with futures.ThreadPoolExecutor() as pool:
        begins = pool.submit(
            Membership.join,
            AgentConfig(switch=service.endpoint, join_timeout_s=5),
            job_name="a-job", rank=0, world_size=2, address="127.0.0.1", port=7000, threads_max=2, lanes_max=100,
        )  # fmt: skip
        wait_until(service.jobs, "it forms")
        for error in job.await_errors():
            assert "goes on with a job that rank 0" in str(error)
        assert "rank 1 of 2" in str(begins.exception())


def test_positions_that_do_not_go_together_end_the_job(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(first=9)])
    service.kill()
    service.start()
    for error in job.await_errors():
        assert "more than one round apart" in str(error)
    assert [path.moves for path in job.paths] == [[], []]


def test_a_data_path_that_cannot_go_on_ends_the_job_for_all(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.paths[1].fails = "no such socket"
    service.kill()
    service.start()
    first, second = job.await_errors()
    assert "no such socket" in str(second)
    assert isinstance(first, JobAbortedError | WorkerLostError)
    assert "no such socket" in str(first)


@pytest.mark.parametrize("waits", [False, True])
def test_a_worker_that_looks_for_a_lease_leaves_and_aborts_at_once(
    service: Service, start: Start, *, waits: bool
) -> None:
    """`waits`: at a service, for another worker."""
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()])
    CutOff(job.members[2])
    service.kill()
    wait_until(lambda: job.members[0]._resuming and job.members[1]._resuming, "they look")
    if waits:
        service.start()
        wait_until(lambda: service.jobs() and service.jobs()[0].joined == 2, "they wait")
    began_at = time.monotonic()
    job.members[0].leave()
    job.members[1].abort("the user pressed Ctrl-C")
    assert time.monotonic() - began_at < 3
    if not waits:
        service.start()
    wait_until(lambda: job.paths[1].errors, "it has heard how the job has ended", PATIENCE_S)
    assert ("rank 0" in str(job.paths[1].errors[0])) == waits
    assert ("the user pressed Ctrl-C" in str(job.paths[1].errors[0])) == (not waits)
    assert job.paths[0].errors == []


# The fallback.


@pytest.mark.parametrize(("rival", "slots"), [("a-job", SLOTS), ("all-slots", 4096)])
def test_a_service_that_takes_jobs_but_not_this_one_does_not_keep_it_from_the_fallback(
    service: Service,
    fallback: FallbackOf,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    rival: str,
    slots: int,
) -> None:
    """Another job has its name, or all slots."""
    monkeypatch.setattr(resuming, "TURN_S", 0.5)
    monkeypatch.setattr(resuming, "FALLBACK_AFTER_S", 0.3)
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()], fallback)
    away = [CutOff(member) for member in job.members]
    service.kill()
    service.start()
    path, config = DataPath(), dataclasses.replace(job.config, slots=slots)
    other = Membership.join(
        config, job_name=rival, rank=0, world_size=1, address="127.0.0.1", port=6000, threads_max=2, lanes_max=100
    )
    other.attend(on_ended=path.errors.append, progress=lambda: 1)
    assert other.grant.slots == slots
    for each in away:
        each.over()
    assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
    assert [report.state for report in fallback.service.jobs()] == ["running"]
    assert path.errors == []
    other.leave()


def test_a_job_goes_on_at_the_fallback_and_returns(service: Service, fallback: FallbackOf, start: Start) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath()], fallback)
    for times in (1, 3):
        fallback.opened = 0
        service.kill()
        assert [each[0] for each in job.await_moves(times)] == [3, 1]
        assert fallback.service.jobs()[0].state == "running"
        service.start()
        closed = fallback.closed
        fallback.service.stop()
        job.await_moves(times + 1)
        assert service.jobs()[0].state == "running"
        assert fallback.closed >= closed + 2, "each worker says that it is not needed"


def test_the_fallback_is_left_alone_if_the_service_is_back_at_once(
    service: Service, fallback: FallbackOf, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()], fallback)
    service.kill()
    service.start()
    job.await_moves(1)
    assert fallback.opened == 0


def test_a_job_whose_switch_is_lost_goes_on_at_the_fallback_though_its_service_lives(
    fallback: FallbackOf, start: Start
) -> None:
    driver, limits = RecordingDriver(), Limits(heartbeat_interval_ms=100, heartbeat_lost_ms=3000)
    server = JoinServer(driver, limits)
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(server.stop, 0.1)
        job = start(f"127.0.0.1:{server.start('127.0.0.1', 0)}", [DataPath(0), DataPath()], fallback)
        driver.change("it was killed", forgetting=True)
        killed_at = time.monotonic()
        assert [each[0] for each in job.await_moves(1)] == [3, 1]
        assert time.monotonic() - killed_at < 8
        assert fallback.service.jobs()[0].state == "running"


def test_a_job_whose_switch_answers_stays_though_its_service_has_lost_the_switch(
    fallback: FallbackOf, start: Start
) -> None:
    driver, limits = RecordingDriver(), Limits(heartbeat_interval_ms=100, heartbeat_lost_ms=3000, move_after_ms=100)
    server = JoinServer(driver, limits)
    with contextlib.closing(contextlib.ExitStack()) as cleanup:
        cleanup.callback(server.stop, 0.1)
        job = start(f"127.0.0.1:{server.start('127.0.0.1', 0)}", [DataPath(), DataPath()], fallback)
        for path in job.paths:
            path.answered = True
        driver.change("the controller is cut off from it")
        wait_until(
            lambda: "no other" in job.members[0].diagnose().moving or server.report().jobs[0].waiting, "it is said"
        )
        time.sleep(2 * resuming.FALLBACK_AFTER_S)
        job.check()
        assert [(path.halted, path.moves) for path in job.paths] == [(0, [])] * 2
        assert fallback.opened == 0
