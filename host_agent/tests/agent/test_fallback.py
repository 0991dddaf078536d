"""The switch that rank 0 starts where no other serves: a real child, at a real port. What workers do there is tested in
controller/tests/controller/laboratory/test_fallback.py."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum.agent import child_switch, fallback
from wiresum.agent.config import AgentConfig
from wiresum.agent.fallback import Fallback, Home
from wiresum.agent.world import WORLD
from wiresum.cli.service import Service, ServiceError
from wiresum.controller import JoinServer
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.controller.service.served_jobs import ServedJobs
from wiresum.join import Endpoint, JoinReply, Proof, Resumed
from wiresum.join.constants import THREADS_MAX
from wiresum.join.credentials import load
from wiresum.join.served import ServedJob, job_id
from wiresum_lab.doubles.controller import Client, RecordingDriver, join_request
from wiresum_lab.doubles.virtual_network import Host, Network
from wiresum_lab.doubles.virtual_network import Service as VirtualService
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, has_ended, unused_port, wait_until, wiresum

HOST = "127.0.0.1"
LANES, SLOTS = 64, 256
SECRET = bytes(32)
GRANT = JoinReply(
    lanes=LANES,
    slots=SLOTS,
    threads=1,
    workers=2,
    switch_endpoint=Endpoint(address=HOST, port=9),
    members_secret=SECRET,
)


@pytest.fixture
def config() -> AgentConfig:
    """Of a job whose switch is gone."""
    return AgentConfig(switch=f"{HOST}:{unused_port()}")


@pytest.fixture
def make() -> Iterator[Callable[..., Fallback]]:
    """Rank 0's, as PyTorch's backend makes it: the address is reserved, then agreed on."""
    made: list[Fallback] = []

    def one(config: AgentConfig, job_name: str = "a-job") -> Fallback:
        home = fallback.reserve(config)
        assert home is not None
        home.unused_s_max = 0.0
        found = Fallback.of(replace(config, fallback=home.endpoint), job_name, 0)
        assert found is not None
        home.give_back()
        made.append(found)
        return found

    yield one
    for each in made:
        each.give_back()
    wait_until(lambda: not fallback._registry.homes, "all homes are given back")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What users are told."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def is_doubted(each: Fallback) -> None:
    """By a worker that has heard what listens there."""

    def hears_it() -> bool:
        assert not each.serves()
        return "does not prove that it is the fallback switch of job 'a-job'" in each.trouble

    wait_until(hears_it, "something listens there")


def await_end(each: Fallback) -> None:
    wait_until(lambda: not each.serves(), "its port is closed")


def tries_to_listen(endpoint: str, *options: int) -> bool:
    """As another process may, with such options."""
    host, port = endpoint.split(":")
    for at in (host, "0.0.0.0"):
        with socket.socket() as other:
            for option in options:
                other.setsockopt(socket.SOL_SOCKET, option, 1)
            with contextlib.suppress(OSError):
                other.bind((at, int(port)))
                other.listen()
                return True
    return False


def test_nobody_else_can_listen_at_its_port_before_it_while_it_serves_and_after_it(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig
) -> None:
    each = make(config)

    def nobody_can() -> bool:
        reuse, share = socket.SO_REUSEADDR, socket.SO_REUSEPORT
        return not any(tries_to_listen(each.target, *options) for options in ((), (reuse,), (share,), (reuse, share)))

    assert not each.serves() and nobody_can()
    for _ in range(2):
        each.open(GRANT)
        wait_until(each.serves, "it serves")
        assert nobody_can()
        os.kill(child_of(os.getpid(), each.target), signal.SIGKILL)
        wait_until(lambda: not WORLD.listens(each.target), "nothing listens")
        assert nobody_can()
    each.give_back()
    wait_until(lambda: tries_to_listen(each.target, socket.SO_REUSEADDR), "the port is free")


def test_a_port_cannot_be_taken_in_the_moment_its_switch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with child_switch.hold_port(HOST) as held:
        endpoint = "{}:{}".format(*held.getsockname())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.listen()
        shutdown, taken = socket.socket.shutdown, []

        def attacked(listening: socket.socket, how: int) -> None:
            shutdown(listening, how)
            taken.append(tries_to_listen(endpoint, socket.SO_REUSEADDR))

        monkeypatch.setattr(socket.socket, "shutdown", attacked)
        child_switch.end_listening(held)
    assert taken == [False]


def test_a_port_that_another_process_has_is_said_at_once_and_workers_tell_that_process_nothing(
    config: AgentConfig, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It is even a switch, to which everybody may say everything; and one that knows the job's name, but no secret."""
    log_file = tmp_path / "squatter.log"
    endpoint = f"{HOST}:{unused_port()}"
    squatter = Program(wiresum("switch", "--control", endpoint, "--port", "0"), log_file)
    squatter.await_text("ready: ")
    first, second = (Fallback.of(replace(config, fallback=endpoint), "a-job", rank) for rank in (0, 1))
    assert first is not None and second is not None
    try:
        assert [line for line in lines(caplog) if "another process of this host has that port" in line]
        for each in (first, second):
            each.open(GRANT)
            is_doubted(each)
        served = ServedJobs()
        served.replace([ServedJob("a-job", "", "00" * 31, 2, SLOTS)])
        with replaced_by(squatter, endpoint, served):
            wait_until(lambda: not second.serves() and "its proof is wrong" in second.trouble, "a wrong proof")
    finally:
        squatter.kill()
        first.give_back()


@contextlib.contextmanager
def replaced_by(squatter: Program, endpoint: str, served: ServedJobs) -> Iterator[None]:
    squatter.kill()
    server = JoinServer(RecordingDriver(), served=served)
    host, port = endpoint.split(":")
    server.start(host, int(port))
    try:
        yield
    finally:
        server.stop(0.1)


def asks(target: str, *, name: str, secret: bytes, tenant: str = "", slots: int = SLOTS) -> str:
    """A rank of a job that goes on asks for a place: the code of what refuses it, or "" if it only waits for others."""
    resumed = Resumed(slots=slots, threads=1, lanes=LANES, positions=bytes(4 * slots), job_id=job_id(secret))
    with closing(Client(int(target.rpartition(":")[2]))) as client:
        request = join_request(
            job_name=name, world_size=2, tenant=tenant, slots=slots, lanes_max=LANES, resumed=resumed
        )
        try:
            next(iter(client.stub.Join(request, timeout=PATIENCE_S)))
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return ""


def test_it_serves_the_jobs_of_its_process_alone_by_name_tenant_and_secret(  # R7.28
    make: Callable[..., Fallback], config: AgentConfig
) -> None:
    night, later = make(replace(config, tenant="vision"), "night"), make(config, "later")
    night.open(GRANT)
    wait_until(night.serves, "it serves")
    as_night = {"name": "night", "secret": SECRET, "tenant": "vision"}
    for stranger in (
        {"name": "hog"},
        {"secret": bytes(31)},
        {"tenant": "speech"},
        {"tenant": ""},
        {"slots": 2 * SLOTS},
        {"name": "later"},
    ):
        said = asks(night.target, **{**as_night, **stranger})  # type: ignore[arg-type]
        assert said.startswith("PERMISSION_DENIED"), (stranger, said)
    with Service(night.target, timeout_s=PATIENCE_S) as service:
        report = service.report()
    assert not report.jobs and report.switches[0].slots_free == fallback.LEASES * SLOTS, "it has cost nothing"
    assert not asks(night.target, **as_night)  # type: ignore[arg-type]
    # One that begins while it runs has its place too, and one that is over has none any more.
    secret = bytes([1]) * 32
    grant = JoinReply(lanes=LANES, slots=SLOTS, workers=2, members_secret=secret)
    later.know(grant)
    wait_until(lambda: not asks(night.target, name="later", secret=secret), "it is told of another job")
    later.give_back()
    wait_until(lambda: bool(asks(night.target, name="later", secret=secret)), "it is told that this is over")


def test_a_job_without_a_secret_has_none(make: Callable[..., Fallback], config: AgentConfig) -> None:
    """Of a service of an early release: nobody could tell its workers from others."""
    each = make(config)
    each.open(JoinReply(lanes=LANES, slots=SLOTS, workers=2))
    assert each._home is not None and each._home._thread is None
    assert not each.serves()


def test_it_serves_a_job_of_that_size_while_it_is_open(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    each = make(config)
    each.open(GRANT)
    each.open(GRANT)
    wait_until(each.serves, "it serves")
    with Service(each.target, timeout_s=PATIENCE_S) as service:
        (switch,) = service.report().switches
    assert (switch.lanes_max, switch.slots_free) == (LANES, fallback.LEASES * SLOTS)
    wait_until(lambda: lines(caplog), "it is said")
    assert lines(caplog) == [
        f"no switch of {config.switch} serves: the job goes on at a software switch of this host ({each.target}), "
        "which is slower. It returns when one serves again"
    ]
    each.close()
    await_end(each)
    each.open(GRANT)
    wait_until(each.serves, "it serves again")


@pytest.mark.parametrize(("program", "problem"), [("exit 1", "status 1"), ("echo why", "why")])
def test_why_a_child_does_not_start_is_said(
    make: Callable[[AgentConfig], Fallback],
    config: AgentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    problem: str,
) -> None:
    instead = tmp_path / "python"
    instead.write_text(f"#!/bin/sh\n{program}\n")
    instead.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(instead))
    each = make(config)
    each.open(GRANT)
    wait_until(lambda: lines(caplog), "it is said")
    assert lines(caplog) == [f"the fallback switch at {each.target} does not start: {problem}"]


def test_it_starts_beside_forked_children_and_outlives_a_worker_that_is_killed_only_until_its_jobs_are_over(
    config: AgentConfig,
) -> None:
    program = f"""
import os
from dataclasses import replace
from wiresum.agent import fallback
from wiresum.agent.config import AgentConfig
from wiresum.join import JoinReply
from wiresum_lab.processes import wait_until
config = AgentConfig(switch={config.switch!r})
home = fallback.reserve(config)
if os.fork() == 0:  # a loader of data: it has the reserved port, too
    os.read(0, 1)  # until the test is over
    os._exit(0)
each = fallback.Fallback.of(replace(config, fallback=home.endpoint), "a-job", 0)
each.open(JoinReply(lanes={LANES}, slots={SLOTS}, members_secret=bytes(32)))
wait_until(each.serves, "it serves")
print(each.target, flush=True)
os.read(0, 1)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None
        each = Fallback(AgentConfig(switch=config.switch, fallback=worker.stdout.readline().strip()), "a-job", None)
        each.know(GRANT)
        wait_until(each.serves, "it serves here, too")
        child = child_of(worker.pid, each.target)
        worker.kill()
    await_end(each)
    wait_until(lambda: has_ended(child), "nothing keeps its process")


def test_there_is_none_where_it_is_off_or_was_not_agreed_on(config: AgentConfig) -> None:
    assert Fallback.of(config, "a-job", 0) is None
    assert Fallback.of(replace(config, fallback="off"), "a-job", 0) is None
    for other in (
        replace(config, fallback="off"),
        replace(config, transport="xdp"),
        replace(config, switch="a:1+b:1"),
        replace(config, fallback=f"{HOST}:1"),
        replace(config, switch="no-such-host.invalid:1"),
    ):
        assert fallback.reserve(other) is None


def test_rank_0_starts_it_at_the_address_that_is_named_if_that_is_its_own(
    config: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    port = unused_port()
    here = replace(config, fallback=f"{HOST}:{port}")
    first, second = (Fallback.of(here, "a-job", rank) for rank in (0, 1))
    elsewhere = Fallback.of(replace(config, fallback="192.0.2.1:4000"), "a-job", 0)
    assert first is not None and second is not None and elsewhere is not None
    assert first.target == second.target == here.fallback
    assert "192.0.2.1 is not on this host, where rank 0 is" in lines(caplog)[0]
    for other in (second, elsewhere):
        other.open(GRANT)
    assert not first.serves()
    first.open(GRANT)
    for each in (first, second):
        wait_until(each.serves, "it serves")
    home = first._home
    assert home is not None
    home.unused_s_max = 0.0
    wait_until(lambda: home._data == {(HOST, port + 1)}, "its data ports are the next ones, for firewalls")
    first.give_back()
    await_end(first)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TLS directories of workers: `may`, `may-not`, `elsewhere`, `mallory`, and of an operator; `foreign` is of another
    authority."""
    folder = tmp_path_factory.mktemp("pki")
    authority, other = (Authority.create(folder / name, "test") for name in ("ca", "foreign-ca"))
    mallory = Claims(frozenset({"worker", "fallback"}), tenants=("mallory",))
    authority.issue(Holder("mallory", mallory, (HOST,)), folder / "mallory", 10)
    other.issue(Holder("may", mallory, (HOST,)), folder / "foreign", 10)
    for name, roles, address in (
        ("may", {"worker", "fallback"}, HOST),
        ("may-not", {"worker"}, HOST),
        ("elsewhere", {"worker", "fallback"}, "192.0.2.1"),
    ):
        authority.issue(Holder(name, Claims(frozenset(roles)), (address,)), folder / name, 10)
    authority.issue(Holder("operator", Claims(frozenset({"operator"}))), folder / "operator", 10)
    return folder


class Poser(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call as a fallback that does not know the job's secret, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.asked.append(details.method)
        return grpc.stream_stream_rpc_method_handler(lambda *_: iter([Proof(mac=bytes(32)).SerializeToString()]))


@pytest.mark.parametrize(
    ("party", "is_told"),
    [("foreign", set()), ("mallory", {"Prove"}), ("may", {"Prove"}), ("operator", set())],
    ids=["stranger", "tenant", "a key in a hostile hand", "operator"],
)
def test_nobody_without_the_jobs_secret_poses_as_its_fallback_whatever_the_certificate(  # R7.28
    config: AgentConfig, certificates: Path, party: str, is_told: set[str]
) -> None:
    shown, poser = load(certificates / party), Poser()
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[poser])
    port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([(shown.key, shown.certificate)]))
    server.start()
    target = f"{HOST}:{port}"
    each = Fallback(replace(config, tls=str(certificates / "may"), fallback=target), "a-job", None)
    try:
        each.know(GRANT)
        is_doubted(each)
    finally:
        server.stop(None)
    assert {method.rpartition("/")[2] for method in poser.asked} == is_told


def test_with_certificates_it_serves_those_who_have_one(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, certificates: Path
) -> None:
    each = make(replace(config, tls=str(certificates / "may")))
    each.open(GRANT)
    wait_until(each.serves, "it serves")
    with Service(each.target, tls=str(certificates / "operator"), timeout_s=PATIENCE_S) as service:
        assert service.report().switches
    with Service(each.target) as stranger, pytest.raises(ServiceError):
        stranger.report()


@pytest.mark.parametrize(
    ("name", "named", "problem"),
    [("may-not", True, "is for calling others"), ("elsewhere", False, "names 192.0.2.1")],
)
def test_without_a_certificate_that_may_serve_there_is_none_and_one_line_says_what_to_issue(
    config: AgentConfig, certificates: Path, name: str, named: bool, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with_it = replace(config, tls=str(certificates / name))
    for _ in range(2):
        home = Home.at(replace(with_it, fallback=f"{HOST}:1")) if named else fallback.reserve(with_it)
        assert home is None
    (line,) = lines(caplog)
    assert problem in line and f"`wiresum ca issue worker --fallback --address {HOST}`" in line


def test_the_usual_certificate_of_a_worker_is_no_reason_to_warn(
    config: AgentConfig, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert fallback.reserve(replace(config, tls=str(certificates / "may-not"))) is None
    assert lines(caplog) == []


def test_without_certificates_it_serves_other_hosts_only_if_that_is_asked_for() -> None:
    assert "WIRESUM_INSECURE=1" in fallback._why_not(AgentConfig(), "192.0.2.1")
    assert not fallback._why_not(AgentConfig(insecure=True), "192.0.2.1")
    assert not fallback._why_not(AgentConfig(), HOST)


# When a child is started and ended, in virtual time. The job's own switch has a real service's jobs.


class Child:
    """One that is ready at once, unless the test says otherwise."""

    def __init__(self, command: list[str], held: object, served: bytes) -> None:
        options = dict(itertools.pairwise(command))
        self.lanes, self.slots = int(options["--lanes"]), int(options["--slots"])
        self.data = (HOST, 30_000)
        self.runs = self.is_ready = True

    def tell(self, served: bytes) -> None:
        pass

    def said(self) -> str:
        return "it still starts" if self.runs else "status 1"

    def stop(self) -> None:
        self.runs = False


class Rank0:
    """A process with jobs that have lost their switch."""

    def __init__(self, network: Network, config: AgentConfig) -> None:
        self.network, self.config = network, config
        self.children: list[Child] = []
        """So far."""
        self.are_ready = True
        self.home = Home(f"{HOST}:{unused_port()}", 0, Host(network), self._start)
        self.jobs: list[Fallback] = []

    def _start(self, *arguments: Any) -> Child:
        self.children.append(Child(*arguments))
        self.children[-1].is_ready = self.are_ready
        return self.children[-1]

    def job(self, name: str = "a-job") -> Fallback:
        self.jobs.append(Fallback(replace(self.config, fallback=self.home.endpoint), name, self.home._use()))
        return self.jobs[-1]

    def running(self) -> list[Child]:
        """Now, when all has been done that is due."""
        self.network.sleep(2 * fallback.LOOK_S)
        return [child for child in self.children if child.runs]

    def await_end(self, child: Child) -> float:
        """Returns how long it takes."""
        began_at = self.network.now()
        self.network.wait_until(lambda: not child.runs, "it has ended")
        return self.network.now() - began_at


@pytest.fixture
def rank0(network: Network) -> Iterator[Rank0]:
    made = Rank0(network, AgentConfig(switch=VirtualService(network).endpoint))
    yield made
    for job in made.jobs:
        job.give_back()
    network.wait_until(lambda: made.home.endpoint not in fallback._registry.homes, "its home is given back")


def test_jobs_of_a_process_share_one_and_it_stays_for_the_last(
    rank0: Rank0, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = rank0.job("one"), rank0.job("two")
    for each in (one, two):
        each.open(GRANT)
    (child,) = rank0.running()
    one.give_back()
    network.sleep(10 * fallback.UNUSED_S_MAX)
    assert rank0.running() == rank0.children == [child]
    assert len(lines(caplog)) == 1
    two.close()
    assert 0 <= rank0.await_end(child) - fallback.UNUSED_S_MAX < 2 * fallback.LOOK_S


def test_one_that_is_too_small_for_a_later_job_gives_way_to_a_larger_one(rank0: Rank0) -> None:
    small, large = rank0.job("small"), rank0.job("large")
    small.open(GRANT)
    (child,) = rank0.running()
    assert (child.lanes, child.slots) == (LANES, fallback.LEASES * SLOTS)
    large.open(JoinReply(lanes=2 * LANES, slots=8 * SLOTS, workers=2, members_secret=SECRET))
    rank0.running()
    small.open(GRANT)  # as a worker that finds it gone
    (child,) = rank0.running()
    assert (child.lanes, child.slots) == (2 * LANES, fallback.LEASES * 9 * SLOTS)


def test_it_hands_back_to_a_switch_that_serves_again_and_opens_again_many_times(
    rank0: Rank0, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    each, own = rank0.job(), service_at(network, rank0.config.switch)
    for times in (1, 2, 3):
        each.open(GRANT)
        (child,) = rank0.running()
        own.start()
        assert 0 <= rank0.await_end(child) - fallback.RETURN_AFTER_S < 2 * fallback.LOOK_S
        assert sum("serves again: the job returns to it" in line for line in lines(caplog)) == times
        own.kill()
    assert len(rank0.children) == 3


def test_a_switch_that_serves_for_a_moment_only_is_not_returned_to(rank0: Rank0, network: Network) -> None:
    rank0.job().open(GRANT)
    own = service_at(network, rank0.config.switch)
    for _ in range(5):
        own.start()
        network.sleep(0.6 * fallback.RETURN_AFTER_S)
        own.kill()
        network.sleep(0.6 * fallback.RETURN_AFTER_S)
    assert rank0.running() == rank0.children


def test_a_job_that_comes_back_at_once_returns_later_and_later(rank0: Rank0, network: Network) -> None:
    """Its switch serves, but has no place for it. The second child had none in time, either."""
    service_at(network, rank0.config.switch).start()
    each = rank0.job()
    each.open(GRANT)
    of_the_first = Endpoint(address=HOST, port=30_000 + THREADS_MAX - 1)
    in_vain = JoinReply(lanes=LANES, slots=SLOTS, switch_endpoint=of_the_first, members_secret=SECRET)
    for doublings in (*range(fallback.RETURN_DOUBLINGS_MAX + 1), fallback.RETURN_DOUBLINGS_MAX):
        network.wait_until(lambda: rank0.children and rank0.children[-1].runs, "it runs")
        returns_s = rank0.await_end(rank0.children[-1])
        assert 0 <= returns_s - fallback.RETURN_AFTER_S * 2**doublings < 2 * fallback.LOOK_S
        each.open(in_vain)
    network.wait_until(lambda: rank0.children[-1].runs, "it runs")
    rank0.await_end(rank0.children[-1])
    each.open(GRANT)
    network.wait_until(lambda: rank0.children[-1].runs, "it runs")
    assert rank0.await_end(rank0.children[-1]) < 2 * fallback.RETURN_AFTER_S, "it has been elsewhere"


def test_a_child_that_does_not_start_is_given_up_and_not_tried_all_the_time(
    rank0: Rank0, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    rank0.are_ready = False
    each = rank0.job()
    each.open(GRANT)
    network.sleep(0.0)
    assert 0 <= rank0.await_end(rank0.children[0]) - fallback.START_S_MAX < 2 * fallback.LOOK_S
    assert lines(caplog) == [f"the fallback switch at {each.target} does not start: it still starts"]
    tried_at = [network.now()]
    while len(rank0.children) == 1:
        each.open(GRANT)
        network.sleep(0.1)
    assert 0 <= network.now() - tried_at[0] - fallback.START_PAUSE_S < 2 * fallback.LOOK_S
    rank0.children[-1].is_ready = True


def test_a_child_that_has_ended_by_itself_is_started_when_it_is_opened_again(
    rank0: Rank0, caplog: pytest.LogCaptureFixture
) -> None:
    each = rank0.job()
    each.open(GRANT)
    (child,) = rank0.running()
    child.runs = False
    assert rank0.running() == []
    assert "has ended by itself: status 1" in lines(caplog)[-1]
    each.open(GRANT)
    assert len(rank0.running()) == 1


def service_at(network: Network, endpoint: str) -> VirtualService:
    service = VirtualService(network)
    service.endpoint = endpoint
    return service


def child_of(process: int, target: str) -> int:
    command = ["pgrep", "-P", str(process), "-f", f"wiresum.cli switch --control {target}"]
    (child,) = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return int(child)
