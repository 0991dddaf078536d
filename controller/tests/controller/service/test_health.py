"""The health service of gRPC tells whether the service answers, and whether a job could begin."""

from __future__ import annotations

from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum.controller import JoinServer
from wiresum.controller.service.health import JOIN_SERVICE
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, wait_until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def status(client: Client, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(client.channel).Check(request, timeout=PATIENCE_S).status)


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


def test_a_watcher_is_told_when_the_service_stops(server: JoinServer, client: Client) -> None:
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert next(watch).status == SERVING
    server.stop(0.5)
    assert next(watch).status == NOT_SERVING
