"""Attempts to get unauthorised access to the real join service with mutual TLS."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join.credentials import load
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver
from wiresum_lab.laboratory import certified_earlier
from wiresum_lab.processes import PATIENCE_S, wait_until


def states(operator: Client) -> dict[str, str]:
    return {job.name: job.state for job in operator.jobs()}


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
def connect(server: JoinServer) -> Iterator[Callable[[Path], Client]]:
    clients: list[Client] = []

    def connect_one(tls: Path) -> Client:
        clients.append(Client(server.port, tls=tls))
        return clients[-1]

    yield connect_one
    for client in clients:
        client.close()


@pytest.fixture
def worker(connect: Callable[..., Client], worker_tls: Path) -> Client:
    return connect(worker_tls)


@pytest.fixture
def operator(connect: Callable[..., Client], operator_tls: Path) -> Client:
    return connect(operator_tls)


def assert_attended(attendance: Attendance) -> None:
    before = attendance.pulses
    wait_until(lambda: attendance.pulses > before + 1 or attendance.ended is not None, "heartbeats are answered")
    assert attendance.ended is None, attendance.ended


@pytest.fixture
def victims(worker: Client) -> Iterator[list[Attendance]]:
    """Job A of two workers, which must not be disturbed."""
    replies = worker.join_all(2, job_name="A")
    attendances = [Attendance(worker, reply) for reply in replies]
    yield attendances
    try:
        for attendance in attendances:
            assert_attended(attendance)
    finally:
        for attendance in attendances:
            attendance.hang_up()


def refusal(ask: Callable[[], Any]) -> tuple[str, str]:
    """Calls what must be refused, and gives the status code and text."""
    with pytest.raises(grpc.RpcError) as caught:
        answer = ask()
        if not hasattr(answer, "DESCRIPTOR"):
            list(answer)
    return caught.value.code().name, caught.value.details()


# Authentication.


def test_only_a_valid_certificate_of_the_right_authority_can_connect(
    server: JoinServer, security: Security, worker_tls: Path, tmp_path: Path, authority: Authority
) -> None:  # fmt: skip
    holder = Holder("worker", Claims(frozenset({"worker"})))
    Authority.create(tmp_path / "another", "test").issue(holder, tmp_path / "strange", 1)
    with certified_earlier(timedelta(days=30)):
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
            assert refusal(lambda channel=channel: Client(server.port, channel=channel).join())[0] == "UNAVAILABLE"
    assert not security.refusals, "no request reached the service"


# Authorisation to join.


def test_a_worker_joins_only_jobs_and_tenants_of_its_certificate(
    connect: Callable[..., Client], operator: Client, issue: Callable[..., Path]
) -> None:
    narrow = connect(issue("worker", jobs=("vision-*",), tenants=("vision",)))
    assert "is for jobs 'vision-*', and not for 'A'" in refusal(lambda: narrow.join(job_name="A"))[1]
    code, text = refusal(lambda: narrow.join(job_name="vision-1", tenant="speech"))
    assert (code, "is for 'vision', and tenant 'speech' was asked for" in text) == ("PERMISSION_DENIED", True)
    narrow.join(job_name="vision-1")
    (job,) = operator.jobs()
    assert (job.name, job.tenant) == ("vision-1", "vision")


def test_a_worker_can_only_register_its_own_address(worker: Client, operator: Client) -> None:
    elsewhere = join.Endpoint(address="192.0.2.77", port=5000)
    code, text = refusal(lambda: worker.join(endpoint=elsewhere))
    assert (code, "names no address 192.0.2.77" in text) == ("PERMISSION_DENIED", True)
    assert states(operator) == {}


def test_a_created_job_can_only_be_joined_with_its_token(worker: Client, operator: Client) -> None:
    asked = join.CreateJobRequest(job_name="B", world_size=1)
    token = operator.operator.CreateJob(asked, timeout=PATIENCE_S).job_token
    for wrong in ("", "guess", token[:-1], token.swapcase()):
        assert refusal(lambda wrong=wrong: worker.join(job_name="B", job_token=wrong))[0] == "PERMISSION_DENIED"
    worker.join(job_name="B", job_token=token)


# A member of job B against job A.


def test_a_member_cannot_impersonate_a_member_of_another_job(
    worker: Client, operator: Client, victims: list[Attendance]
) -> None:
    """The token alone says who calls: with its own one it acts for itself, whatever else it says."""
    own, _ = worker.join_all(2, job_name="B")
    numbers = random.Random(1)
    forged = [
        join.Member(job=1 - own.job % 2, worker=rank, token=token, switch_name=own.switch_name)
        for rank in range(2)
        for token in ("", own.token[:-1], own.token + " ", f"{numbers.getrandbits(128):032x}")
    ]
    for member in forged:
        for ask in (
            lambda member=member: worker.stub.Attend(iter([join.Heartbeat(member=member)]), timeout=PATIENCE_S),
            lambda member=member: worker.stub.Leave(join.LeaveRequest(member=member), timeout=PATIENCE_S),
            lambda member=member: worker.stub.Abort(join.AbortRequest(member=member), timeout=PATIENCE_S),
            lambda member=member: worker.stub.Diagnose(member, timeout=PATIENCE_S),
        ):
            assert refusal(ask)[0] == "NOT_FOUND", member
    assert states(operator) == {"A": "running", "B": "running"}
    elsewhere = victims[0].member
    member = join.Member(job=elsewhere.job, worker=elsewhere.worker, token=own.token, switch_name=elsewhere.switch_name)
    diagnosis = worker.stub.Diagnose(member, timeout=PATIENCE_S)
    assert [seen.heartbeat_age_ms > 0 for seen in diagnosis.workers] == [True, True], "job B's, which does not attend"
    worker.stub.Abort(join.AbortRequest(member=member), timeout=PATIENCE_S)
    wait_until(lambda: states(operator) == {"A": "running"}, "job B has ended")


def test_a_place_in_a_running_job_cannot_be_taken(worker: Client, victims: list[Attendance]) -> None:
    for rank in range(2):
        code, _ = refusal(lambda rank=rank: worker.join(job_name="A", rank=rank, world_size=2, attempt="another"))
        assert code == "ALREADY_EXISTS"


def test_a_stolen_attempt_id_does_not_give_the_place_away(worker: Client, victims: list[Attendance]) -> None:
    granted = worker.join(job_name="B", attempt="seen")
    elsewhere = join.Endpoint(address="127.0.0.2", port=7000)
    code, text = refusal(lambda: worker.join(job_name="B", attempt="seen", endpoint=elsewhere))
    assert code == "ALREADY_EXISTS"
    assert granted.token not in text
    assert worker.join(job_name="B", attempt="seen").token == granted.token, "the worker itself may ask again"


# Denial of service.


def test_a_flood_is_refused_and_counted_and_others_are_still_served(
    connect: Callable[..., Client], issue: Callable[..., Path], security: Security, victims: list[Attendance]
) -> None:
    buckets = security.interceptor._buckets
    buckets._burst, buckets._per_second = 50, 1  # low enough for any machine to exceed
    flooder = connect(issue("worker", name="flooder"))
    nobody = join.Member(job=99, token="guess")
    calls = [flooder.stub.Diagnose.future(nobody, timeout=PATIENCE_S) for _ in range(900)]
    codes = [call.exception(PATIENCE_S).code().name for call in calls]
    assert set(codes) <= {"NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}, (
        "UNAVAILABLE: too many calls on one connection"
    )
    assert codes.count("RESOURCE_EXHAUSTED") > 0
    refused = codes.count("RESOURCE_EXHAUSTED")
    wait_until(lambda: security.refusals["rate"] == refused, "each is counted")
    for victim in victims:
        assert_attended(victim)
