"""What a worker that cannot reach its service is told to do."""

from __future__ import annotations

import re
import threading
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.agent import joining
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import Control
from wiresum.agent.errors import JoinError
from wiresum.agent.membership import Membership
from wiresum.join import join_pb2_grpc
from wiresum_lab import lookups
from wiresum_lab.doubles.virtual_network import Host, Network, Service
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

SILENT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.2:43487: tcp handshaker shutdown"
"""gRPC says so where nothing answers to a TCP connection."""
TIMED_OUT = "last error: UNKNOWN: ipv4:10.0.0.2:43487: Failed to connect to remote host: connect() timed out"
WRONG_AUTHORITY = "Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED"


class UnavailableError(Exception):
    def details(self) -> str:
        return str(self)


@pytest.mark.parametrize("said", [SILENT, TIMED_OUT])
@pytest.mark.parametrize("tls", ["", "/etc/wiresum/worker"])
def test_a_silent_network_is_not_blamed_on_certificates(said: str, tls: str) -> None:
    advice = joining._advice(UnavailableError(said), AgentConfig(switch="10.0.0.2:43487", tls=tls))
    assert advice.startswith("start one there with `wiresum switch`")
    assert "ca.crt" not in advice
    assert "WIRESUM_TLS" not in advice


def test_a_service_that_hangs_up_may_ask_for_certificates() -> None:
    advice = joining._advice(UnavailableError("Socket closed"), AgentConfig(switch="10.0.0.2:43487"))
    assert "hangs up without WIRESUM_TLS" in advice


def test_a_certificate_that_does_not_fit_is_named() -> None:
    config = AgentConfig(switch="10.0.0.2:43487", tls="/etc/wiresum/worker")
    advice = joining._advice(UnavailableError(WRONG_AUTHORITY), config)
    assert "must be of the authority in /etc/wiresum/worker/ca.crt" in advice


class Full(join_pb2_grpc.JoinServiceServicer):
    """Serves one call at a time; gRPC refuses others."""

    def __init__(self) -> None:
        self.room = threading.Event()

    def Join(self, request: join.JoinRequest, context: Any) -> Any:  # noqa: N802
        yield join.JoinEvent(waiting=join.Waiting(reason="first"))
        self.room.wait(PATIENCE_S)
        yield join.JoinEvent(granted=join.JoinReply(worker=7))


def test_a_refusal_by_grpc_itself_for_too_many_calls_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    server, service = grpc.server(futures.ThreadPoolExecutor(2), maximum_concurrent_rpcs=1), Full()
    join_pb2_grpc.add_JoinServiceServicer_to_server(service, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    config = AgentConfig(switch=target, join_timeout_s=PATIENCE_S)

    def ask() -> join.JoinReply:
        control = Control(config)
        try:
            return joining.ask_until_granted(control, config, join.JoinRequest(), joining.Interruption())
        finally:
            control.close()

    with grpc.insecure_channel(target) as channel, futures.ThreadPoolExecutor() as pool:
        first = join_pb2_grpc.JoinServiceStub(channel).Join(join.JoinRequest(), timeout=PATIENCE_S)
        assert next(first).waiting.reason == "first"
        with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
            list(join_pb2_grpc.JoinServiceStub(channel).Join(join.JoinRequest(), timeout=PATIENCE_S))
        asked = pool.submit(ask)
        wait_until(lambda: "Concurrent RPC limit exceeded" in caplog.text, "the user is told what it waits for")
        assert not asked.done()
        service.room.set()
        assert asked.result(PATIENCE_S).worker == 7
        list(first)
    server.stop(0).wait()


OURS: Any = SimpleNamespace(endpoint="127.0.0.1:43487")


@pytest.mark.parametrize("field", ["switch_endpoint", "results_group"])
def test_an_address_that_a_service_gives_is_never_looked_up(field: str) -> None:
    with lookups.noted() as names:
        for address in filter(None, lookups.ODD_ADDRESSES):
            at = {
                "switch_endpoint": join.Endpoint(address="10.0.0.1"),
                field: join.Endpoint(address=address, port=5000),
            }
            with pytest.raises(JoinError, match="an IP address is needed") as caught:
                joining.with_address(join.JoinReply(**at), OURS)
            assert caught.value.code == "INTERNAL"
            assert len(str(caught.value)) < 1000
    assert names == []


@pytest.mark.parametrize("address", ["", "0.0.0.0"])
def test_a_switch_at_every_address_of_its_host_is_where_the_user_says_that_its_service_is(address: str) -> None:
    with lookups.noted() as names:
        ours: Any = SimpleNamespace(endpoint="localhost:43487")
        grant = joining.with_address(join.JoinReply(switch_endpoint=join.Endpoint(address=address)), ours)
    assert grant.switch_endpoint.address.startswith("127.")
    assert names == ["localhost"]


# In virtual time.


def join_alone(network: Network, service: Service, host: Host | None = None, **fields: Any) -> Membership:
    return Membership.join(
        AgentConfig(switch=service.endpoint, **fields),
        job_name="a-job",
        rank=0,
        world_size=1,
        address="127.0.0.1",
        port=5000,
        threads_max=4,
        lanes_max=100,
        world=host or Host(network),
    )


def test_a_service_of_another_authority_is_given_up_soon(network: Network, service: Service) -> None:
    """The time counts from the first such answer, and suffices to replace a TLS directory, which is tried first."""
    host = Host(network)
    fields: Any = {"host": host, "tls": "/etc/wiresum/worker", "join_timeout_s": 3000.0}
    host.cut_off = "refused"
    with network.meanwhile(lambda: join_alone(network, service, **fields).leave()):
        for _ in range(2):
            network.sleep(2 * joining.MISFIT_S_MAX)
            host.cut_off = "misfit"
            network.sleep(joining.MISFIT_S_MAX - 10)
            host.cut_off = "refused"
        host.cut_off = ""
    host.cut_off = "misfit"
    begun_at = network.now()
    with pytest.raises(JoinError, match=r"must be of the authority in /etc/wiresum/worker/ca.crt"):
        join_alone(network, service, **fields)
    assert joining.MISFIT_S_MAX - 10 < network.now() - begun_at <= joining.MISFIT_S_MAX


def test_a_worker_that_was_started_before_its_switch_waits_for_it(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(network)
    with network.meanwhile(lambda: join_alone(network, service).leave()):
        network.sleep(100.0)
        assert f"waiting for switch at {service.endpoint}" in caplog.text
        service.start()


def test_a_service_is_given_up_soon_after_it_cannot_be_reached_however_long_the_job_may_wait(
    network: Network, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """It is heard for longer than that first: the job before is ending."""
    before = join_alone(network, service)
    service.running.forgets = False
    before.leave()
    errors: list[str] = []

    def ask() -> None:
        with pytest.raises(JoinError, match=r"cannot reach the switch at .* after \d+ s") as caught:
            join_alone(network, service, join_timeout_s=3000.0)
        errors.append(str(caught.value))

    with network.meanwhile(ask):
        network.sleep(2 * joining.REACH_S_MAX)
        service.kill()
        gone_at = network.now()
        network.sleep(joining.REACH_S_MAX - 10)
        assert not errors
        network.wait_until(lambda: errors, "it gives up")
    assert network.now() - gone_at < joining.REACH_S_MAX + 10
    assert re.search(rf"waiting for switch at {service.endpoint}.* \(for up to (29\d|300) s more\)", caplog.text)


def test_a_worker_waits_while_the_job_before_it_is_ending(
    network: Network, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    before = join_alone(network, service)
    service.running.forgets = False
    before.leave()
    after: list[Membership] = []
    with network.meanwhile(lambda: after.append(join_alone(network, service))):
        network.sleep(joining.WAITING_SAID_AFTER_S + 1.0)
        assert "is just ending" in caplog.text
        service.running.forgets = True
    assert after[0].grant.job == 2
    after[0].leave()


def test_a_worker_that_has_joined_does_not_say_later_what_it_has_waited_for(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(network)
    with network.meanwhile(lambda: join_alone(network, service).leave()):
        network.sleep(0.5 * joining.WAITING_SAID_AFTER_S)
        service.start()
    network.sleep(2 * joining.WAITING_SAID_AFTER_S)
    assert caplog.text == ""
