"""The switch that rank 0 starts where no other serves: a real child, at a real port. What workers do there is tested in
plugins/torch/tests/test_fallback.py."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wiresum.agent import fallback
from wiresum.agent.config import AgentConfig
from wiresum.agent.fallback import Fallback
from wiresum.cli.service import Service, ServiceError
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join import Endpoint, JoinReply
from wiresum.join.constants import THREADS_MAX
from wiresum_lab.processes import Program, unused_port, wait_until, wiresum

HOST = "127.0.0.1"
LANES, SLOTS = 64, 256
GRANT = JoinReply(lanes=LANES, slots=SLOTS, threads=1, switch_endpoint=Endpoint(address=HOST, port=9))


@pytest.fixture
def config() -> AgentConfig:
    """Of a job whose switch is gone."""
    return AgentConfig(switch=f"{HOST}:{unused_port()}")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[AgentConfig], Fallback]]:
    """Rank 0's, as PyTorch's backend makes it: the address is reserved, then agreed on."""
    monkeypatch.setattr(fallback, "UNUSED_S_MAX", 0.5)
    made: list[Fallback] = []

    def one(config: AgentConfig) -> Fallback:
        home = fallback.reserve(config)
        assert home is not None
        found = Fallback.of(replace(config, fallback=home.endpoint), 0)
        assert found is not None
        home.give_back()
        made.append(found)
        return found

    yield one
    for each in made:
        each.give_back()
    wait_until(lambda: not fallback._registry.homes, "all homes are given back")


@pytest.fixture
def own(config: AgentConfig, tmp_path: Path) -> Iterator[Callable[[], Program]]:
    """Starts the job's own switch."""
    started: list[Program] = []

    def start() -> Program:
        command = wiresum("switch", "--control", config.switch, "--port", "0")
        started.append(Program(command, tmp_path / f"{len(started)}.log"))
        started[-1].await_text("ready: ")
        return started[-1]

    yield start
    for program in started:
        program.kill()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What users are told."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def await_end(each: Fallback) -> None:
    wait_until(lambda: not each.serves(), "its port is closed")


def test_nothing_listens_at_the_reserved_port_and_nobody_else_gets_it(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig
) -> None:
    each = make(config)
    host, port = each.target.split(":")
    assert host == HOST and not each.serves()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))


def test_it_serves_a_job_of_that_size_while_it_is_open(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    each = make(config)
    each.open(GRANT)
    each.open(GRANT)
    wait_until(each.serves, "it serves")
    with Service(each.target) as service:
        (switch,) = service.report().switches
    assert switch.lanes_max == LANES and switch.slots_free >= SLOTS
    wait_until(lambda: lines(caplog), "it is said")
    assert lines(caplog) == [
        f"no switch of {config.switch} serves: the job goes on at a software switch of this host ({each.target}), "
        "which is slower. It returns when one serves again"
    ]
    each.close()
    await_end(each)
    each.open(GRANT)
    wait_until(each.serves, "it serves again")


def test_jobs_of_a_process_share_it_and_it_stays_for_the_last(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(config), make(config)
    assert one.target == two.target
    for each in (one, two):
        each.open(GRANT)
    wait_until(one.serves, "it serves")
    one.give_back()
    time.sleep(2 * fallback.UNUSED_S_MAX + fallback.LOOK_S)
    assert two.serves() and len(lines(caplog)) == 1


@pytest.mark.slow
def test_it_hands_back_to_a_switch_that_serves_again_and_opens_again_many_times(
    make: Callable[[AgentConfig], Fallback],
    config: AgentConfig,
    own: Callable[[], Program],
    caplog: pytest.LogCaptureFixture,
) -> None:
    each = make(config)
    for times in (1, 2):
        each.open(GRANT)
        wait_until(each.serves, "it serves")
        switch = own()
        await_end(each)
        assert sum("serves again: the job returns to it" in line for line in lines(caplog)) == times
        switch.kill()


@pytest.mark.slow
def test_a_job_that_comes_back_at_once_returns_later(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, own: Callable[[], Program]
) -> None:
    """Its switch serves, but has no place for it. The second child had none in time, either."""
    own()
    each = make(config)
    assert each._home is not None
    each.open(GRANT)
    of_the_first = Endpoint()
    for times in (1, 2):
        wait_until(each.serves, "it serves")
        await_end(each)
        if times == 1:
            ((address, port),) = each._home._data
            of_the_first = Endpoint(address=address, port=port + THREADS_MAX - 1)
        each.open(JoinReply(lanes=LANES, slots=SLOTS, switch_endpoint=of_the_first))
        assert each._home._returns_in_vain == times
    wait_until(each.serves, "it serves")
    begun_at = time.monotonic()
    await_end(each)
    assert time.monotonic() - begun_at > fallback.RETURN_AFTER_S * 2
    each.open(GRANT)
    assert each._home._returns_in_vain == 0, "it has been elsewhere"


def test_a_child_that_is_killed_is_started_again_when_it_is_opened_again(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    each = make(config)
    each.open(GRANT)
    wait_until(each.serves, "it serves")
    os.kill(child_of(os.getpid(), each.target), signal.SIGKILL)
    await_end(each)
    each.open(GRANT)
    wait_until(each.serves, "it serves again")
    assert any("has ended by itself" in line for line in lines(caplog))


@pytest.mark.parametrize(
    ("program", "problem"), [("exit 1", "status 1"), ("exec sleep 60", "it still starts"), ("echo why", "why")]
)
def test_a_child_that_does_not_start_is_said_and_not_tried_all_the_time(
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
    monkeypatch.setattr(fallback, "START_S_MAX", 1.0)
    each = make(config)
    each.open(GRANT)
    wait_until(lambda: lines(caplog), "it is said")
    assert lines(caplog) == [f"the fallback switch at {each.target} does not start: {problem}"]
    until = time.monotonic() + 6 * fallback.LOOK_S
    while time.monotonic() < until:
        each.open(GRANT)
        time.sleep(0.05)
    assert len(lines(caplog)) == 1


def test_it_starts_beside_forked_children_and_outlives_a_worker_that_is_killed_only_until_its_jobs_are_over(
    config: AgentConfig,
) -> None:
    program = f"""
import os
import time
from dataclasses import replace
from wiresum.agent import fallback
from wiresum.agent.config import AgentConfig
from wiresum.join import JoinReply
config = AgentConfig(switch={config.switch!r})
home = fallback.reserve(config)
if os.fork() == 0:  # a loader of data: it has the reserved port, too
    time.sleep(5)
    os._exit(0)
each = fallback.Fallback.of(replace(config, fallback=home.endpoint), 0)
each.open(JoinReply(lanes={LANES}, slots={SLOTS}))
while not each.serves():
    time.sleep(0.02)
print(each.target, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        each = Fallback(AgentConfig(switch=config.switch, fallback=worker.stdout.readline().strip()), None)
        assert each.serves()
        worker.kill()
    await_end(each)


def test_there_is_none_where_it_is_off_or_was_not_agreed_on(config: AgentConfig) -> None:
    assert Fallback.of(config, 0) is None
    assert Fallback.of(replace(config, fallback="off"), 0) is None
    for other in (
        replace(config, fallback="off"),
        replace(config, transport="xdp"),
        replace(config, switch="a:1+b:1"),
        replace(config, fallback=f"{HOST}:1"),
        replace(config, switch="no-such-host.invalid:1"),
    ):
        assert fallback.reserve(other) is None


def test_rank_0_starts_it_at_the_address_that_is_named_if_that_is_its_own(
    config: AgentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "UNUSED_S_MAX", 0.5)
    port = unused_port()
    here = replace(config, fallback=f"{HOST}:{port}")
    first, second = Fallback.of(here, 0), Fallback.of(here, 1)
    elsewhere = Fallback.of(replace(config, fallback="192.0.2.1:4000"), 0)
    assert first is not None and second is not None and elsewhere is not None
    assert first.target == second.target == here.fallback
    for other in (second, elsewhere):
        other.open(GRANT)
    assert not first.serves()
    first.open(GRANT)
    wait_until(first.serves, "it serves")
    home = first._home
    assert home is not None
    wait_until(lambda: home._data == {(HOST, port + 1)}, "its data ports are the next ones, for firewalls")
    first.give_back()
    await_end(first)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TLS directories of workers: `may`, `may-not`, and `elsewhere`."""
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority.create(folder / "ca", "test")
    for name, roles, address in (
        ("may", {"worker", "fallback"}, HOST),
        ("may-not", {"worker"}, HOST),
        ("elsewhere", {"worker", "fallback"}, "192.0.2.1"),
    ):
        authority.issue(Holder(name, Claims(frozenset(roles)), (address,)), folder / name, 10)
    authority.issue(Holder("operator", Claims(frozenset({"operator"}))), folder / "operator", 10)
    return folder


def test_with_certificates_it_serves_those_who_have_one(
    make: Callable[[AgentConfig], Fallback], config: AgentConfig, certificates: Path
) -> None:
    each = make(replace(config, tls=str(certificates / "may")))
    each.open(GRANT)
    wait_until(each.serves, "it serves")
    with Service(each.target, tls=str(certificates / "operator")) as service:
        assert service.report().switches
    with Service(each.target) as stranger, pytest.raises(ServiceError):
        stranger.report()


@pytest.mark.parametrize(("name", "problem"), [("may-not", "does not hold before"), ("elsewhere", "names 192.0.2.1")])
def test_without_a_certificate_that_may_serve_there_is_none_and_one_line_says_what_to_issue(
    config: AgentConfig, certificates: Path, name: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert fallback.reserve(replace(config, tls=str(certificates / name))) is None
    (line,) = lines(caplog)
    assert problem in line and f"`wiresum ca issue worker --fallback --address {HOST}`" in line


def test_without_certificates_it_serves_other_hosts_only_if_that_is_asked_for() -> None:
    assert "WIRESUM_INSECURE=1" in fallback._why_not(AgentConfig(), "192.0.2.1")
    assert not fallback._why_not(AgentConfig(insecure=True), "192.0.2.1")
    assert not fallback._why_not(AgentConfig(), HOST)


def child_of(process: int, target: str) -> int:
    command = ["pgrep", "-P", str(process), "-f", f"wiresum.cli switch --control {target}"]
    (child,) = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return int(child)
