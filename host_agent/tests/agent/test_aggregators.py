"""A worker's memberships at several aggregators: each is the real join service, with a switch that only records what it
is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent import futures

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
from wiresum.controller import JoinServer, Limits
from wiresum.controller.driver import SwitchSizes
from wiresum.join import Admission
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, wait_until

LIMITS = Limits(slots_default=64, leave_grace_ms=200, ask_again_ms_max=200)
LANES = 360


@pytest.fixture
def start() -> Iterator[Callable[..., JoinServer]]:
    servers: list[JoinServer] = []

    def start_one(lanes: int = LANES, jobs_max: int = 8) -> JoinServer:
        server = JoinServer(RecordingDriver(SwitchSizes(slots=256, lanes_max=lanes, jobs_max=jobs_max)), LIMITS)
        server.start("127.0.0.1", 0)
        servers.append(server)
        return server

    yield start_one
    for server in servers:
        server.stop(0.5)


Start = Callable[..., JoinServer]


@pytest.fixture
def two(start: Start) -> list[JoinServer]:
    """Two services, in the order in which workers join them."""
    return sorted((start(), start()), key=lambda server: f"127.0.0.1:{server.port}")


def config_of(*servers: JoinServer, **settings: object) -> AgentConfig:
    switch = "+".join(f"127.0.0.1:{server.port}" for server in servers)
    return AgentConfig(switch=switch, **({"join_timeout_s": PATIENCE_S, "threads": 1} | settings))  # type: ignore[arg-type]


ports = itertools.count(40_000)


def bind(address: str, count: int, within: tuple[int, int]) -> int:
    """Endpoints for the data path, on which no test sends anything."""
    return next(ports)


heard: dict[Aggregators, list[WiresumError]] = {}
"""Of why their jobs have ended."""


def join(
    config: AgentConfig,
    rank: int = 0,
    world_size: int = 1,
    *,
    job_name: str = "a-job",
    admission: Admission = Admission.QUEUE,
    progress: Callable[[int], int] = lambda index: index,
) -> Aggregators:
    errors: list[WiresumError] = []
    joined = Aggregators.join(
        config,
        job_name=job_name,
        rank=rank,
        world_size=world_size,
        admission=admission,
        bind=bind,
        on_ended=errors.append,
        progress=progress,
    )
    heard[joined] = errors
    return joined


def join_all(config: AgentConfig, world_size: int) -> list[Aggregators]:
    with futures.ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: join(config, rank, world_size), range(world_size)))


def states_at(server: JoinServer) -> list[str]:
    client = Client(server.port)
    states = [job.state for job in client.jobs()]
    client.close()
    return states


def test_a_job_is_joined_at_each_and_left_at_each(two: list[JoinServer]) -> None:
    workers = join_all(config_of(*reversed(two)), 2)
    for worker in workers:
        assert [one.switch for one in worker] == [f"127.0.0.1:{server.port}" for server in two]
        assert len(worker) == 2
    keys = [[one.membership.grant.key for one in worker] for worker in workers]
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[0][1], "each service draws its own"
    assert [states_at(server) for server in two] == [["running"], ["running"]]
    for worker in workers:
        worker.leave()
        worker.leave()
    assert [states_at(server) for server in two] == [[], []]


def test_if_one_aggregator_refuses_the_earlier_ones_are_left(two: list[JoinServer], start: Start) -> None:
    in_the_way = join(config_of(two[1], slots=256), job_name="in-the-way", admission=Admission.AT_ONCE)
    with pytest.raises(JoinError, match=f"127.0.0.1:{two[1].port}") as caught:
        join(config_of(*two), admission=Admission.AT_ONCE)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert states_at(two[0]) == []
    in_the_way.leave()
    join(config_of(*two), admission=Admission.AT_ONCE).leave()


def test_an_unreachable_aggregator_is_named_within_one_join_timeout(two: list[JoinServer]) -> None:
    two[1].stop()
    began_at = time.monotonic()
    with pytest.raises(JoinError, match=f"cannot reach the switch at 127.0.0.1:{two[1].port} ") as caught:
        join(config_of(*two, join_timeout_s=1.0))
    assert caught.value.code == "UNAVAILABLE"
    assert time.monotonic() - began_at < PATIENCE_S
    assert states_at(two[0]) == []


def test_different_packet_sizes_are_an_error_that_names_the_setting(start: Start) -> None:
    servers = [start(), start(lanes=128)]
    with pytest.raises(JoinError, match="WIRESUM_LANES=128") as caught:
        join(config_of(*servers))
    assert all(f"{lanes} at the switch at 127.0.0.1:" in str(caught.value) for lanes in (LANES, 128))
    assert [states_at(server) for server in servers] == [[], []]
    join(config_of(*servers, lanes=128)).leave()


def test_workers_with_different_numbers_of_aggregators_get_an_error(two: list[JoinServer]) -> None:
    with futures.ThreadPoolExecutor() as pool:
        joining = [pool.submit(join, config_of(*two), 0, 2), pool.submit(join, config_of(two[0]), 1, 2)]
        for each in joining:
            with pytest.raises(
                JoinError, match=r"the number of aggregators in WIRESUM_SWITCH is 2 at rank 0 .* 1 at rank 1 "
            ):
                each.result(PATIENCE_S)


@pytest.fixture
def not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers do not send their settings, so one of them may know of the first aggregator only."""
    monkeypatch.setattr(AgentConfig, "agreed", {})


@pytest.mark.usefixtures("not_compared")
def test_a_worker_waiting_at_the_second_aggregator_hears_of_an_abort_at_the_first(two: list[JoinServer]) -> None:
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(join, config_of(*two), 0, 2)
        elsewhere = join(config_of(two[0]), 1, 2)  # this worker has not been told of the second aggregator
        wait_until(lambda: states_at(two[1]) == ["forming"], "the first worker waits at the second aggregator")
        elsewhere.abort("the wrong configuration")
        with pytest.raises(JobAbortedError, match="the wrong configuration"):
            waiting.result(PATIENCE_S)
    elsewhere.leave()
    wait_until(lambda: [states_at(server) for server in two] == [[], []], "nothing is left of the job")


@pytest.mark.usefixtures("not_compared")
def test_a_worker_lost_at_the_first_aggregator_is_named_to_one_waiting_at_the_second(two: list[JoinServer]) -> None:
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(join, config_of(*two), 0, 2)
        elsewhere = join(config_of(two[0]), 1, 2)
        wait_until(lambda: states_at(two[1]) == ["forming"], "the first worker waits at the second aggregator")
        (member,) = [one.membership for one in elsewhere]
        wait_until(lambda: member._events > 0, "it attends")
        member._control.close()  # as if the process had died
        member._leaving.set()
        with pytest.raises(WorkerLostError, match="rank 1"):
            waiting.result(PATIENCE_S)


@pytest.mark.parametrize("stopped", [0, 1])
def test_an_aggregator_that_stops_ends_the_job_and_is_named(two: list[JoinServer], stopped: int) -> None:
    workers = join_all(config_of(*two), 2)
    wait_until(lambda: all(one.membership._events > 0 for worker in workers for one in worker), "all attend")
    two[stopped].stop()
    for worker in workers:
        wait_until(lambda worker=worker: bool(heard[worker]), "it hears that the job has ended")
        assert isinstance(heard[worker][0], SwitchUnreachableError)
        assert f"127.0.0.1:{two[stopped].port}" in str(heard[worker][0])
    for worker in workers:
        worker.leave()
    assert [len(heard[worker]) for worker in workers] == [1, 1]
    assert states_at(two[1 - stopped]) == []


def test_an_end_before_attend_is_reported_by_attend(two: list[JoinServer]) -> None:
    config = config_of(*two)
    early = JobMembership(config, job_name="a-job", rank=0, world_size=2)
    with futures.ThreadPoolExecutor() as pool:
        joining = pool.submit(early.join, bind)
        other = join(config, 1, 2)
        joining.result(PATIENCE_S)
    other.abort("too soon")
    wait_until(lambda: early._aggregators is not None and early._aggregators.ended is not None, "it has heard")
    told: list[WiresumError] = []
    early.attend(dict, lambda error, tell_others: told.append(error), halt=lambda _: "", move=lambda _: None)
    assert isinstance(told[0], JobAbortedError)
    early.leave()
    other.leave()


def test_each_aggregator_is_told_its_own_rounds(two: list[JoinServer]) -> None:
    aggregators = join(config_of(*two), progress=lambda index: 3_000_000 * (index + 1))
    wait_until(lambda: [rounds_told(server) for server in two] == [3_000_000, 6_000_000], "both have heard")
    aggregators.leave()


def rounds_told(server: JoinServer) -> int:
    assert server._effects is not None
    (job,) = server._effects._jobs.all()
    return job.workers[0].round_newest


def test_a_diagnosis_asks_all_aggregators_and_names_one_that_does_not_answer(two: list[JoinServer]) -> None:
    aggregators = join(config_of(*two))
    assert aggregators.diagnose(0).startswith("all workers have begun")
    assert "one collective behind" in aggregators.diagnose(1)
    two[1].stop()
    assert f"127.0.0.1:{two[1].port} does not answer" in aggregators.diagnose(1)
    aggregators.leave()
