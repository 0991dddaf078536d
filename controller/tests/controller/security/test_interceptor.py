"""The interceptor in front of services that allow everything, with and without TLS."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from wiresum import join
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import OPTIONS, Security, caller, interceptor
from wiresum.join import join_pb2_grpc, operator_pb2_grpc
from wiresum.join.constants import LEASE_SLOTS_MAX
from wiresum.join.credentials import CredentialsError, open_channel
from wiresum_lab.processes import PATIENCE_S, wait_until


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


def test_workers_and_operators_may_only_call_their_own_service(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path, operator_tls: Path
) -> None:
    server = serve(tls=controller_tls)
    worker, operator = connect(server, worker_tls), connect(server, operator_tls)
    code, text = refusal(lambda: worker.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S))
    assert code == "PERMISSION_DENIED"
    assert "test worker at 127.0.0.1 has not the role operator" in text
    for method in ("Join", "Attend"):
        assert refusal(lambda method=method: operator.send(f"JoinService/{method}", b""))[0] == "PERMISSION_DENIED"
    operator.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)
    server.expect_refusals({"role": 3})


def test_without_tls_loopback_callers_may_do_everything(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    client.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)
    assert len(list(client.stub.Join(join.JoinRequest(), timeout=PATIENCE_S))) == 2


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


def test_a_call_without_a_message_is_ended(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "FIRST_MESSAGE_S_MAX", 0.1)
    server = serve()
    client = connect(server)
    assert refusal(lambda: client.send("JoinService/Join"))[0] == "INVALID_ARGUMENT"
    held = threading.Event()
    silent = (b"" for _ in iter(lambda: held.wait(PATIENCE_S), True))
    call = client.channel.stream_stream("/wiresum.join.v1.JoinService/Join")(silent, timeout=PATIENCE_S)
    code, text = refusal(lambda: next(call))
    held.set()
    assert (code, "no message came within" in text) == ("DEADLINE_EXCEEDED", True)
    server.expect_refusals({"silent": 2})


def test_unknown_methods_are_counted(serve: Serve, connect: Connect) -> None:
    server = serve()
    assert refusal(lambda: connect(server).send("JoinService/Own", b""))[0] == "UNIMPLEMENTED"
    server.expect_refusals({"unimplemented": 1})


def test_a_caller_that_asks_too_often_is_told_when_to_retry(serve: Serve, connect: Connect) -> None:
    server = serve(requests_per_second=1, requests_burst=20)
    client = connect(server)
    refused = []
    for _ in range(30):
        try:
            client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            refused.append(error)
    assert len(refused) >= 8
    for error in refused:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "127.0.0.1 asks too often" in error.details()
        assert 0 < int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) <= 1000
    server.expect_refusals({"rate": len(refused)})


def test_the_rate_limit_is_by_certificate_and_address(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path
) -> None:
    server = serve(tls=controller_tls, requests_per_second=1, requests_burst=5)
    client = connect(server, worker_tls)
    buckets = server.security.interceptor._buckets
    for _ in range(4):
        client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
    assert set(buckets._buckets) == {"127.0.0.1 test worker"}, (
        "not others with this certificate, nor others at this address"
    )


def test_concurrent_calls_of_one_address_are_bounded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "CALLS_AT_ONCE_MAX", 3)
    server = serve()
    client = connect(server)
    over = threading.Event()

    def beats() -> Iterator[join.Heartbeat]:
        yield join.Heartbeat()
        over.wait(PATIENCE_S)

    streams = [client.stub.Attend(beats(), timeout=PATIENCE_S) for _ in range(3)]
    for stream in streams:
        next(stream)
    code, text = refusal(lambda: client.stub.Diagnose(join.Member(), timeout=PATIENCE_S))
    assert (code, "3 calls in progress" in text) == ("RESOURCE_EXHAUSTED", True)
    over.set()
    for stream in streams:
        list(stream)
    client.stub.Diagnose(join.Member(), timeout=PATIENCE_S)
    server.expect_refusals({"calls": 1})
    wait_until(lambda: server.security.interceptor._in_progress == {}, "no call is in progress")


def test_a_flooding_stream_is_slowed_down_without_loss(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptor, "STREAM_MESSAGES_BURST", 5)
    client = connect(serve())
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(interceptor.asyncio, "sleep", note)
    beats = (join.Heartbeat(round_newest=number) for number in range(20))
    assert len(list(client.stub.Attend(beats, timeout=PATIENCE_S))) == 20
    assert slept, "20 messages came at once, and 5 may"


def test_every_relevant_call_is_in_the_audit_log(
    serve: Serve, connect: Connect, controller_tls: Path, worker_tls: Path, tmp_path: Path
) -> None:
    client = connect(serve(tls=controller_tls, audit=tmp_path / "audit.log"), worker_tls)
    list(client.stub.Join(join.JoinRequest(job_name="a-job", rank=3, job_token="secret"), timeout=PATIENCE_S))
    refusal(lambda: client.stub.Leave(join.LeaveRequest(member=join.Member(job=4)), timeout=PATIENCE_S))
    refusal(lambda: client.operator.GetReport(join.GetReportRequest(), timeout=PATIENCE_S))
    refusal(lambda: client.send("JoinService/Leave", b"\xff"))
    wait_until(lambda: (tmp_path / "audit.log").read_text().count("\n") == 4, "four calls are in the audit log")
    text = (tmp_path / "audit.log").read_text()
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
