"""A worker's memberships at several aggregators, in virtual time: each is a service with real jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest

from wiresum.agent.aggregators import Aggregators
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    JobAbortedError,
    JoinError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLostError,
)
from wiresum.agent.job_membership import JobMembership
from wiresum.agent.statistics import TrafficStats
from wiresum.controller import Limits
from wiresum.controller.driver import SwitchSizes
from wiresum.join import Admission
from wiresum_lab.doubles.resuming import Paths
from wiresum_lab.doubles.virtual_network import Host, Network, Service

LIMITS = Limits(slots_default=64)
LANES = 360


def service_of(network: Network, lanes: int = LANES) -> Service:
    return Service(network, LIMITS, sizes=SwitchSizes(slots=256, lanes_max=lanes, jobs_max=8)).start()


@pytest.fixture
def two(network: Network) -> list[Service]:
    """In the order in which workers join them."""
    return [service_of(network), service_of(network)]


def config_of(*services: Service, **settings: object) -> AgentConfig:
    switch = "+".join(service.endpoint for service in services)
    return AgentConfig(switch=switch, **({"threads": 1} | settings))  # type: ignore[arg-type]


ports = itertools.count(40_000)


def bind(address: str, count: int, within: tuple[int, int]) -> int:
    """Endpoints for the data path, on which no test sends anything."""
    return next(ports)


class Worker:
    """At all aggregators, from a host of its own."""

    def __init__(
        self,
        network: Network,
        config: AgentConfig,
        rank: int = 0,
        world_size: int = 1,
        *,
        job_name: str = "a-job",
        admission: Admission = Admission.QUEUE,
        progress: Callable[[int], TrafficStats] = lambda index: TrafficStats(round_newest=index),
    ) -> None:
        self.host = Host(network)
        self.errors: list[WiresumError] = []
        """Of why its job has ended."""
        self.moving = Paths(progress)
        self.joined = Aggregators.join(
            config,
            job_name=job_name,
            rank=rank,
            world_size=world_size,
            admission=admission,
            bind=bind,
            on_ended=self.errors.append,
            paths=self.moving,
            world=self.host,
        )
        self.leave = self.joined.leave


def join_all(network: Network, config: AgentConfig, world_size: int) -> list[Worker]:
    return network.run(*(partial(Worker, network, config, rank, world_size) for rank in range(world_size)))


def states_at(service: Service) -> list[str]:
    return [job.state.value for job in service.running.jobs.all()]


def failing(function: Callable[[], object], errors: list[Exception]) -> None:
    try:
        function()
    except Exception as error:
        errors.append(error)


def test_a_job_moves_at_the_one_that_has_forgotten_it(network: Network, two: list[Service]) -> None:
    worker = Worker(network, config_of(*two))
    assert [one.membership._life.worker.traffic().round_newest for one in worker.joined] == [0, 1]
    two[1].kill()
    two[1].start()
    network.wait_until(lambda: len(worker.moving.done) == 2, "it goes on there")
    assert worker.moving.done == [("halt", 1), ("move", 1)] and worker.errors == []
    worker.leave()


def test_a_job_is_joined_at_each_and_left_at_each(network: Network, two: list[Service]) -> None:
    workers = join_all(network, config_of(*reversed(two)), 2)
    for worker in workers:
        assert [one.switch for one in worker.joined] == [service.endpoint for service in two]
        assert len(worker.joined) == 2
    keys = [[one.membership.grant.key for one in worker.joined] for worker in workers]
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[0][1], "each service draws its own"
    assert [states_at(service) for service in two] == [["running"], ["running"]]
    network.run(*(worker.leave for worker in workers * 2))
    assert [states_at(service) for service in two] == [[], []]


def test_if_one_aggregator_refuses_the_earlier_ones_are_left(network: Network, two: list[Service]) -> None:
    in_the_way = Worker(network, config_of(two[1], slots=256), job_name="in-the-way", admission=Admission.AT_ONCE)
    with pytest.raises(JoinError, match=two[1].endpoint) as caught:
        Worker(network, config_of(*two), admission=Admission.AT_ONCE)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert states_at(two[0]) == []
    in_the_way.leave()
    Worker(network, config_of(*two), admission=Admission.AT_ONCE).leave()


def test_an_unreachable_aggregator_is_named_within_one_join_timeout(network: Network, two: list[Service]) -> None:
    two[1].kill()
    began_at = network.now()
    with pytest.raises(JoinError, match=f"cannot reach the switch at {two[1].endpoint} ") as caught:
        Worker(network, config_of(*two, join_timeout_s=10.0))
    assert caught.value.code == "UNAVAILABLE"
    assert 9 < network.now() - began_at < 10.1
    assert states_at(two[0]) == []


def test_different_packet_sizes_are_an_error_that_names_the_setting(network: Network) -> None:
    services = [service_of(network), service_of(network, lanes=128)]
    with pytest.raises(JoinError, match="WIRESUM_LANES=128") as caught:
        Worker(network, config_of(*services))
    assert all(f"{lanes} at the switch at 127.0.0.1:" in str(caught.value) for lanes in (LANES, 128))
    assert [states_at(service) for service in services] == [[], []]
    Worker(network, config_of(*services, lanes=128)).leave()


def test_workers_with_different_numbers_of_aggregators_get_an_error(network: Network, two: list[Service]) -> None:
    errors: list[Exception] = []
    configs = [config_of(*two), config_of(two[0])]
    network.run(
        *(partial(failing, partial(Worker, network, config, rank, 2), errors) for rank, config in enumerate(configs))
    )
    assert len(errors) == 2
    for error in errors:
        assert isinstance(error, JoinError)
        assert "the number of aggregators in WIRESUM_SWITCH is 2 at rank 0 " in str(error)
        assert " 1 at rank 1 " in str(error)


@pytest.mark.parametrize("how", ["aborts", "is lost"])
def test_a_worker_waiting_at_the_second_aggregator_hears_how_the_job_ends_at_the_first(
    network: Network, two: list[Service], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(AgentConfig, "agreed", {})  # else it would be refused that one has not heard of the second
    errors: list[Exception] = []
    with network.meanwhile(partial(failing, partial(Worker, network, config_of(*two), 0, 2), errors)):
        elsewhere = Worker(network, config_of(two[0]), 1, 2)
        network.wait_until(lambda: states_at(two[1]) == ["forming"], "the first worker waits at the second aggregator")
        if how == "aborts":
            elsewhere.joined.abort("the wrong configuration")
        else:
            elsewhere.host.cut("silence")
    assert isinstance(errors[0], JobAbortedError if how == "aborts" else WorkerLostError)
    assert ("the wrong configuration" if how == "aborts" else "rank 1") in str(errors[0])
    elsewhere.leave()
    network.wait_until(lambda: [states_at(service) for service in two] == [[], []], "nothing is left of the job")


@pytest.mark.parametrize("stopped", [0, 1])
def test_an_aggregator_that_stops_ends_the_job_and_is_named(network: Network, two: list[Service], stopped: int) -> None:
    workers = join_all(network, config_of(*two), 2)
    two[stopped].stop()
    network.wait_until(lambda: all(worker.errors for worker in workers), "all hear that the job has ended")
    network.run(*(worker.leave for worker in workers))
    for worker in workers:
        (error,) = worker.errors
        assert isinstance(error, SwitchUnreachableError)
        assert two[stopped].endpoint in str(error)
    assert states_at(two[1 - stopped]) == []


def test_an_end_before_attend_is_reported_by_attend(network: Network, two: list[Service]) -> None:
    early = JobMembership(config_of(*two), job_name="a-job", rank=0, world_size=2, world=Host(network))
    _, other = network.run(partial(early.join, bind), partial(Worker, network, config_of(*two), 1, 2))
    assert isinstance(other, Worker)
    other.joined.abort("too soon")
    network.wait_until(lambda: early._aggregators is not None and early._aggregators.ended is not None, "it has heard")
    told: list[WiresumError] = []
    early.attend(dict, lambda error, tell_others: told.append(error), halt=lambda _: "", move=lambda _: None)
    assert isinstance(told[0], JobAbortedError)
    network.run(early.leave, other.leave)


def test_each_aggregator_is_told_its_own_rounds(network: Network, two: list[Service]) -> None:
    worker = Worker(network, config_of(*two), progress=lambda index: TrafficStats(round_newest=3_000_000 * (index + 1)))
    network.wait_until(
        lambda: [service.jobs()[0].members.workers[0].round_newest for service in two] == [3_000_000, 6_000_000],
        "both have heard",
    )
    worker.leave()


def test_a_diagnosis_asks_all_aggregators_and_names_one_that_does_not_answer(
    network: Network, two: list[Service]
) -> None:
    worker = Worker(network, config_of(*two))
    assert worker.joined.diagnose(0).startswith("all workers have begun")
    assert "one collective behind" in worker.joined.diagnose(1)
    two[1].kill()
    assert f"{two[1].endpoint} does not answer" in worker.joined.diagnose(1)
    worker.leave()


def test_a_switch_that_pytorch_starts_is_no_switch_for_others(network: Network) -> None:
    with pytest.raises(JoinError, match="WIRESUM_SWITCH=local is for PyTorch") as caught:
        Worker(network, AgentConfig(switch="local"))
    assert caught.value.code == "FAILED_PRECONDITION"
