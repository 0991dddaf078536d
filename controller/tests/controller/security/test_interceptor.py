"""The interceptor in front of services that allow everything, with and without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest

from wiresum import join
from wiresum.agent.control import ask_again_after_s, code_of, details, is_from_service
from wiresum.controller.config import SecurityConfig
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.security import OPTIONS, Security, caller, interceptor
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.front import Front
from wiresum.controller.security.security import SERVED
from wiresum.controller.security.shares import Shares
from wiresum.join import join_pb2_grpc, operator_pb2_grpc
from wiresum.join.constants import LEASE_SLOTS_MAX
from wiresum.join.credentials import CredentialsError, open_channel
from wiresum_lab.clocks.for_asyncio import VirtualLoop, in_virtual_time
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


class JoinService(join_pb2_grpc.JoinServiceServicer):
    """A service with a method of each kind."""

    async def Join(self, request: join.JoinRequest, context: Any) -> None:  # noqa: N802
        await context.write(join.JoinEvent(waiting=join.Waiting(reason=caller().name)))
        await context.write(join.JoinEvent(granted=join.JoinReply(worker=request.rank)))

    async def Attend(self, requests: object, context: Any) -> None:  # noqa: N802 - reads and writes its context
        while (heartbeat := await context.read()) is not grpc.aio.EOF:
            await context.write(join.JobEvent(ended=join.JobEnded(reason=str(heartbeat.round_newest))))

    async def Leave(self, request: join.LeaveRequest, context: Any) -> None:  # noqa: N802
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such member", ((join.REFUSED_KEY, "1"),))

    async def Abort(self, request: join.AbortRequest, context: Any) -> join.AbortReply:  # noqa: N802
        raise ZeroDivisionError(request.reason)

    async def Diagnose(self, request: join.Member, context: Any) -> join.Diagnosis:  # noqa: N802
        return join.Diagnosis(workers=[join.Diagnosis.Worker(contributions=request.job)])


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    async def GetReport(self, request: join.GetReportRequest, context: Any) -> join.Report:  # noqa: N802
        return join.Report()


class Server:
    """A server in a thread of its own, as in production."""

    def __init__(self, config: SecurityConfig) -> None:
        self.security = Security(config)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    async def _run(self) -> None:
        server = grpc.aio.server(options=OPTIONS, interceptors=[self.security.interceptor])
        join_pb2_grpc.add_JoinServiceServicer_to_server(JoinService(), server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(OperatorService(), server)
        async with self.security.listening(server, "127.0.0.1:0") as port:
            self.target = f"127.0.0.1:{port}"
            await server.start()
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._started.set()
            await self._stop.wait()
            await server.stop(0)
        self.security.close()

    def expect_refusals(self, counted: dict[str, int]) -> None:
        """Waits until refusals are counted, which happens at about the time when the client is told."""
        wait_until(lambda: self.security.refusals == counted, f"refusals are {counted}")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve_one(**fields: Any) -> Server:
        servers.append(Server(SecurityConfig(**fields)))
        return servers[-1]

    yield serve_one
    for server in servers:
        server.stop()


class Client:
    def __init__(self, target: str, tls: Path | None = None) -> None:
        self.channel = open_channel(target, tls=tls, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = join_pb2_grpc.JoinServiceStub(self.channel)
        self.operator = operator_pb2_grpc.OperatorServiceStub(self.channel)

    def send(self, method: str, *messages: bytes) -> list[bytes]:
        """Sends bytes in place of messages."""
        call = self.channel.stream_stream(f"/wiresum.join.v1.{method}")
        return list(call(iter(messages), timeout=PATIENCE_S))


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def connect_one(server: Server, tls: Path | None = None) -> Client:
        clients.append(Client(server.target, tls))
        return clients[-1]

    yield connect_one
    for client in clients:
        client.channel.close()


Serve, Connect = Callable[..., Server], Callable[..., Client]


def refusal(ask: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask()
    return caught.value.code().name, caught.value.details()


def test_methods_of_every_kind_work_through_the_interceptor(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path
) -> None:
    client = connect(serve(tls=controller_tls), worker_tls)
    waiting, granted = client.stub.Join(join.JoinRequest(rank=3), timeout=PATIENCE_S)
    assert (waiting.waiting.reason, granted.granted.worker) == ("test worker", 3)
    beats = (join.Heartbeat(round_newest=number) for number in (5, 6, 7))
    assert [event.ended.reason for event in client.stub.Attend(beats, timeout=PATIENCE_S)] == ["5", "6", "7"]
    assert client.stub.Diagnose(join.Member(job=9), timeout=PATIENCE_S).workers[0].contributions == 9


def test_a_refusal_by_the_service_is_passed_on_and_counted(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Leave(join.LeaveRequest(), timeout=PATIENCE_S)
    assert (caught.value.code().name, caught.value.details()) == ("NOT_FOUND", "no such member")
    assert (join.REFUSED_KEY, "1") in caught.value.trailing_metadata()
    assert refusal(lambda: client.stub.Abort(join.AbortRequest(), timeout=PATIENCE_S))[0] == "UNKNOWN"
    server.expect_refusals({"not_found": 1, "exception": 1})


def test_plaintext_beyond_loopback_must_be_enabled_explicitly() -> None:
    async def listen(config: SecurityConfig) -> int:
        async with Security(config).listening(grpc.aio.server(), "0.0.0.0:0") as port:
            return port

    with pytest.raises(CredentialsError, match="can be reached from other hosts"):
        asyncio.run(listen(SecurityConfig()))
    assert asyncio.run(listen(SecurityConfig(insecure=True)))


def test_invalid_bytes_are_answered_and_counted(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)
    for method in ("JoinService/Join", "JoinService/Attend", "JoinService/Leave", "OperatorService/GetReport"):
        code, text = refusal(lambda method=method: client.send(method, b"\xff" * 50))
        assert (code, text) == ("INVALID_ARGUMENT", "this is no message of this method")
    beats = (join.Heartbeat(round_newest=5).SerializeToString(), b"\x0a\x7f")
    assert refusal(lambda: client.send("JoinService/Attend", *beats))[0] == "INVALID_ARGUMENT"
    server.expect_refusals({"malformed": 5})


def test_oversized_messages_are_refused_before_parsing(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)
    large = join.Member(token="x" * join.MESSAGE_BYTES_MAX).SerializeToString()
    code, text = refusal(lambda: client.send("JoinService/Diagnose", large))
    assert (code, f"{len(large)} bytes" in text) == ("RESOURCE_EXHAUSTED", True)
    server.expect_refusals({"oversized": 1})
    assert refusal(lambda: client.send("JoinService/Join", bytes(1 << 20)))[0] == "RESOURCE_EXHAUSTED"


def test_a_heartbeat_may_have_a_position_for_each_slot_of_the_largest_lease(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)

    def heartbeat(bytes_more: int) -> bytes:
        halted = join.Halted(move_number=1, positions=bytes(4 * LEASE_SLOTS_MAX + bytes_more))
        return join.Heartbeat(halted=halted).SerializeToString()

    client.send("JoinService/Attend", heartbeat(0))
    larger = heartbeat(join.MESSAGE_BYTES_MAX)
    assert refusal(lambda: client.send("JoinService/Attend", larger))[0] == "RESOURCE_EXHAUSTED"
    server.expect_refusals({"oversized": 1})


def test_a_worker_that_goes_on_may_say_as_much(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)
    resumed = join.Resumed(slots=LEASE_SLOTS_MAX, positions=bytes(4 * LEASE_SLOTS_MAX))
    client.send("JoinService/Join", join.JoinRequest(resumed=resumed).SerializeToString())
    larger = join.JoinRequest(job_name="x" * join.POSITIONS_BYTES_MAX).SerializeToString()
    assert refusal(lambda: client.send("JoinService/Join", larger))[0] == "RESOURCE_EXHAUSTED"
    server.expect_refusals({"oversized": 1})


class Call:
    """gRPC's context of a call, in virtual time."""

    def __init__(self, *messages: bytes, peer: str = "ipv4:10.0.0.7:50123", name: str = "", ends: bool = True) -> None:
        """`ends`: after the messages; otherwise nothing more comes."""
        self._messages, self._peer, self._name, self._ends = list(messages), peer, name, ends
        self.answers: list[Any] = []
        self.refused: tuple[str, str] | None = None
        self.trailers: dict[str, str] = {}

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, list[bytes]]:
        roles = [b"wiresum:role/worker"]
        named = {"x509_common_name": [self._name.encode()], "x509_subject_alternative_name": roles}
        return {"transport_security_type": [b"ssl"], **named} if self._name else {}

    async def read(self) -> Any:
        if not self._messages and not self._ends:
            await asyncio.Event().wait()
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, answer: Any) -> None:
        self.answers.append(answer)

    async def abort(self, code: grpc.StatusCode, text: str, trailers: Any) -> None:
        self.refused, self.trailers = (code.name, text), dict(trailers)
        raise grpc.aio.AbortError

    def details(self) -> str:
        return ""


class Served:
    """The interceptor alone, before methods that allow everything."""

    def __init__(self, loop: VirtualLoop, *, per_second: float = 1e3, burst: int = 1000) -> None:
        self.refusals: Counter[str] = Counter()
        front = mock.Mock(spec=Front, peer_of=lambda peer: peer, prove=lambda *_: "", calling=contextlib.nullcontext)
        self._interceptor = interceptor.Interceptor(
            SERVED, AuditLog(clock=loop.time), front, self.refusals,
            requests_per_second=per_second, requests_burst=burst, clock=loop.time,
        )  # fmt: skip
        service = JoinService()
        self._methods = {
            "Attend": grpc.stream_stream_rpc_method_handler(service.Attend, join.Heartbeat.FromString),
            "Diagnose": grpc.unary_unary_rpc_method_handler(service.Diagnose, join.Member.FromString),
        }

    async def serve(self, method: str, call: Call) -> Call:
        """Until the call has ended."""

        async def known(_: object) -> Any:
            return self._methods[method]

        details = mock.Mock(method=f"/wiresum.join.v1.JoinService/{method}")
        handler = await self._interceptor.intercept_service(known, details)
        with contextlib.suppress(grpc.aio.AbortError):
            await handler.stream_stream(None, call)
        return call


def test_a_call_without_a_message_is_ended() -> None:
    async def run(loop: VirtualLoop) -> None:
        served = Served(loop)
        ended = await served.serve("Diagnose", Call())
        assert ended.refused == ("INVALID_ARGUMENT", "the call came without a message")
        began_at = loop.time()
        silent = await served.serve("Diagnose", Call(ends=False))
        assert silent.refused == ("DEADLINE_EXCEEDED", "no message came within 10 s of the call")
        assert loop.time() == pytest.approx(began_at + interceptor.FIRST_MESSAGE_S_MAX)
        assert served.refusals == {"silent": 2}

    in_virtual_time(run)


def test_unknown_methods_are_counted(serve: Serve, connect: Connect) -> None:
    server = serve()
    assert refusal(lambda: connect(server).send("JoinService/Own", b""))[0] == "UNIMPLEMENTED"
    server.expect_refusals({"unimplemented": 1})


def test_who_asks_too_often_is_told_when_to_ask_again_and_others_are_served() -> None:
    async def run(loop: VirtualLoop) -> None:
        served = Served(loop, per_second=2, burst=5)

        async def ask(name: str, address: str) -> Call:
            return await served.serve("Diagnose", Call(b"", peer=f"ipv4:{address}:5", name=name))

        asked = [await ask("node 7", "10.0.0.7") for _ in range(8)]
        assert [call.refused is None for call in asked] == [True] * 5 + [False] * 3
        told = "node 7 at 10.0.0.7 asks too often: again in 0.5 s"
        assert {call.refused for call in asked[5:]} == {("RESOURCE_EXHAUSTED", told)}
        assert {call.trailers[join.RETRY_KEY] for call in asked[5:]} == {"500"}
        assert served.refusals == {"rate": 3}
        for name, address in (("node 7", "10.0.0.8"), ("node 8", "10.0.0.7"), ("", "10.0.0.7")):
            assert (await ask(name, address)).refused is None
        await asyncio.sleep(0.5)
        assert [(await ask("node 7", "10.0.0.7")).refused is None for _ in range(2)] == [True, False]

    in_virtual_time(run)


@contextlib.contextmanager
def streams(client: Client, count: int) -> Iterator[list[Any]]:
    """Calls that last."""
    over = threading.Event()

    def beats() -> Iterator[join.Heartbeat]:
        yield join.Heartbeat()
        over.wait(PATIENCE_S)

    made = [client.stub.Attend(beats(), timeout=PATIENCE_S) for _ in range(count)]
    try:
        for stream in made:
            next(stream)
        yield made
    finally:
        over.set()
        for stream in made:
            stream.cancel()


def test_a_tenant_with_as_many_calls_as_it_can_have_keeps_no_other_out(
    serve: Serve, connect: Connect, issue: Callable[..., Path], controller_tls: Path, operator_tls: Path
) -> None:
    server = serve(tls=controller_tls)
    server.security.interceptor._shares = Shares(20)
    first, second = (
        connect(server, issue("worker", name, tenants=("greedy",))) for name in ("greedy at one host", "and at another")
    )
    other, operator = connect(server, issue("worker", "other")), connect(server, operator_tls)
    with streams(first, 9), streams(second, 1):
        for client, held in ((first, "certificate 'greedy at one host' has 9"), (second, "tenant 'greedy' has 10")):
            with pytest.raises(grpc.RpcError) as caught:
                client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
            assert code_of(caught.value) == "RESOURCE_EXHAUSTED"
            assert 1.0 <= (ask_again_after_s(caught.value) or 0.0) <= 5.0
            assert f"{held} calls in progress" in details(caught.value)
        with streams(other, 4):
            other.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
            operator.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)
        server.expect_refusals({"calls": 2})
    wait_until(lambda: server.security.interceptor._in_progress == {}, "no call is in progress")
    assert (server.security.interceptor._shares.taken, len(server.security.interceptor._shares)) == (0, 0)
    first.stub.Diagnose(join.Member(), timeout=PATIENCE_S)


def test_a_refused_connection_is_counted_and_the_client_asks_again(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path
) -> None:
    server = serve(tls=controller_tls)
    server.security.front._shares = Shares(3)
    with streams(connect(server, worker_tls), 1), streams(connect(server, worker_tls), 1):
        client = connect(server, worker_tls)
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
        assert is_from_service(caught.value)
        assert 1.0 <= (ask_again_after_s(caught.value) or 0.0) <= 5.0
        assert "certificate 'test worker' has 2 connections, and no more while 1 of 3 are free" in details(caught.value)
        server.expect_refusals({"connections": 1})
    wait_until(lambda: len(server.security.front._idle) > 0, "a connection can give way")
    client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)


def test_a_flooding_stream_is_slowed_down_without_loss() -> None:
    async def run(loop: VirtualLoop) -> None:
        beats = [join.Heartbeat(round_newest=number).SerializeToString() for number in range(200)]
        began_at = loop.time()
        call = await Served(loop).serve("Attend", Call(*beats))
        assert [event.ended.reason for event in call.answers] == [str(number) for number in range(200)]
        waited = 199 - interceptor.STREAM_MESSAGES_BURST  # the first is not counted
        assert loop.time() - began_at == pytest.approx(waited / interceptor.STREAM_MESSAGES_PER_SECOND)

    in_virtual_time(run)


def test_a_stream_is_read_a_few_times_as_fast_as_heartbeats_come() -> None:
    beats_per_second = 1000 / Limits().heartbeat_interval_ms
    assert 2 * beats_per_second <= interceptor.STREAM_MESSAGES_PER_SECOND <= 5 * beats_per_second


def test_every_relevant_call_is_in_the_audit_log(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path, tmp_path: Path
) -> None:
    client = connect(serve(tls=controller_tls, audit=tmp_path / "audit.log"), worker_tls)
    list(client.stub.Join(join.JoinRequest(job_name="a-job", rank=3, job_token="secret"), timeout=PATIENCE_S))
    refusal(lambda: client.stub.Leave(join.LeaveRequest(member=join.Member(job=4)), timeout=PATIENCE_S))
    refusal(lambda: client.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S))
    refusal(lambda: client.send("JoinService/Leave", b"\xff"))
    audit = tmp_path / "audit.log"
    wait_until(lambda: audit.exists() and audit.read_text().count("\n") == 4, "four calls are in the audit log")
    text = audit.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["outcome"]) for line in lines] == [
        ("Join", "OK"),
        ("Leave", "NOT_FOUND"),
        ("GetReport", "role"),
        ("Leave", "malformed"),
    ]
    assert (lines[0]["caller"], lines[0]["job_name"], lines[0]["rank"]) == ("test worker", "a-job", 3)
    assert (lines[1]["job"], lines[1]["text"]) == (4, "no such member")
    assert "secret" not in text
