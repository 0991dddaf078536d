"""Workers whose controller is killed, restarted or replaced. Controllers are processes with their state on disk, before
a switch that only records what it is told and outlives them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import pytest

from wiresum.agent import absence, joining
from wiresum.agent.aggregators import Aggregators
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import JoinError, SwitchUnreachableError, WiresumError
from wiresum.agent.membership import Membership
from wiresum.controller import JoinServer, Limits
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.processes import PATIENCE_S, unused_port, wait_until

CONTROLLER = """
import sys, time
from pathlib import Path
from wiresum.controller import JoinServer
from wiresum.controller.driver import Reconciled
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import RecordingDriver
driver = RecordingDriver()
driver.reconcile = lambda entries: Reconciled()
store = Store(Path(sys.argv[1]))
store.begin()
JoinServer(driver, store=store).start("127.0.0.1", int(sys.argv[2]))
print("ready", flush=True)
time.sleep(600)
"""


class Controller:
    def __init__(self, state: Path, port: int) -> None:
        command = [sys.executable, "-c", CONTROLLER, str(state), str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def start_controller(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """All controllers share their state, except those of another cluster."""
    controllers: list[Controller] = []

    def start(port: int, cluster: str = "state") -> Controller:
        controllers.append(Controller(tmp_path / cluster, port))
        return controllers[-1]

    yield start
    for controller in controllers:
        controller.kill()


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two ports on which nothing listens."""
    return unused_port(), unused_port()


def config_at(*ports: int, **fields: object) -> AgentConfig:
    switch = ",".join(f"127.0.0.1:{port}" for port in ports)
    return AgentConfig(switch=switch, **({"join_timeout_s": PATIENCE_S} | fields))  # type: ignore[arg-type]


def join(config: AgentConfig, rank: int = 0, world_size: int = 1) -> Membership:
    return Membership.join(
        config,
        job_name="a-job",
        rank=rank,
        world_size=world_size,
        address="127.0.0.1",
        port=5000 + 16 * rank,
        threads_max=4,
        lanes_max=100,
    )


class Member:
    """A membership that attends, and the errors that it has heard."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.errors: list[WiresumError] = []
        membership.attend(on_ended=self.errors.append, progress=lambda: 1)
        self.is_heard()

    def is_heard(self) -> None:
        before = self.membership._events
        wait_until(lambda: bool(self.membership._events > before or self.errors), "a heartbeat was answered")
        assert self.errors == []


@pytest.fixture
def attend_all() -> Iterator[Callable[[AgentConfig, int], list[Member]]]:
    members: list[Member] = []

    def join_and_attend(config: AgentConfig, world_size: int) -> list[Member]:
        with futures.ThreadPoolExecutor(world_size) as pool:
            joining = [pool.submit(join, config, rank, world_size) for rank in range(world_size)]
            members.extend(Member(one.result()) for one in joining)
        return members

    yield join_and_attend
    for member in members:
        member.membership.leave()


Start = Callable[..., Controller]
AttendAll = Callable[[AgentConfig, int], list[Member]]


def test_workers_see_no_error_when_a_controller_restarts(
    start_controller: Start, attend_all: AttendAll, ports: tuple[int, int]
) -> None:
    controller = start_controller(ports[0])
    members = attend_all(config_at(ports[0]), 2)
    controller.kill()
    start_controller(ports[0])
    for member in members:
        member.is_heard()
    assert [worker.peer.rank for worker in members[0].membership.diagnose().workers] == [0, 1], "it answers"


def test_workers_reattach_to_each_aggregator_separately(start_controller: Start, ports: tuple[int, int]) -> None:
    _, second = (start_controller(port, f"cluster{port}") for port in sorted(ports))
    config = AgentConfig(switch="+".join(f"127.0.0.1:{port}" for port in ports), join_timeout_s=PATIENCE_S)
    errors: list[WiresumError] = []
    aggregators = Aggregators.join(
        config,
        job_name="a-job",
        rank=0,
        world_size=1,
        bind=lambda *_: 40_000,
        on_ended=errors.append,
        progress=lambda _: 1,
    )
    members = [aggregator.membership for aggregator in aggregators]
    try:
        wait_until(lambda: all(member._events > 0 for member in members), "it attends")
        second.kill()
        start_controller(max(ports), f"cluster{max(ports)}")
        before = members[1]._events
        wait_until(lambda: bool(members[1]._events > before or errors), "it is heard again")
        assert errors == []
        assert [member.diagnose().workers[0].peer.rank for member in members] == [0, 0]
    finally:
        aggregators.leave()


def test_workers_find_a_standby_at_another_endpoint(
    start_controller: Start, attend_all: AttendAll, ports: tuple[int, int]
) -> None:
    controller = start_controller(ports[0])
    members = attend_all(config_at(*ports), 2)
    controller.kill()
    controller = start_controller(ports[1])
    for member in members:
        member.is_heard()
    controller.kill()
    start_controller(ports[0])
    for member in members:
        member.is_heard()


def test_a_worker_that_waits_to_join_sees_no_error_either(start_controller: Start, ports: tuple[int, int]) -> None:
    controller = start_controller(ports[0])
    config = config_at(*ports)
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(join, config, 0, 2)
        assert not futures.wait([first], 0.5).done, "it waits for rank 1"
        controller.kill()
        start_controller(ports[1])
        second = join(config, 1, 2)
        assert (first.result().grant.rank, second.grant.rank) == (0, 1)
        assert first.result().grant.key == second.grant.key
    first.result().leave()
    second.leave()


def test_workers_find_the_one_endpoint_that_serves(
    start_controller: Start, attend_all: AttendAll, ports: tuple[int, int]
) -> None:
    start_controller(ports[1])
    attend_all(config_at(*ports), 1)


def test_a_lost_service_is_given_up_after_the_grants_reattach_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(absence, "ABSENCE_SAID_AFTER_S", 0.1)
    server = JoinServer(RecordingDriver(), Limits(reattach_ms=1000))
    membership = join(config_at(server.start("127.0.0.1", 0)))
    member = Member(membership)
    server.stop(0.5, keep_jobs=True)
    wait_until(lambda: bool(member.errors), "it was given up")
    (error,) = member.errors
    assert isinstance(error, SwitchUnreachableError)
    assert "does not answer, 1 s after it was last heard of" in str(error)
    assert "refused" in str(error)
    assert "the job goes on without it" in caplog.text
    membership.leave()


def test_the_log_names_the_missing_ranks_whenever_they_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "WAITING_SAID_AFTER_S", 0.05)
    server = JoinServer(RecordingDriver(), Limits(waiting_said_ms=10))
    config = config_at(server.start("127.0.0.1", 0))
    with futures.ThreadPoolExecutor() as pool:
        memberships = []
        for rank, missing in enumerate(("ranks 1, 2 of 3", "rank 2 of 3")):
            memberships.append(pool.submit(join, config, rank, 3))
            wait_until(lambda missing=missing: missing in caplog.text, f"{missing} are missing")
        memberships.append(pool.submit(join, config, 2, 3))
        for membership in memberships:
            membership.result().leave()
    server.stop()


def test_a_worker_that_is_told_to_retry_later_does(monkeypatch: pytest.MonkeyPatch) -> None:
    security = Security(SecurityConfig(requests_per_second=0.5, requests_burst=1))
    server = JoinServer(RecordingDriver(), security=security)
    config = config_at(server.start("127.0.0.1", 0))
    membership = join(config)
    again = AgentConfig(switch=config.switch, join_timeout_s=PATIENCE_S, job="another")
    second = Membership.join(
        again, job_name="another", rank=0, world_size=1, address="127.0.0.1", port=6000, threads_max=1, lanes_max=8
    )
    assert security.refusals["rate"] > 0
    second.leave()
    membership.leave()
    server.stop()


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki"), "test")


@pytest.fixture
def directories(authority: Authority, tmp_path: Path) -> dict[str, Path]:
    for role in ("controller", "worker", "operator"):
        authority.issue(Holder(role, Claims(frozenset({role})), ("127.0.0.1",)), tmp_path / role, 1)
    return {role: tmp_path / role for role in ("controller", "worker", "operator")}


@pytest.fixture
def secure_port(directories: dict[str, Path]) -> Iterator[int]:
    server = JoinServer(RecordingDriver(), security=Security(SecurityConfig(tls=directories["controller"])))
    yield server.start("127.0.0.1", 0)
    server.stop(0.5)


def test_a_worker_with_a_certificate_joins_and_attends(secure_port: int, directories: dict[str, Path]) -> None:
    member = Member(join(config_at(secure_port, tls=str(directories["worker"]))))
    member.membership.leave()
    assert member.errors == []


def refusal(config: AgentConfig) -> tuple[str, str]:
    with pytest.raises(JoinError) as caught:
        join(config)
    return caught.value.code, str(caught.value)


def test_without_the_right_certificate_the_error_says_what_is_missing(
    secure_port: int, directories: dict[str, Path], tmp_path: Path
) -> None:
    code, text = refusal(config_at(secure_port, join_timeout_s=0.5))
    assert (code, "hangs up without WIRESUM_TLS" in text) == ("UNAVAILABLE", True)
    code, text = refusal(config_at(secure_port, tls=str(directories["operator"])))
    assert (code, "role worker" in text) == ("PERMISSION_DENIED", True)
    code, text = refusal(config_at(secure_port, tls=str(tmp_path / "nowhere")))
    assert (code, "nowhere is no directory" in text) == ("UNAUTHENTICATED", True)


def test_a_service_with_another_authoritys_certificate_is_refused(secure_port: int, tmp_path: Path) -> None:
    another = Authority.create(tmp_path / "another", "test")
    another.issue(Holder("worker", Claims(frozenset({"worker"}))), tmp_path / "strange", 1)
    code, text = refusal(config_at(secure_port, tls=str(tmp_path / "strange"), join_timeout_s=0.5))
    assert code == "UNAVAILABLE"
    assert f"of the authority in {tmp_path / 'strange'}/ca.crt" in text


def test_plaintext_over_a_network_needs_an_explicit_setting() -> None:
    code, text = refusal(AgentConfig(switch="192.0.2.77:43487", join_timeout_s=0.3))
    assert (code, "WIRESUM_INSECURE=1" in text) == ("UNAUTHENTICATED", True)
