"""The health service of gRPC tells whether the service answers, and whether a job could begin."""

from __future__ import annotations

import threading

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum.controller import JoinServer
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.service.health import JOIN_SERVICE
from wiresum.controller.service.join_server import LAG_KEPT_S, LAG_S_MAX, TICK_S, TICK_S_MAX
from wiresum.join import WHY_NOT_KEY
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


def status(client: Client, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(client.channel).Check(request, timeout=PATIENCE_S).status)


def why_not(client: Client, service: str) -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    _, call = health_pb2_grpc.HealthStub(client.channel).Check.with_call(request, timeout=PATIENCE_S)
    return dict(call.trailing_metadata()).get(WHY_NOT_KEY, b"").decode()


def test_the_join_service_is_healthy_while_a_switch_takes_jobs(driver: RecordingDriver, client: Client) -> None:
    def come_to(wanted: int, what: str) -> None:
        wait_until(lambda: status(client, JOIN_SERVICE) == wanted, what)
        assert status(client, "") == SERVING, "it answers all the same"

    assert JOIN_SERVICE == "wiresum.join.v1.JoinService"
    come_to(SERVING, "a job can begin")
    driver.change("its cable was pulled")
    come_to(NOT_SERVING, "no job can begin without a switch")
    driver.change("")
    come_to(SERVING, "a job can begin again")


def test_a_service_that_cannot_write_its_state_says_so(server: JoinServer, client: Client) -> None:
    wait_until(lambda: status(client, JOIN_SERVICE) == SERVING, "a job can begin")
    assert server._effects is not None
    server._effects.trouble = "the disk of the state, /var/lib/wiresum, is full: 12 KiB are free"
    wait_until(lambda: status(client, JOIN_SERVICE) == NOT_SERVING, "no job can begin")
    assert why_not(client, JOIN_SERVICE) == server.why_not_ready == server._effects.trouble
    assert (status(client, ""), why_not(client, "")) == (SERVING, "")


def test_a_watcher_is_told_when_the_service_stops(server: JoinServer, client: Client) -> None:
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert next(watch).status == SERVING
    server.stop(0.5)
    assert next(watch).status == NOT_SERVING


def hold(server: JoinServer) -> threading.Event:
    """Holds its event loop up until the event."""
    assert server._loop is not None
    held = threading.Event()
    server._loop.call_soon_threadsafe(held.wait, PATIENCE_S)
    return held


def test_a_service_whose_event_loop_is_held_up_cannot_begin_a_job_and_says_so_meanwhile(
    server: JoinServer, client: Client, clock: FrozenClock
) -> None:
    wait_until(lambda: not server.why_not_ready, "a job can begin")
    held = hold(server)
    clock.now += LAG_S_MAX + 2 * TICK_S
    assert "held up" in server.why_not_ready, "another thread is told while the loop hangs"
    assert server.lag.worst_s() > LAG_S_MAX
    held.set()
    wait_until(lambda: status(client, JOIN_SERVICE) == NOT_SERVING, "it has noticed itself")
    clock.pass_at(server, LAG_KEPT_S - 1.0)
    assert status(client, JOIN_SERVICE) == NOT_SERVING, "afterwards, too, for a while"
    assert "event loop is held up" in why_not(client, JOIN_SERVICE)
    assert status(client, "") == SERVING, "who restarted it would end nothing that is wrong"
    clock.pass_at(server, 1.0)
    wait_until(lambda: status(client, JOIN_SERVICE) == SERVING, "a job can begin again")


def test_a_service_whose_loop_is_blocked_is_not_alive(server: JoinServer, clock: FrozenClock) -> None:
    held = hold(server)
    clock.now += TICK_S_MAX
    assert server.is_alive
    clock.now += 2 * TICK_S
    assert not server.is_alive
    held.set()
    wait_until(lambda: server.is_alive, "it is alive again")


def test_a_service_whose_ticks_fail_is_not_healthy(
    server: JoinServer, client: Client, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_jobs: Jobs, _now: float) -> None:
        raise ValueError("Value out of range: 4294967296")

    monkeypatch.setattr(Jobs, "tick", fail)
    wait_until(lambda: status(client, JOIN_SERVICE) == NOT_SERVING, "no silence would be noticed")
    clock.pass_at(server, TICK_S_MAX - 1.0)
    assert status(client, "") == SERVING
    clock.pass_at(server, 1.0)
    wait_until(lambda: status(client, "") == NOT_SERVING, "no running job is attended either")
    assert "Value out of range: 4294967296" in why_not(client, "")
    monkeypatch.undo()
    wait_until(lambda: status(client, "") == status(client, JOIN_SERVICE) == SERVING, "it does its work again")
    assert why_not(client, "") == ""
