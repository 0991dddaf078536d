"""Workers whose service has forgotten their job, or is gone, in virtual time: their real memberships, and services with
real jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from wiresum.agent import absence, life_table, search
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import SwitchUnreachableError
from wiresum.agent.life_table import RESUME_S
from wiresum.agent.membership import Membership
from wiresum.controller.jobs.job import State
from wiresum_lab.doubles.resuming import SLOTS, DataPath, FallbackOf, Job, Start
from wiresum_lab.doubles.virtual_network import LIMITS, Host, Network, Service


def cut_off(job: Job, *ranks: int, how: str = "refused") -> None:
    for rank in ranks or range(len(job.hosts)):
        job.hosts[rank].cut(how)


def back(job: Job, *ranks: int) -> None:
    cut_off(job, *ranks, how="")


@pytest.mark.parametrize("away_s", [0.0, 1.0, 20.0])
def test_a_job_goes_on_at_its_service_that_was_started_anew_again_and_again(
    network: Network, service: Service, start: Start, away_s: float
) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath(0, 3)])
    key = job.members[0].grant.key
    for times in (1, 2):
        service.kill()
        network.sleep(away_s)
        service.start()
        roles = job.await_moves(times)
        assert [each[0] for each in roles] == [3, 1, 2]
        assert [each[3] for each in roles] == [1, 1, 3]
        assert job.paths[0].moves[-1][0].key != key
    (goes_on,) = service.jobs()
    assert (goes_on.name, goes_on.state, goes_on.lease.slots) == ("a-job", State.RUNNING, SLOTS)
    assert (goes_on.lease.threads, goes_on.lease.lanes) == (2, 100)


def test_it_goes_on_at_the_next_endpoint_if_the_first_stays_away(
    network: Network, service: Service, start: Start
) -> None:
    other = Service(network).start()
    job = start(f"{service.endpoint},{other.endpoint}", [DataPath(), DataPath()])
    service.kill()
    job.await_moves(1)
    assert len(other.jobs()) == 1


def test_a_service_without_a_switch_that_takes_jobs_keeps_nobody(
    network: Network, service: Service, start: Start
) -> None:
    other = Service(network).start()
    job = start(f"{service.endpoint},{other.endpoint}", [DataPath(), DataPath()])
    cut_off(job)
    service.kill()
    service.start().running.lose_switch(comes_back=False)
    network.wait_until(
        lambda: all(member._life.has_lost_lease for member in job.members), "they look", meanwhile=job.check
    )
    for member in job.members:
        member._life.services.at = other.endpoint
    back(job)
    back_at = network.now()
    job.await_moves(1)
    assert network.now() - back_at < search.TURN_S
    assert len(other.jobs()) == 1


def taken(network: Network, service: Service) -> Callable[[], None]:
    """Gives all slots of a service to a job; returns what makes it leave."""
    config = AgentConfig(switch=service.endpoint, slots=4096)
    other = of_another_job(network, config, "all")
    assert other.grant.slots == 4096
    return other.leave


def of_another_job(network: Network, config: AgentConfig, name: str, errors: list[object] | None = None) -> Membership:
    member = Membership.join(
        config,
        job_name=name,
        rank=0,
        world_size=1,
        address="127.0.0.1",
        port=6000,
        threads_max=2,
        lanes_max=100,
        world=Host(network),
    )
    DataPath().attend(member, errors.append if errors is not None else None)
    return member


@pytest.mark.parametrize("late_s", [0.0, 1.1, 2.0])
def test_services_without_a_place_for_the_job_are_left_out_in_turn(
    network: Network, service: Service, start: Start, late_s: float
) -> None:
    """The first two are full, and the third one has room; one worker comes later than the others."""
    second, third = Service(network), Service(network).start()
    job = start(f"{service.endpoint},{second.endpoint},{third.endpoint}", [DataPath(0), DataPath(), DataPath()])
    cut_off(job)
    service.kill()
    leave = [taken(network, full.start()) for full in (service, second)]
    back(job, 1, 2)
    network.sleep(late_s)
    back(job, 0)
    assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
    assert [each.name for each in third.jobs()] == ["a-job"]
    network.run(*leave)


def test_a_service_that_refuses_and_then_dies_keeps_no_worker_from_the_next(
    network: Network, service: Service, start: Start
) -> None:
    second = Service(network)
    job = start(f"{service.endpoint},{second.endpoint}", [DataPath(), DataPath()])
    cut_off(job)
    service.kill()
    leave = taken(network, service.start())
    back(job)
    for member in job.members:
        network.wait_until(lambda: member._life._search and member._life._search._turns, "it was refused")  # noqa: B023
    service.kill()
    second.start()
    job.await_moves(1)
    leave()


def test_a_worker_whose_grant_was_lost_with_the_service_is_moved(
    network: Network, start: Start, tmp_path: Path
) -> None:
    """The others have gone on. The next service has the job, and knows no more what each repeats."""
    service = Service(network, dataclasses.replace(LIMITS, connection_lost_ms=60_000), tmp_path / "state").start()
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()])
    service.stop()
    job.hosts[0].loses_packets = True
    service.start()
    network.wait_until(lambda: job.paths[1].moves and job.paths[2].moves, "two go on", meanwhile=job.check)
    service.kill()
    job.hosts[0].loses_packets = False
    service.start()
    network.wait_until(lambda: [len(path.moves) for path in job.paths] == [1, 2, 2], "all go on", meanwhile=job.check)
    assert [[roles[0] for _, roles in path.moves] for path in job.paths] == [[3], [1, 1], [1, 1]]
    (moved,) = service.jobs()
    assert {path.moves[-1][0].key for path in job.paths} == {moved.lease.key}


def test_a_worker_that_never_comes_ends_the_others_within_the_bound_and_is_named(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()])
    cut_off(job, 1)
    service.kill()
    service.start()
    lost_at = network.now()
    network.wait_until(lambda: job.paths[0].errors and job.paths[2].errors, "they have ended")
    assert network.now() - lost_at < RESUME_S + 4
    error = job.paths[0].errors[0]
    assert isinstance(error, SwitchUnreachableError)
    assert "this worker has looked for another lease, and got none" in str(error)
    assert "rank 1 of 3" in str(error)


def test_a_service_that_stays_away_is_an_error_within_the_bound(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    lost_at = network.now()
    service.kill()
    for error in job.await_errors():
        assert isinstance(error, SwitchUnreachableError)
        assert "does not answer" in str(error)
        assert f"For {RESUME_S:.0f} s this worker has looked for another lease, and got none" in str(error)
        assert "refused" in str(error)
    assert RESUME_S < network.now() - lost_at < RESUME_S + 1


def test_another_job_of_its_name_meanwhile_is_an_error_that_says_so(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    cut_off(job)
    service.kill()
    service.start()
    config = AgentConfig(switch=service.endpoint, join_timeout_s=5)
    refused: list[Exception] = []

    def begin() -> None:
        try:
            Membership.join(
                config, job_name="a-job", rank=0, world_size=2, address="127.0.0.1", port=7000, threads_max=2,
                lanes_max=100, world=Host(network),
            )  # fmt: skip
        except Exception as error:
            refused.append(error)

    with network.meanwhile(begin):
        network.wait_until(service.jobs, "it forms")
        back(job)
        for error in job.await_errors():
            assert "goes on with a job that rank 0" in str(error)
    assert "rank 1 of 2" in str(refused[0])


def test_positions_that_do_not_go_together_end_the_job(service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(first=9)])
    service.kill()
    service.start()
    for error in job.await_errors():
        assert "more than one round apart" in str(error)
    assert [path.moves for path in job.paths] == [[], []]


# The fallback.


@pytest.mark.parametrize(("rival", "slots"), [("a-job", SLOTS), ("all-slots", 4096)])
def test_a_service_that_takes_jobs_but_not_this_one_does_not_keep_it_from_the_fallback(
    network: Network, service: Service, fallback: FallbackOf, start: Start, rival: str, slots: int
) -> None:
    """Another job has its name, or all slots."""
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()], fallback)
    cut_off(job)
    service.kill()
    service.start()
    errors: list[object] = []
    other = of_another_job(network, dataclasses.replace(job.config, slots=slots), rival, errors)
    assert other.grant.slots == slots
    back(job)
    assert [each[0] for each in job.await_moves(1)] == [3, 1, 1]
    assert [each.state for each in fallback.service.jobs()] == [State.RUNNING]
    assert errors == []
    other.leave()


@pytest.mark.parametrize("late_s", [0.0, 2.25, 4.5, 9.0])
def test_a_worker_that_comes_late_meets_the_others_at_the_fallback_whatever_each_has_asked_before(
    network: Network, service: Service, fallback: FallbackOf, start: Start, late_s: float
) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath(), DataPath()], fallback)
    cut_off(job)
    service.kill()
    leave = taken(network, service.start())
    back(job, 1, 2)
    network.sleep(late_s)
    back(job, 0)
    came_at = network.now()
    network.wait_until(lambda: all(path.moves for path in job.paths), "they have moved", meanwhile=job.check)
    assert network.now() - came_at < 3 * search.TURN_S
    leave()


def test_a_job_goes_on_at_the_fallback_and_returns(service: Service, fallback: FallbackOf, start: Start) -> None:
    job = start(service.endpoint, [DataPath(0), DataPath()], fallback)
    for times in (1, 3):
        service.kill()
        assert [each[0] for each in job.await_moves(times)] == [3, 1]
        assert fallback.service.jobs()[0].state is State.RUNNING
        service.start()
        job.await_moves(times + 1)
        assert service.jobs()[0].state is State.RUNNING
        assert not fallback.is_open, "rank 0 says that it is not needed"


@pytest.mark.parametrize("soon", [True, False])
def test_the_fallback_is_left_alone_if_the_service_is_back_soon(
    network: Network, service: Service, fallback: FallbackOf, start: Start, *, soon: bool
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()], fallback)
    service.kill()
    network.wait_until(
        lambda: all(member._life.has_lost_lease for member in job.members), "they look", meanwhile=job.check
    )
    network.sleep(life_table.FALLBACK_AFTER_S + (-0.3 if soon else 0.3))
    service.start()
    job.await_moves(1)
    assert (fallback.children == []) == soon


@pytest.mark.parametrize("gone", ["switch", "both", "one after the other"])
def test_a_job_whose_switch_is_lost_waits_for_neither_it_nor_its_controller_if_there_is_a_fallback(
    network: Network, fallback: FallbackOf, start: Start, tmp_path: Path, gone: str
) -> None:
    """One that has halted sends nothing that its switch could leave unanswered."""
    limits = dataclasses.replace(LIMITS, move_after_ms=1000)
    service = Service(network, limits, None if gone == "switch" else tmp_path / "state").start()
    job = start(service.endpoint, [DataPath(0), DataPath()], fallback)
    killed_at = network.now()
    if gone != "both":
        service.running.lose_switch(comes_back=False)
    if gone == "one after the other":
        network.wait_until(lambda: all(path.halted for path in job.paths), "they halt", meanwhile=job.check)
        killed_at = network.now()
    if gone != "switch":
        service.kill()
    assert [each[0] for each in job.await_moves(1)] == [3, 1]
    assert network.now() - killed_at < absence.FALLBACK_S + 2 * life_table.FALLBACK_AFTER_S
    assert fallback.service.jobs()[0].state is State.RUNNING


def test_a_job_whose_switch_answers_stays_though_its_service_has_lost_the_switch(
    network: Network, fallback: FallbackOf, start: Start
) -> None:
    service = Service(network, dataclasses.replace(LIMITS, move_after_ms=100)).start()
    job = start(service.endpoint, [DataPath(), DataPath()], fallback)
    for path in job.paths:
        path.answered = True
    service.running.lose_switch(comes_back=False)
    network.sleep(5 * life_table.FALLBACK_AFTER_S)
    assert "leaf is lost" in job.members[0].diagnose().moving
    job.check()
    assert [(path.halted, path.moves) for path in job.paths] == [(0, [])] * 2
    assert fallback.children == []
