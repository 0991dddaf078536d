"""Workers whose controller is killed, restarted or replaced, in virtual time; and what a service with certificates says
to those who have none that fits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from wiresum.agent import joining
from wiresum.agent.aggregators import Aggregators
from wiresum.agent.clock import Clock
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import JoinError, WiresumError
from wiresum.agent.membership import Membership
from wiresum.agent.world import WORLD, World
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.jobs.job import Asker, Worker
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join import JoinRequest
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.doubles.resuming import DataPath, Paths
from wiresum_lab.doubles.virtual_network import LIMITS, Host, Network, Service
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


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


def test_workers_reattach_to_each_aggregator_separately(network: Network, tmp_path: Path) -> None:
    first, second = (Service(network, state=tmp_path / name).start() for name in ("first", "second"))
    errors: list[WiresumError] = []
    aggregators = Aggregators.join(
        AgentConfig(switch=f"{first.endpoint}+{second.endpoint}"),
        job_name="a-job",
        rank=0,
        world_size=1,
        bind=lambda *_: 40_000,
        on_ended=errors.append,
        paths=Paths(),
        world=Host(network),
    )
    members = [aggregator.membership for aggregator in aggregators]
    network.wait_until(lambda: all(member.heard > 0 for member in members), "it attends")
    second.kill()
    second.start()
    before = members[1].heard
    network.wait_until(lambda: members[1].heard > before, "it is heard again")
    assert [member.diagnose().workers[0].peer.rank for member in members] == [0, 0]
    assert errors == []
    aggregators.leave()


def test_a_worker_that_waits_to_join_finds_a_standby(network: Network) -> None:
    active, standby = Service(network).start(), Service(network)
    config = AgentConfig(switch=f"{active.endpoint},{standby.endpoint}")
    granted: list[Membership] = []
    with network.meanwhile(lambda: granted.append(join(config, 0, 2, world=Host(network)))):
        network.wait_until(active.jobs, "it waits for rank 1")
        active.kill()
        network.sleep(20.0)
        standby.start()
        granted.append(join(config, 1, 2, world=Host(network)))
    first, second = sorted(granted, key=lambda member: member.grant.rank)
    assert first.grant.key == second.grant.key
    network.run(first.leave, second.leave)


def test_the_log_names_the_missing_ranks_whenever_they_change(
    network: Network, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig(switch=service.endpoint)
    granted: list[Membership] = []

    def join_one(rank: int) -> None:
        granted.append(join(config, rank, 3, world=Host(network)))

    network.start(partial(join_one, 0), "test")
    network.sleep(joining.WAITING_SAID_AFTER_S - 0.1)
    assert caplog.text == ""
    network.sleep(0.2)
    assert "ranks 1, 2 of 3" in caplog.text
    network.start(partial(join_one, 1), "test")
    network.sleep(LIMITS.waiting_said_ms / 1000 + 0.2)
    assert "rank 2 of 3" in caplog.text
    join_one(2)
    network.wait_until(lambda: len(granted) == 3, "all have joined")
    network.run(*(member.leave for member in granted))


def test_a_worker_that_is_told_to_retry_later_does(
    network: Network, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = service.running.jobs
    ask, asked_at = jobs.ask, []

    def refuse_first(request: JoinRequest, now: float, asker: Asker) -> Worker:
        asked_at.append(now)
        if len(asked_at) == 1:
            raise Refusal("RESOURCE_EXHAUSTED", "too many requests", retry_s=7.0)
        return ask(request, now, asker)

    monkeypatch.setattr(jobs, "ask", refuse_first)
    member = join(AgentConfig(switch=service.endpoint), world=Host(network))
    assert 7.0 <= asked_at[1] - asked_at[0] < 7.1
    member.leave()


# TLS.


class OneTry(Clock):
    """Time that passes when somebody asks for it, so that a worker asks its service once, and has long to do so."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        self._now += PATIENCE_S / 2
        return self._now


def config_at(port: int, tls: Path | None = None) -> AgentConfig:
    return AgentConfig(switch=f"127.0.0.1:{port}", tls=str(tls or ""), join_timeout_s=PATIENCE_S)


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
    errors: list[WiresumError] = []
    member = join(config_at(secure_port, directories["worker"]))
    DataPath().attend(member, errors.append)
    wait_until(lambda: bool(member.heard or errors), "a heartbeat was answered")
    member.leave()
    assert errors == []


def refusal(config: AgentConfig) -> tuple[str, str]:
    with pytest.raises(JoinError) as caught:
        join(config, world=World(OneTry()))
    return caught.value.code, str(caught.value)


def test_without_the_right_certificate_the_error_says_what_is_missing(
    secure_port: int, directories: dict[str, Path], tmp_path: Path
) -> None:
    code, text = refusal(config_at(secure_port))
    assert (code, "hangs up without WIRESUM_TLS" in text) == ("UNAVAILABLE", True)
    code, text = refusal(config_at(secure_port, directories["operator"]))
    assert (code, "role worker" in text) == ("PERMISSION_DENIED", True)
    code, text = refusal(config_at(secure_port, tmp_path / "nowhere"))
    assert (code, "nowhere is no directory" in text) == ("UNAUTHENTICATED", True)


def test_a_service_with_another_authoritys_certificate_is_refused(secure_port: int, tmp_path: Path) -> None:
    another = Authority.create(tmp_path / "another", "test")
    another.issue(Holder("worker", Claims(frozenset({"worker"}))), tmp_path / "strange", 1)
    code, text = refusal(config_at(secure_port, tmp_path / "strange"))
    assert code == "UNAVAILABLE"
    assert f"of the authority in {tmp_path / 'strange'}/ca.crt" in text


def test_plaintext_over_a_network_needs_an_explicit_setting() -> None:
    code, text = refusal(AgentConfig(switch="192.0.2.77:43487"))
    assert (code, "WIRESUM_INSECURE=1" in text) == ("UNAUTHENTICATED", True)
