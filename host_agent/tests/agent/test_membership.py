"""The client of the join service, against the real service with a switch that only records what it is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest

from wiresum import join as messages
from wiresum.agent import membership as module
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import (
    JobAbortedError,
    JoinError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLostError,
)
from wiresum.agent.membership import Membership
from wiresum.controller import Endpoint, JoinServer
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, unused_port, wait_until


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


def join(config: AgentConfig, rank: int = 0, world_size: int = 1, job_name: str = "a-job") -> Membership:
    return Membership.join(
        config,
        job_name=job_name,
        rank=rank,
        world_size=world_size,
        address="127.0.0.1",
        port=5000 + 16 * rank,
        threads_max=4,
        lanes_max=100,
    )


def join_all(config: AgentConfig, world_size: int) -> list[Membership]:
    with futures.ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: join(config, rank, world_size), range(world_size)))


class Member:
    """A membership that attends, and the errors that it has heard."""

    def __init__(self, membership: Membership, round_newest: int = 1) -> None:
        self.membership = membership
        self.errors: list[WiresumError] = []
        membership.attend(on_ended=self.errors.append, progress=lambda: round_newest)

    def wait_ended(self) -> WiresumError:
        wait_until(lambda: bool(self.errors), "the membership hears that the job has ended")
        assert len(self.errors) == 1
        return self.errors[0]


@pytest.fixture
def attend() -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def attend_one(membership: Membership, **options: int) -> Member:
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
    first, second = join_all(config_of(server.port, slots=64, key=77), 2)
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


def expect_refusal(code: str, advice: str, config: AgentConfig, rank: int = 0, world_size: int = 1) -> None:
    with pytest.raises(JoinError, match=advice) as caught:
        join(config, rank, world_size)
    assert caught.value.code == code
    assert f"127.0.0.1:{config.switch_port}" in str(caught.value)


def test_no_switch_is_an_error_that_says_how_to_start_one(caplog: pytest.LogCaptureFixture) -> None:
    port = unused_port()
    expect_refusal("UNAVAILABLE", "start one there with `wiresum switch`", config_of(port, join_timeout_s=2.5))
    assert f"waiting for switch at 127.0.0.1:{port}" in caplog.text


def test_refusals_keep_their_code_and_say_what_to_do(server: JoinServer) -> None:
    config = config_of(server.port)
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(join, config, 0, 2)
        wait_until(lambda: "forming" in states_at(server), "the first is waiting")
        expect_refusal("FAILED_PRECONDITION", "world size", config, 1, 3)
        expect_refusal("ALREADY_EXISTS", "rank", config, 0, 2)
        expect_refusal("PERMISSION_DENIED", "WIRESUM_KEY", config_of(server.port, key=5), 1, 2)
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


def test_another_protocol_version_is_refused(server: JoinServer, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = types.SimpleNamespace(**(vars(messages) | {"PROTOCOL_VERSION": 7}))
    monkeypatch.setattr(module, "messages", newer)
    expect_refusal("FAILED_PRECONDITION", "release", config_of(server.port))


def test_a_join_that_times_out_names_the_missing_ranks(server: JoinServer) -> None:
    expect_refusal("DEADLINE_EXCEEDED", "ranks 0, 2 of 3", config_of(server.port, join_timeout_s=0.5), 1, 3)


@pytest.mark.slow
def test_a_worker_that_was_started_before_its_switch_waits_for_it(
    driver: RecordingDriver, caplog: pytest.LogCaptureFixture
) -> None:
    server, port = JoinServer(driver), unused_port()
    with futures.ThreadPoolExecutor() as pool:
        joining = pool.submit(join, config_of(port))
        wait_until(lambda: "waiting for switch" in caplog.text, "the worker has said what it waits for")
        server.start("127.0.0.1", port)
        joining.result(PATIENCE_S).leave()
    server.stop()


@pytest.mark.slow
def test_a_worker_waits_while_the_job_before_it_is_ending(
    server: JoinServer, driver: RecordingDriver, caplog: pytest.LogCaptureFixture
) -> None:
    before = join(config_of(server.port))
    driver.released.clear()  # the eviction blocks
    before.leave()
    with futures.ThreadPoolExecutor() as pool:
        joining = pool.submit(join, config_of(server.port))
        wait_until(lambda: "is just ending" in caplog.text, "the worker has said what it waits for")
        driver.released.set()
        after = joining.result(PATIENCE_S)
    assert after.grant.job == 2
    after.leave()


def test_an_endpoint_that_is_no_wiresum_switch_is_reported() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    expect_refusal("UNIMPLEMENTED", "is no Wiresum switch", config_of(port))
    server.stop(0).wait()


# Attending.


@pytest.mark.slow
def test_a_lost_worker_is_named(server: JoinServer, attend: Callable[..., Member]) -> None:
    memberships = join_all(config_of(server.port), 3)
    members = [attend(membership) for membership in memberships]
    wait_until(lambda: states_at(server) == ["running"], "all attend")
    memberships[1]._control.close()  # as if the process had died
    memberships[1]._leaving.set()
    for member in (members[0], members[2]):
        error = member.wait_ended()
        assert isinstance(error, WorkerLostError)
        assert error.rank == 1
        assert error.host_name == socket.gethostname()
        assert "rank 1" in str(error)


def test_an_abort_ends_the_job_for_all_with_its_reason(server: JoinServer, attend: Callable[..., Member]) -> None:
    memberships = join_all(config_of(server.port), 2)
    members = [attend(membership) for membership in memberships]
    memberships[0].abort("the loss is NaN")
    for member in members:
        error = member.wait_ended()
        assert isinstance(error, JobAbortedError)
        assert "the loss is NaN" in error.reason


def test_an_abort_that_the_service_was_away_for_is_said_when_it_is_heard_again(
    server: JoinServer, attend: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    memberships = join_all(config_of(server.port), 2)
    members = [attend(membership) for membership in memberships]
    with monkeypatch.context() as away:
        away.setattr(module, "LEAVE_S_MAX", 0.0)
        memberships[0].abort("the loss is NaN")
        assert [member.errors for member in members] == [[], []]
    for member in members:
        error = member.wait_ended()
        assert isinstance(error, JobAbortedError)
        assert "the loss is NaN" in error.reason


def test_leaving_is_quiet_idempotent_and_ends_the_threads(server: JoinServer, attend: Callable[..., Member]) -> None:
    memberships = join_all(config_of(server.port), 2)
    members = [attend(membership) for membership in memberships]
    with futures.ThreadPoolExecutor() as pool:
        for membership in memberships * 4:
            pool.submit(membership.leave)
    assert threads_of_memberships() == []
    assert [member.errors for member in members] == [[], []]
    assert states_at(server) == []


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

    membership.attend(on_ended=leave, progress=lambda: 1)
    membership.abort("a reason")
    assert left.wait(PATIENCE_S)
    wait_until(lambda: not threads_of_memberships(), "the thread has ended")


def test_attending_twice_is_an_error(server: JoinServer, attend: Callable[..., Member]) -> None:
    member = attend(join(config_of(server.port)))
    with pytest.raises(RuntimeError, match="attends already"):
        member.membership.attend(on_ended=member.errors.append, progress=lambda: 1)


def test_a_stopped_switch_is_reported_as_stopped(server: JoinServer, attend: Callable[..., Member]) -> None:
    member = attend(join(config_of(server.port)))
    wait_until(lambda: member.membership._events > 0, "a heartbeat was answered")
    server.stop()
    error = member.wait_ended()
    assert isinstance(error, SwitchUnreachableError)
    assert "the switch was stopped" in str(error)


# A switch in its own process.

SWITCH = """
import sys, time
from wiresum.controller import JoinServer, Limits
from wiresum_lab.doubles.controller import RecordingDriver
limits = Limits(heartbeat_interval_ms=200, heartbeat_lost_ms=1500, reattach_ms=1000)
print(JoinServer(RecordingDriver(), limits).start("127.0.0.1", int(sys.argv[1])), flush=True)
time.sleep(600)
"""


@pytest.fixture
def spawn_switch() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    processes: list[subprocess.Popen[str]] = []

    def spawn(port: int = 0) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen([sys.executable, "-c", SWITCH, str(port)], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield spawn
    for process in processes:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


SpawnSwitch = Callable[..., tuple[subprocess.Popen[str], int]]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_switch_that_is_killed_or_hangs_is_unreachable(
    sent: signal.Signals, spawn_switch: SpawnSwitch, attend: Callable[..., Member]
) -> None:
    switch, port = spawn_switch()
    members = [attend(membership) for membership in join_all(config_of(port), 2)]
    wait_until(lambda: all(member.membership._events > 0 for member in members), "heartbeats were answered")
    os.kill(switch.pid, sent)
    for member in members:
        error = member.wait_ended()
        assert isinstance(error, SwitchUnreachableError)
        assert f"127.0.0.1:{port} does not answer" in str(error)
    with pytest.raises(SwitchUnreachableError, match="does not answer the question who lags"):
        members[0].membership.diagnose()


class Wire:
    """A TCP connection to the switch that the test can cut while both ends live."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._target = port
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()
        except OSError:
            pass

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for end in self._sockets:
            end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_a_worker_reconnects_after_a_broken_connection_without_an_error(
    server: JoinServer, attend: Callable[..., Member]
) -> None:
    wire = Wire(server.port)
    with futures.ThreadPoolExecutor() as pool:
        cut_off = pool.submit(join, config_of(wire.port), 0, 2)
        other = join(config_of(server.port), 1, 2)
    members = [attend(cut_off.result()), attend(other)]
    for _ in range(3):
        wait_until(lambda: all(member.membership._events > 0 for member in members), "heartbeats were answered")
        wire.cut()
        before = members[0].membership._events
        wait_until(lambda before=before: members[0].membership._events > before, "it attends again")
    assert members[0].errors == members[1].errors == []
    wire.close()


@pytest.mark.slow
def test_a_worker_whose_connection_stays_broken_is_lost_and_gives_up_the_switch(
    server: JoinServer, attend: Callable[..., Member]
) -> None:
    wire = Wire(server.port)
    with futures.ThreadPoolExecutor() as pool:
        cut_off = pool.submit(join, config_of(wire.port), 0, 2)
        other = join(config_of(server.port), 1, 2)
    members = [attend(cut_off.result()), attend(other)]
    wait_until(lambda: all(member.membership._events > 0 for member in members), "heartbeats were answered")
    wire.close()
    lost = members[1].wait_ended()
    assert isinstance(lost, WorkerLostError)
    assert lost.rank == 0
    assert "nothing comes from the switch" in str(members[0].wait_ended())


def test_a_worker_whose_certificate_was_revoked_is_refused_when_it_reconnects(
    server: JoinServer, attend: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connected worker learns of it by the end of its job; this one was disconnected at that time."""
    member = attend(join(config_of(server.port)))
    wait_until(lambda: member.membership._events > 0, "the first heartbeat was answered")
    monkeypatch.setattr(server._security.interceptor, "_is_revoked", lambda _serial: True)
    member.membership._hang_up()
    error = member.wait_ended()
    assert isinstance(error, JoinError)
    assert error.code == "UNAUTHENTICATED"
    assert "revoked" in str(error)


def test_a_restarted_switch_does_not_know_its_old_workers(
    spawn_switch: SpawnSwitch, attend: Callable[..., Member]
) -> None:
    switch, port = spawn_switch()
    member = attend(join(config_of(port)))
    wait_until(lambda: member.membership._events > 0, "a heartbeat was answered")
    switch.kill()
    switch.wait(PATIENCE_S)
    spawn_switch(port)
    error = member.wait_ended()
    assert isinstance(error, SwitchUnreachableError)
    assert "was started anew" in str(error) or "does not answer" in str(error)


# The end of a worker's process, and forked children.

WORKER = """
import os, sys, threading
from wiresum.agent.config import AgentConfig
from wiresum.agent.membership import Membership
membership = Membership.join(
    AgentConfig(switch=f"127.0.0.1:{sys.argv[1]}"), job_name="a-job", rank=1, world_size=2,
    address="127.0.0.1", port=6000, threads_max=4, lanes_max=100)
membership.attend(on_ended=lambda error: print(type(error).__name__, flush=True), progress=lambda: 1)
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
    assert states_at(server) == []


def test_a_process_that_an_exception_ends_tells_the_others(server: JoinServer, attend: Callable[..., Member]) -> None:
    member, status, _, _ = run_worker(server, "raise ValueError('no such file')", attend)
    assert status == 1
    error = member.wait_ended()
    assert isinstance(error, JobAbortedError)
    assert "rank 1" in error.reason
    assert "ended with ValueError: no such file" in error.reason


def test_a_killed_process_is_lost(server: JoinServer, attend: Callable[..., Member]) -> None:
    member, _, _, _ = run_worker(server, "import time; time.sleep(1); os._exit(3)", attend)
    error = member.wait_ended()
    assert isinstance(error, WorkerLostError)
    assert error.rank == 1


FORK = """
import multiprocessing, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.agent import WiresumError
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
    worker.join(10)
    assert worker.exitcode == 0, worker.exitcode
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs what is registered for the exit of the interpreter
assert os.waitpid(pid, 0)[1] == 0
events = membership._events
while membership._events < events + 3:
    time.sleep(0.01)
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


@pytest.mark.slow
def test_leave_returns_soon_if_the_switch_is_gone(spawn_switch: SpawnSwitch, attend: Callable[..., Member]) -> None:
    switch, port = spawn_switch()
    member = attend(join(config_of(port)))
    os.kill(switch.pid, signal.SIGSTOP)
    left = threading.Thread(target=member.membership.leave)
    left.start()
    left.join(PATIENCE_S)
    assert not left.is_alive()
    assert member.errors == []


def test_diagnose_asks_the_switch(server: JoinServer) -> None:
    membership = join(config_of(server.port))
    (worker,) = membership.diagnose().workers
    assert (worker.peer.rank, worker.contributions, worker.left) == (0, 5, False), "as the switch says"
    membership.leave()
