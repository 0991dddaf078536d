"""The client of the join service, against the real service with a switch that only records what it is told. What time
decides is tested in virtual time."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace

import grpc
import pytest

from wiresum import join as messages
from wiresum.agent import life_table
from wiresum.agent import membership as module
from wiresum.agent.absence import STANDSTILL_SAID_AFTER_S
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    JobAbortedError,
    JoinError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLeftError,
    WorkerLostError,
)
from wiresum.agent.membership import Membership
from wiresum.agent.statistics import TrafficStats
from wiresum.agent.world import WORLD, World
from wiresum.controller import Endpoint, JoinServer, Limits
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.doubles.resuming import DataPath, Start
from wiresum_lab.doubles.virtual_network import Host, Network, Service
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    driver = RecordingDriver()
    yield driver
    driver.released.set()


@pytest.fixture
def server(driver: RecordingDriver) -> Iterator[JoinServer]:
    server = JoinServer(driver)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.5)


def config_of(port: int, **fields: object) -> AgentConfig:
    return AgentConfig.from_environment({}, **({"switch": f"127.0.0.1:{port}", "join_timeout_s": PATIENCE_S} | fields))


def join(config: AgentConfig, rank: int = 0, world_size: int = 1, world: World = WORLD) -> Membership:
    return Membership.join(
        config,
        job_name="a-job",
        rank=rank,
        world_size=world_size,
        address="127.0.0.1",
        port=5000 + 16 * rank,
        threads_max=4,
        lanes_max=100,
        world=world,
    )


def join_all(config: AgentConfig, world_size: int) -> list[Membership]:
    with futures.ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: join(config, rank, world_size), range(world_size)))


Traffic = Callable[[], TrafficStats]


class Member:
    """A membership that attends, and the errors that it has heard."""

    def __init__(self, membership: Membership, traffic: Traffic = lambda: TrafficStats(round_newest=1)) -> None:
        self.membership = membership
        self.errors: list[WiresumError] = []
        path = DataPath()
        membership.attend(
            on_ended=self.errors.append, progress=traffic, traffic=traffic, halt=path.halt, move=path.move
        )

    def wait_ended(self) -> WiresumError:
        wait_until(lambda: bool(self.errors), "the membership hears that the job has ended")
        assert len(self.errors) == 1
        return self.errors[0]


@pytest.fixture
def attend() -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def attend_one(membership: Membership, **options: Traffic) -> Member:
        members.append(Member(membership, **options))
        return members[-1]

    yield attend_one
    for member in members:
        member.membership.leave()
    wait_until(lambda: not threads_of_memberships(), "the threads of the memberships have ended")


def threads_of_memberships() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "wiresum-membership"]


# Joining.


def test_a_grant_holds_what_the_service_replied(server: JoinServer, driver: RecordingDriver) -> None:
    first, second = join_all(config_of(server.port, slots=64, share=False), 2)
    grant = second.grant
    assert (grant.job, grant.key, grant.worker, grant.workers) == (1, driver.entries[0].key, 1, 2)
    assert (grant.lanes, grant.threads, grant.slots) == (100, 4, 64)
    assert (grant.switch_endpoint.address, grant.switch_endpoint.port) == driver.endpoint
    assert (first.grant.rank, grant.rank, grant.switch_name) == (0, 1, driver.name)
    assert (grant.heartbeat_interval_ms, grant.heartbeat_lost_ms) == (500, 30_000)
    assert driver.entries[0].endpoints == (("127.0.0.1", 5000), ("127.0.0.1", 5016))
    first.leave()
    second.leave()


def test_a_switch_bound_to_all_addresses_is_used_at_the_address_that_was_reached(driver: RecordingDriver) -> None:
    driver.endpoint = Endpoint("0.0.0.0", 43488)
    server = JoinServer(driver)
    server.start("127.0.0.1", 0)
    membership = join(config_of(server.port))
    assert membership.grant.switch_endpoint.address == "127.0.0.1"
    membership.leave()
    server.stop()


def test_the_service_of_a_tofino_asks_for_check_words(driver: RecordingDriver) -> None:  # R5.28
    driver.kind = "tofino"
    server = JoinServer(driver)
    server.start("127.0.0.1", 0)
    membership = join(config_of(server.port))
    assert membership.grant.check_word
    membership.leave()
    server.stop()


def expect_refusal(
    code: str, advice: str, config: AgentConfig, rank: int = 0, world_size: int = 1, world: World = WORLD
) -> None:
    with pytest.raises(JoinError, match=advice) as caught:
        join(config, rank, world_size, world)
    assert caught.value.code == code
    assert f"127.0.0.1:{config.switch_port}" in str(caught.value)


def test_refusals_keep_their_code_and_say_what_to_do(server: JoinServer) -> None:
    config = config_of(server.port)
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(join, config, 0, 2)
        wait_until(lambda: "forming" in states_at(server), "the first is waiting")
        expect_refusal("FAILED_PRECONDITION", "world size", config, 1, 3)
        expect_refusal("ALREADY_EXISTS", "rank", config, 0, 2)
        expect_refusal("PERMISSION_DENIED", "WIRESUM_JOB_TOKEN", config_of(server.port, job_token="5"), 1, 2)
        expect_refusal("INVALID_ARGUMENT", "workers", config, 0, 4097)
        second = join(config, 1, 2)
        expect_refusal("ALREADY_EXISTS", r"choose another name \(WIRESUM_JOB\)", config, 1, 2)
        first.result().leave()
        second.leave()


def states_at(server: JoinServer) -> list[str]:
    client = Client(server.port)
    states = [job.state for job in client.jobs()]
    client.close()
    return states


def sums_wrong_at(server: JoinServer) -> int:
    (switch,) = server.report().switches
    return int(switch.sums_wrong)


def test_another_protocol_version_is_refused(server: JoinServer, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = types.SimpleNamespace(**(vars(messages) | {"PROTOCOL_VERSION": 7}))
    monkeypatch.setattr(module, "messages", newer)
    expect_refusal("FAILED_PRECONDITION", "release", config_of(server.port))


def test_an_endpoint_that_is_no_wiresum_switch_is_reported() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    expect_refusal("UNIMPLEMENTED", "is no Wiresum switch", config_of(port))
    server.stop(0).wait()


# Attending.


def test_an_abort_ends_the_job_for_all_with_its_reason(server: JoinServer, attend: Callable[..., Member]) -> None:
    memberships = join_all(config_of(server.port), 2)
    members = [attend(membership) for membership in memberships]
    memberships[0].abort("the loss is NaN")
    for member in members:
        error = member.wait_ended()
        assert isinstance(error, JobAbortedError)
        assert "the loss is NaN" in error.reason


def test_wrong_sums_are_said_with_each_heartbeat_and_with_an_abort(
    server: JoinServer, attend: Callable[..., Member]
) -> None:  # R7.14
    traffic = TrafficStats()
    member = attend(join(config_of(server.port)), traffic=lambda: traffic)
    wait_until(lambda: member.membership.heard > 0, "the service knows that there was none before")
    traffic = TrafficStats(sums_wrong=2)
    wait_until(lambda: sums_wrong_at(server) == 2, "a heartbeat has said it")
    traffic = TrafficStats(sums_wrong=2**32 + 4)
    member.membership._progress = TrafficStats  # heartbeats say no more of it
    member.membership.abort("it was wrong twice")
    assert sums_wrong_at(server) == 2**32 - 1
    member.wait_ended()


def test_leaving_is_quiet_idempotent_and_ends_the_threads(server: JoinServer, attend: Callable[..., Member]) -> None:
    memberships = join_all(config_of(server.port), 2)
    members = [attend(membership) for membership in memberships]
    with futures.ThreadPoolExecutor() as pool:
        for membership in memberships * 4:
            pool.submit(membership.leave)
    wait_until(lambda: threads_of_memberships() == [], "the threads have ended")
    assert [member.errors for member in members] == [[], []]
    wait_until(lambda: states_at(server) == [], "the job is over")


def test_attend_after_leave_does_nothing(server: JoinServer) -> None:
    membership = join(config_of(server.port))
    membership.leave()
    member = Member(membership)
    assert threads_of_memberships() == []
    assert member.errors == []


def test_leave_may_be_called_from_the_callback(server: JoinServer) -> None:
    membership = join(config_of(server.port))
    left = threading.Event()

    def leave(_: WiresumError) -> None:
        membership.leave()
        left.set()

    DataPath().attend(membership, leave)
    membership.abort("a reason")
    assert left.wait(PATIENCE_S)
    wait_until(lambda: not threads_of_memberships(), "the thread has ended")


def test_attending_twice_is_an_error(server: JoinServer, attend: Callable[..., Member]) -> None:
    member = attend(join(config_of(server.port)))
    with pytest.raises(RuntimeError, match="attends already"):
        DataPath().attend(member.membership)


def test_a_worker_whose_certificate_was_revoked_is_refused_when_it_reconnects(
    server: JoinServer, attend: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connected worker learns of it by the end of its job; this one was disconnected at that time."""
    member = attend(join(config_of(server.port)))
    wait_until(lambda: member.membership.heard > 0, "the first heartbeat was answered")
    monkeypatch.setattr(server._security.interceptor, "_is_revoked", lambda _serial: True)
    member.membership._hang_up()
    error = member.wait_ended()
    assert isinstance(error, JoinError)
    assert error.code == "UNAUTHENTICATED"
    assert "revoked" in str(error)


# The end of a worker's process, and forked children.

WORKER = """
import os, sys, threading
from wiresum.agent.config import AgentConfig
from wiresum.agent.membership import Membership
from wiresum.agent.statistics import NO_TRAFFIC
membership = Membership.join(
    AgentConfig(switch=f"127.0.0.1:{sys.argv[1]}"), job_name="a-job", rank=1, world_size=2,
    address="127.0.0.1", port=6000, threads_max=4, lanes_max=100)
membership.attend(on_ended=lambda error: print(type(error).__name__, flush=True), progress=lambda: NO_TRAFFIC,
    traffic=lambda: NO_TRAFFIC, halt=bytes, move=print)
exec(sys.argv[2])
"""


def run_worker(server: JoinServer, code: str, attend: Callable[..., Member]) -> tuple[Member, int, str, str]:
    """Runs rank 1 in its own process until it ends; rank 0 is in this one."""
    command = [sys.executable, "-c", WORKER, str(server.port), code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    member = attend(join(config_of(server.port), 0, 2))
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return member, process.returncode, output, errors


def test_a_process_that_ends_normally_leaves_its_job(server: JoinServer, attend: Callable[..., Member]) -> None:
    member, status, _, errors = run_worker(server, "pass", attend)
    assert (status, errors) == (0, "")
    assert member.errors == []
    member.membership.leave()
    wait_until(lambda: states_at(server) == [], "the job is over")


def test_a_process_that_an_exception_ends_tells_the_others(server: JoinServer, attend: Callable[..., Member]) -> None:
    member, status, _, _ = run_worker(server, "raise ValueError('no such file')", attend)
    assert status == 1
    error = member.wait_ended()
    assert isinstance(error, JobAbortedError)
    assert "rank 1" in error.reason
    assert "ended with ValueError: no such file" in error.reason


def test_a_killed_process_is_lost(server: JoinServer, attend: Callable[..., Member]) -> None:
    member, _, _, _ = run_worker(server, "while not membership.heard: pass\nos._exit(3)", attend)
    error = member.wait_ended()
    assert isinstance(error, WorkerLostError)
    assert error.rank == 1


FORK = """
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.agent import WiresumError
from wiresum_lab.processes import PATIENCE_S, wait_until
def child():
    membership.abort("never said")
    membership.leave()
    try:
        membership.diagnose()
    except WiresumError as error:
        assert "a child of the worker" in str(error)
for _ in range(3):
    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == 0, worker.exitcode
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs what is registered for the exit of the interpreter
assert os.waitpid(pid, 0)[1] == 0
events = membership.heard
wait_until(lambda: membership.heard >= events + 3, "three more heartbeats are answered")
print("alive", flush=True)
membership.leave()
"""


def test_a_forked_child_is_no_member_and_does_not_disturb_its_parent(
    server: JoinServer, attend: Callable[..., Member]
) -> None:
    member, status, output, errors = run_worker(server, FORK, attend)
    assert (status, output) == (0, "alive\n"), errors
    assert "fork" not in errors, "gRPC has nothing to say about it"
    assert member.errors == []


def test_the_variable_that_silences_grpc_is_restored() -> None:
    assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ


def test_grpc_logs_no_handshakes_of_a_worker_unless_asked_to() -> None:
    code = "import os, wiresum.agent.control; print(os.environ['GRPC_VERBOSITY'])"
    for given, kept in (({}, "ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG")):
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | given
        run = [sys.executable, "-c", code]
        assert subprocess.check_output(run, text=True, timeout=PATIENCE_S, env=environment) == f"{kept}\n"


def answer_of(membership: Membership) -> messages.Diagnosis:
    """It may take longer than a worker that has failed waits for it."""

    def ask() -> messages.Diagnosis | None:
        with contextlib.suppress(SwitchUnreachableError):
            return membership.diagnose()
        return None

    return wait_until(ask, "the service answers")


def test_diagnose_asks_the_switch(server: JoinServer) -> None:
    membership = join(config_of(server.port))
    (worker,) = answer_of(membership).workers
    assert (worker.peer.rank, worker.contributions, worker.left) == (0, 5, False), "as the switch says"
    membership.leave()


# In virtual time.


def test_no_switch_is_an_error_that_says_how_to_start_one(network: Network) -> None:
    config = AgentConfig(switch=Service(network).endpoint)
    expect_refusal("UNAVAILABLE", "start one there with `wiresum switch`", config, world=Host(network))


def test_a_join_that_times_out_names_the_missing_ranks(network: Network, service: Service) -> None:
    config = AgentConfig(switch=service.endpoint)
    expect_refusal("DEADLINE_EXCEEDED", "ranks 0, 2 of 3", config, 1, 3, Host(network))


def test_a_worker_whose_program_is_stopped_is_lost_though_its_membership_runs(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.members[1]._progress = lambda: None
    network.wait_until(lambda: job.paths[0].errors, "it is lost")
    (error,) = job.paths[0].errors
    assert isinstance(error, WorkerLostError) and error.rank == 1


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_worker_that_was_stopped_says_so_and_does_not_blame_others(
    network: Network, service: Service, start: Start, *, forgotten: bool
) -> None:
    """`forgotten`: and so is the job, when it asks again."""
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.await_heard()
    job.members[1]._awake.explain = lambda: "this process itself was stopped for 45 s"  # type: ignore[method-assign]
    job.hosts[1].cut("silence")
    network.wait_until(lambda: job.paths[0].errors, "it is lost")
    if forgotten:
        service.kill()
        service.start()
    job.hosts[1].cut("")
    network.wait_until(lambda: job.paths[1].errors, "it hears of it")
    (error,) = job.paths[1].errors
    assert "this process itself was stopped for 45 s" in str(error)


def test_a_lost_worker_is_named_to_the_others(network: Network, service: Service, start: Start) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(), DataPath()])
    job.hosts[1].cut("silence")
    network.wait_until(lambda: job.paths[0].errors and job.paths[2].errors, "the others have ended")
    for path in (job.paths[0], job.paths[2]):
        (error,) = path.errors
        assert isinstance(error, WorkerLostError)
        assert (error.rank, error.host_name) == (1, socket.gethostname())
        assert "rank 1" in str(error)


def test_a_worker_whose_packets_get_no_answer_says_so_while_the_service_answers(
    network: Network, service: Service, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.paths[1].answered = True
    began_at = network.now()
    network.wait_until(lambda: "though this worker sends" in caplog.text, "it says so")
    assert network.now() - began_at >= STANDSTILL_SAID_AFTER_S
    job.paths[0].answered = True
    network.wait_until(lambda: "something comes from the switch" in caplog.text, "it says that, too")
    assert caplog.text.count("though this worker sends") == 1, "the other one has nothing to say"
    assert not job.paths[0].errors and not job.paths[1].errors


@pytest.mark.parametrize("how", ["refused", "silence"])
def test_a_worker_gives_up_a_service_that_it_does_not_reach_and_is_lost(
    network: Network, start: Start, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """After the grant's reattach time, or the time for a host that says nothing."""
    limits = Limits(heartbeat_interval_ms=100, heartbeat_lost_ms=8000, connection_lost_ms=1000, reattach_ms=5000)
    job = start(Service(network, limits).start().endpoint, [DataPath(), DataPath()])
    job.hosts[0].cut(how)
    cut_at = network.now()
    network.wait_until(lambda: job.members[0]._life.has_lost_lease, "it looks for another one")
    away_s = network.now() - cut_at
    first, second = job.await_errors()
    assert isinstance(second, WorkerLostError) and second.rank == 0
    assert isinstance(first, SwitchUnreachableError) and "nothing comes from the switch" in str(first)
    assert ("refused" in str(first)) == (how == "refused")
    (said,) = [text for text in caplog.messages if "the job goes on without it" in text]
    assert "has not answered for 2 s" in said or how == "silence"
    least_s, late_s = (5, 1) if how == "refused" else (8, life_table.SILENCE_S_MAX)  # it looks between two connections
    assert least_s <= away_s < least_s + late_s


@pytest.mark.parametrize("how", ["refused", "silence"])
def test_a_worker_attends_again_after_each_broken_connection_without_an_error(
    network: Network, start: Start, how: str
) -> None:
    service = Service(network, Limits(heartbeat_interval_ms=100)).start()
    job = start(service.endpoint, [DataPath(), DataPath()])
    for _ in range(3):
        job.hosts[0].cut(how)
        network.sleep(0.3)
        job.hosts[0].cut("")
        job.await_heard()


def test_results_that_are_on_their_way_when_another_worker_leaves_come_first(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    last_at = network.now() + Limits().leave_grace_ms / 1000 + 2.0
    life = job.members[0]._life
    life.worker = replace(life.worker, traffic=lambda: TrafficStats(results=int(20 * min(network.now(), last_at))))
    job.members[1].leave()
    network.wait_until(lambda: job.paths[0].errors, "it hears that the other one has left")
    assert isinstance(job.paths[0].errors[0], WorkerLeftError) and last_at <= network.now() < last_at + 1.0


@pytest.mark.parametrize("how", ["refused", "silence"])
def test_leave_is_bounded_if_the_service_is_gone(network: Network, service: Service, start: Start, how: str) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()])
    job.hosts[0].cut(how)
    left_at = network.now()
    job.members[0].leave()
    assert network.now() - left_at <= 2 * life_table.LEAVE_S_MAX + module.THREAD_END_S_MAX
    assert job.paths[0].errors == []


def test_a_connection_that_is_silent_is_made_anew(network: Network, start: Start) -> None:
    """Once for each SILENCE_S_MAX, and nothing else follows from that."""
    service = Service(network, Limits(heartbeat_interval_ms=100)).start()
    job = start(service.endpoint, [DataPath()])
    stream = job.hosts[0].calls[-1]
    job.hosts[0].loses_packets = True
    network.sleep(life_table.SILENCE_S_MAX - 0.5)
    assert not stream.is_over
    network.sleep(1.0)
    assert stream.is_over
    job.hosts[0].loses_packets = False
    job.await_heard()
    job.check()
