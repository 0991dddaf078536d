"""Attempts to break in: the real join service with mutual TLS, and callers who want what is not theirs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security import authority as authority_module
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join import join_pb2_grpc, operator_pb2_grpc
from wiresum.join.credentials import load, open_channel
from wiresum_lab.doubles.controller import RecordingDriver, join_request, member_of
from wiresum_lab.processes import PATIENCE_S, wait_until


class Caller:
    """A channel with a certificate, and what one may try with it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.workers = join_pb2_grpc.JoinServiceStub(channel)
        self.operators = operator_pb2_grpc.OperatorServiceStub(channel)

    def join(self, **fields: object) -> join.JoinReply:
        for event in self.workers.Join(join_request(**fields), timeout=PATIENCE_S):
            if event.HasField("granted"):
                return event.granted
        raise AssertionError("the stream ended without a grant")

    def start_job(self, name: str, world_size: int = 2, **fields: object) -> list[join.JoinReply]:
        with futures.ThreadPoolExecutor(world_size) as pool:
            asked = [
                pool.submit(self.join, job_name=name, rank=rank, world_size=world_size, **fields)
                for rank in range(world_size)
            ]
            return [one.result() for one in asked]

    def report(self) -> dict[str, str]:
        """The jobs' states."""
        report = self.operators.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)
        return {job.name: job.state for job in report.jobs}


@pytest.fixture
def security(controller_tls: Path, tmp_path: Path) -> Security:
    return Security(SecurityConfig(tls=controller_tls, audit=tmp_path / "audit.log", requests_burst=5000))


@pytest.fixture
def server(security: Security) -> Iterator[JoinServer]:
    server = JoinServer(RecordingDriver(), security=security)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.1)


@pytest.fixture
def connect(server: JoinServer) -> Iterator[Callable[..., Caller]]:
    channels: list[grpc.Channel] = []

    def connect_one(tls: Path | None) -> Caller:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels.append(open_channel(f"127.0.0.1:{server.port}", tls=tls, options=options))
        return Caller(channels[-1])

    yield connect_one
    for channel in channels:
        channel.close()


@pytest.fixture
def worker(connect: Callable[..., Caller], worker_tls: Path) -> Caller:
    return connect(worker_tls)


@pytest.fixture
def operator(connect: Callable[..., Caller], operator_tls: Path) -> Caller:
    return connect(operator_tls)


class Attendance:
    """A worker's Attend stream, and what came of it."""

    def __init__(self, caller: Caller, reply: join.JoinReply) -> None:
        self.pulses = 0
        self.ended: join.JobEnded | None = None
        self._over = threading.Event()
        self._call = caller.workers.Attend(self._beats(member_of(reply)))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_until(lambda: self.pulses > 0, "a first heartbeat was answered")

    def _beats(self, member: join.Member) -> Iterator[join.Heartbeat]:
        while not self._over.wait(0.05):
            yield join.Heartbeat(member=member, round_newest=1)

    def _read(self) -> None:
        try:
            for event in self._call:
                self.pulses += event.HasField("pulse")
                if event.HasField("ended"):
                    self.ended = event.ended
        except grpc.RpcError:
            pass

    def still_goes_on(self) -> None:
        before = self.pulses
        wait_until(lambda: self.pulses > before + 1 or self.ended is not None, "heartbeats are answered")
        assert self.ended is None, self.ended

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def victims(worker: Caller) -> Iterator[list[Attendance]]:
    """Job A, of two workers, which nobody is to disturb."""
    replies = worker.start_job("A")
    attendances = [Attendance(worker, reply) for reply in replies]
    yield attendances
    try:
        for attendance in attendances:
            attendance.still_goes_on()
    finally:
        for attendance in attendances:
            attendance.close()


def refusal(ask: Callable[[], Any]) -> tuple[str, str]:
    """Code and text of what must be refused."""
    with pytest.raises(grpc.RpcError) as caught:
        answer = ask()
        if not hasattr(answer, "DESCRIPTOR"):
            list(answer)
    return caught.value.code().name, caught.value.details()


# Who is let in at all.


def test_nobody_gets_in_without_a_certificate_of_the_authority_that_holds_today(
    server: JoinServer, security: Security, worker_tls: Path, tmp_path: Path, authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(timezone.utc) - timedelta(days=30)

    holder = Holder("worker", Claims(frozenset({"worker"})))
    Authority.create(tmp_path / "another", "test").issue(holder, tmp_path / "strange", 1)
    monkeypatch.setattr(authority_module, "datetime", Earlier)
    authority.issue(holder, tmp_path / "expired", 10)
    trusted = load(worker_tls).authority
    pairs = [((tmp_path / name / "tls.key"), (tmp_path / name / "tls.crt")) for name in ("strange", "expired")]
    shown = [grpc.ssl_channel_credentials(trusted, key.read_bytes(), crt.read_bytes()) for key, crt in pairs]
    target = f"127.0.0.1:{server.port}"
    for channel in (
        grpc.insecure_channel(target),
        grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted)),
        *(grpc.secure_channel(target, one) for one in shown),
    ):
        with channel:
            assert refusal(lambda channel=channel: Caller(channel).join())[0] == "UNAVAILABLE"
    assert not security.refusals, "nobody came as far as to ask"


def test_a_worker_cannot_do_what_an_operator_can(worker: Caller, operator: Caller, victims: list[Attendance]) -> None:
    for ask in (
        lambda: worker.operators.GetReport(join.GetReportRequest(), timeout=PATIENCE_S),
        lambda: worker.operators.CreateJob(join.CreateJobRequest(job_name="B", world_size=1), timeout=PATIENCE_S),
        lambda: worker.operators.EndJob(join.EndJobRequest(job_name="A"), timeout=PATIENCE_S),
        lambda: worker.operators.Drain(join.DrainRequest(), timeout=PATIENCE_S),
    ):
        code, text = refusal(ask)
        assert code == "PERMISSION_DENIED"
        assert "role operator" in text
    assert operator.report() == {"A": "running"}


def test_an_operator_cannot_join(operator: Caller) -> None:
    code, text = refusal(operator.join)
    assert (code, "role worker" in text) == ("PERMISSION_DENIED", True)


# What a worker may join.


def test_a_worker_joins_only_jobs_and_tenants_of_its_certificate(
    connect: Callable[..., Caller], operator: Caller, issue: Callable[..., Path]
) -> None:
    narrow = connect(issue("worker", jobs=("vision-*",), tenants=("vision",)))
    assert "is for jobs 'vision-*', and not for 'A'" in refusal(lambda: narrow.join(job_name="A"))[1]
    code, text = refusal(lambda: narrow.join(job_name="vision-1", tenant="speech"))
    assert (code, "is for 'vision', and tenant 'speech' was asked for" in text) == ("PERMISSION_DENIED", True)
    narrow.join(job_name="vision-1")
    (job,) = operator.operators.GetReport(join.GetReportRequest(), timeout=PATIENCE_S).jobs
    assert (job.name, job.tenant) == ("vision-1", "vision")


def test_a_worker_has_its_packets_come_from_its_own_address(worker: Caller, operator: Caller) -> None:
    elsewhere = join.Endpoint(address="192.0.2.77", port=5000)
    code, text = refusal(lambda: worker.join(endpoint=elsewhere))
    assert (code, "names no address 192.0.2.77" in text) == ("PERMISSION_DENIED", True)
    assert operator.report() == {}


def test_a_job_of_an_operator_is_joined_with_its_token_alone(worker: Caller, operator: Caller) -> None:
    asked = join.CreateJobRequest(job_name="B", world_size=1)
    token = operator.operators.CreateJob(asked, timeout=PATIENCE_S).job_token
    for wrong in ("", "guess", token[:-1], token.swapcase()):
        assert refusal(lambda wrong=wrong: worker.join(job_name="B", job_token=wrong))[0] == "PERMISSION_DENIED"
    worker.join(job_name="B", job_token=token)


# What a member of job B can do to job A.


def test_a_member_of_one_job_cannot_speak_for_a_member_of_another(
    worker: Caller, operator: Caller, victims: list[Attendance]
) -> None:
    own, peer = worker.start_job("B")
    numbers = random.Random(1)
    forged = [
        join.Member(job=1 - own.job % 2, worker=rank, token=token, switch_name=own.switch_name)
        for rank in range(2)
        for token in ("", own.token, peer.token, own.token[:-1], f"{numbers.getrandbits(128):032x}")
    ]
    forged += [
        join.Member(job=own.job, worker=1 - own.worker, token=own.token, switch_name=own.switch_name),
        join.Member(job=own.job, worker=own.worker, token=own.token, switch_name="another switch"),
        join.Member(job=77, worker=9, token=own.token, switch_name=own.switch_name),
    ]
    for member in forged:
        for ask in (
            lambda member=member: worker.workers.Attend(iter([join.Heartbeat(member=member)]), timeout=PATIENCE_S),
            lambda member=member: worker.workers.Leave(join.LeaveRequest(member=member), timeout=PATIENCE_S),
            lambda member=member: worker.workers.Abort(join.AbortRequest(member=member), timeout=PATIENCE_S),
            lambda member=member: worker.workers.Diagnose(member, timeout=PATIENCE_S),
        ):
            assert refusal(ask)[0] == "NOT_FOUND", member
    assert operator.report() == {"A": "running", "B": "running"}


def test_nobody_takes_a_place_in_a_job_that_runs(worker: Caller, victims: list[Attendance]) -> None:
    for rank in range(2):
        code, _ = refusal(lambda rank=rank: worker.join(job_name="A", rank=rank, world_size=2, attempt="another"))
        assert code == "ALREADY_EXISTS"


def test_an_attempt_that_was_seen_gets_nobody_else_the_place(worker: Caller, victims: list[Attendance]) -> None:
    granted = worker.join(job_name="B", attempt="seen")
    elsewhere = join.Endpoint(address="127.0.0.2", port=7000)
    code, text = refusal(lambda: worker.join(job_name="B", attempt="seen", endpoint=elsewhere))
    assert code == "ALREADY_EXISTS"
    assert granted.token not in text
    assert worker.join(job_name="B", attempt="seen").token == granted.token, "the worker itself may ask again"


# Floods, and what is written down.


def test_a_flood_is_refused_counted_and_does_not_keep_others_from_being_heard(
    connect: Callable[..., Caller], issue: Callable[..., Path], security: Security, victims: list[Attendance]
) -> None:
    buckets = security.interceptor._buckets
    buckets._burst, buckets._per_second = 50, 1  # so that any machine is quick enough for a flood
    flooder = connect(issue("worker", name="flooder"))
    nobody = join.Member(job=99, token="guess")
    calls = [flooder.workers.Diagnose.future(nobody, timeout=PATIENCE_S) for _ in range(900)]
    codes = [call.exception(PATIENCE_S).code().name for call in calls]
    assert set(codes) <= {"NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}, "the last: more than a connection may have"
    assert codes.count("RESOURCE_EXHAUSTED") > 0
    refused = codes.count("RESOURCE_EXHAUSTED")
    wait_until(lambda: security.refusals["rate"] == refused, "each is counted")
    for victim in victims:
        victim.still_goes_on()


def test_the_audit_log_says_who_tried_what(worker: Caller, tmp_path: Path, victims: list[Attendance]) -> None:
    refusal(lambda: worker.operators.EndJob(join.EndJobRequest(job_name="A", reason="spite"), timeout=PATIENCE_S))
    wait_until(lambda: '"EndJob"' in (tmp_path / "audit.log").read_text(), "the attempt is in the audit log")
    (line,) = (line for line in (tmp_path / "audit.log").read_text().splitlines() if '"EndJob"' in line)
    for said in ('"caller": "test worker"', '"peer": "ipv4:127.0.0.1:', '"outcome": "role"'):
        assert said in line
