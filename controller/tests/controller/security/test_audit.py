from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security import audit as module
from wiresum.controller.security.audit import AuditLimits, AuditLog
from wiresum.controller.security.caller import Caller
from wiresum.controller.security.names import Claims
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

CALLER = Caller(peer="ipv4:10.0.0.7:5", address="10.0.0.7", name="node 7", claims=Claims(frozenset({"worker"})))
SECRETS = join.JoinRequest(job_name="a-job", rank=1, attempt="attempt-x", job_token="token-x")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "audit.log"


def test_a_line_has_the_caller_the_request_and_the_result(path: Path) -> None:
    log = AuditLog(path)
    log.write(CALLER, "Join", SECRETS, "PERMISSION_DENIED", "not yours", 0.25)
    log.close()
    (line,) = lines(path)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "caller": "node 7",
        "peer": "ipv4:10.0.0.7:5",
        "roles": ["worker"],
        "method": "Join",
        "job_name": "a-job",
        "rank": 1,
        "world_size": 0,
        "endpoint": ":0",
        "outcome": "PERMISSION_DENIED",
        "text": "not yours",
        "seconds": 0.25,
    }


def test_a_line_names_the_certificate_whatever_its_holder_says(
    controller_tls: Path, issue: Callable[..., Path], path: Path
) -> None:
    security = Security(SecurityConfig(tls=controller_tls, audit=path))
    server = JoinServer(RecordingDriver(), security=security)
    server.start("127.0.0.1", 0)
    said = {"user-agent": "root", "wiresum-caller": "root"}.items()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(security.close)
        cleanup.callback(server.stop, 0.1)
        for role in ("worker", "operator"):
            tls = issue(role, f"the {role}'s")
            client = cleanup.enter_context(contextlib.closing(Client(server.port, tls=tls)))
            if role == "worker":
                client.leave(client.join(host_name="root"))
            with pytest.raises(grpc.RpcError):
                client.operator.EndJob(join.EndJobRequest(job_name="root"), metadata=tuple(said), timeout=PATIENCE_S)
    found = {(line["caller"], *line["roles"], line["method"]) for line in lines(path)}
    assert found == {
        ("the worker's", "worker", "Join"),
        ("the worker's", "worker", "Leave"),
        ("the worker's", "worker", "EndJob"),
        ("the operator's", "operator", "EndJob"),
    }


def test_secrets_are_not_logged(path: Path) -> None:
    log = AuditLog(path)
    member = join.Member(job=3, worker=1, token="token-x", switch_name="leaf")
    for request in (SECRETS, member, join.LeaveRequest(member=member), join.Heartbeat(member=member)):
        log.write(CALLER, "Any", request, "OK", "", 0.0)
    log.close()
    text = path.read_text()
    for secret in ("token-x", "attempt-x", "123456789"):
        assert secret not in text
    assert [line["job"] for line in lines(path)[1:]] == [3, 3, 3]


def test_only_the_owner_can_read_the_log_and_a_restart_appends_to_it(path: Path) -> None:
    for _ in range(2):
        log = AuditLog(path)
        log.write(CALLER, "Drain", None, "OK", "", 0.0)
        log.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(lines(path)) == 2


PARTIES = [
    Caller(address="10.0.0.7", name="a", authenticated=True, claims=Claims(frozenset({"worker"}), tenants=("vision",))),
    Caller(address="10.0.0.7", name="b", authenticated=True, claims=Claims(frozenset({"worker"}), tenants=("speech",))),
    Caller(address="10.0.0.7", name="c", authenticated=True, claims=Claims(frozenset({"worker"}))),
    Caller(address="10.0.0.7"),
    Caller(address="10.0.0.8"),
]
OPERATOR = Caller(address="10.0.0.9", name="op", authenticated=True, claims=Claims(frozenset({"operator"})))
LONGEST = join.JoinRequest(
    job_name='"' * 16_000,
    rank=2**32 - 1,
    world_size=2**32 - 1,
    tenant="\N{GRINNING FACE}" * 4_000,
    endpoint=join.Endpoint(address="é" * 9_000, port=2**32 - 1),
)
"""Whatever a caller may say."""


def refuse(log: AuditLog, caller: Caller, count: int, method: str = "Join") -> None:
    for _ in range(count):
        log.write(caller, method, LONGEST, "permission_denied", "x" * 1000, 0.0)


def test_a_line_is_bounded_whatever_the_caller_says(path: Path) -> None:
    log = AuditLog(path)
    said = '"' * 4000
    hostile = Caller(peer=said, name=said, authenticated=True, claims=Claims(frozenset({"worker", "fallback"})))
    for method in ("Attend", "GetReport"):
        log.write(hostile, method, LONGEST, "FAILED_PRECONDITION", said, 1e9)
    log.write(hostile, "EndJob", join.EndJobRequest(job_name=said, reason=said), "FAILED_PRECONDITION", said, 1e9)
    log.close()
    assert all(len(line) < module.LINE_BYTES_MAX for line in path.read_text().splitlines())
    assert len(lines(path)) == 3


SMALLER = 16
LIMITS = AuditLimits(
    module.SHARE_BYTES_A_DAY // SMALLER, module.SHARE_BYTES_AT_ONCE // SMALLER, module.REFUSALS_BYTES_AT_ONCE // SMALLER
)
"""So that a flood needs fewer calls."""
FLOOD_S, FLOOD_CALLS = 3600, 2400
VICTIMS = 10


@pytest.mark.parametrize("certificates", [1, 10])
def test_a_flood_of_an_hour_leaves_yesterdays_lines_of_others(path: Path, certificates: int) -> None:
    """Joins that are granted, ends, and refusals of every kind, by certificates of one tenant."""
    now = 0.0
    log = AuditLog(path, LIMITS, clock=lambda: now)
    for other in PARTIES[1:]:
        log.write(other, "Join", SECRETS, "OK", "of yesterday", 0.0)
    log.write(OPERATOR, "Drain", None, "OK", "of yesterday", 0.0)
    now = module.DAY_S
    kinds = [
        ("Join", "BEGUN"), ("Join", "OK"), ("Attend", "CANCELLED"), ("Leave", "OK"),
        ("Join", "rate"), ("Join", "permission_denied"), ("EndJob", "role"), ("Drain", "malformed"),
    ]  # fmt: skip
    for number in range(FLOOD_CALLS):
        now += FLOOD_S / FLOOD_CALLS
        caller = dataclasses.replace(PARTIES[0], name=f"n{number % certificates}")
        log.write(caller, *_call(kinds[number % len(kinds)]))
    for _ in range(VICTIMS):
        log.write(dataclasses.replace(PARTIES[0], name="victim"), *_call(("Join", "OK")))
    log.close()
    assert log.report() == join.AuditReport()
    files = sorted(path.parent.iterdir())
    written = sum(file.stat().st_size for file in files)
    assert written < LIMITS.bytes_at_once + LIMITS.bytes_a_day * FLOOD_S / module.DAY_S + 16_384
    found = [line for file in files for line in lines(file)]
    kept = {line.get("caller", "") or line.get("outcome") for line in found if line.get("text") == "of yesterday"}
    assert kept == {"b", "c", "op", "OK"}
    of_victim = sum(line.get("caller") == "victim" for line in found)
    assert of_victim <= 1, "it is of the same tenant, and only counted, but for what the day has added to the share"
    assert {(line["method"], line["outcome"]) for line in found if "method" in line} >= set(kinds)
    told = sum(sum(line["unwritten"].values()) for line in found if "unwritten" in line)
    whole = sum("method" in line for line in found) - len(PARTIES[1:]) - 1
    assert whole + told == FLOOD_CALLS + VICTIMS, "every call is written or counted"


def _call(kind: tuple[str, str]) -> tuple[str, Any, str, str, float]:
    method, outcome = kind
    return method, LONGEST, outcome, "x" * 1000, 0.0


def test_a_tenant_writes_at_most_its_share_a_day(path: Path) -> None:
    now, days = 0.0, 3
    log = AuditLog(path, LIMITS, clock=lambda: now)
    sizes: list[int] = []
    for _ in range(days):
        for _ in range(24 * 60 // SMALLER):
            now += 60.0 * SMALLER
            for kind in (("Join", "OK"), ("Leave", "OK"), ("Join", "rate")):
                for _ in range(4):
                    log.write(PARTIES[0], *_call(kind))
        assert log.flush(PATIENCE_S)
        sizes.append(sum(file.stat().st_size for file in path.parent.iterdir()))
    log.close()
    slack = 2 * module.LINE_BYTES_MAX
    assert sizes[0] <= LIMITS.bytes_at_once + LIMITS.bytes_a_day + slack
    assert 0.9 * LIMITS.bytes_a_day < sizes[2] - sizes[1] <= LIMITS.bytes_a_day + slack


def test_refusals_leave_room_for_calls_that_are_granted(path: Path) -> None:
    log = AuditLog(path, LIMITS, clock=lambda: 0.0)
    refuse(log, PARTIES[0], 500)
    for _ in range(100):
        log.write(PARTIES[0], "Join", SECRETS, "BEGUN", "", 0.0)
        log.write(PARTIES[0], "Leave", None, "OK", "", 0.0)
    log.close()
    found = lines(path)
    refused = sum(len(json.dumps(line)) + 1 for line in found if line.get("outcome") == "permission_denied")
    assert refused <= LIMITS.refusals_bytes_at_once
    assert sum(line.get("outcome") == "BEGUN" for line in found) == 100
    assert sum(line.get("method") == "Leave" for line in found) == 100


def test_the_first_refusal_of_each_kind_and_all_acts_of_operators_are_written(path: Path) -> None:
    log = AuditLog(path, clock=lambda: 0.0)
    log._share(PARTIES[0].parties[-1], 0.0).bytes_left = -1e9
    log._share(OPERATOR.parties[-1], 0.0).bytes_left = -1e9
    refuse(log, PARTIES[0], 10, "Join")
    refuse(log, PARTIES[0], 10, "EndJob")
    for _ in range(10):
        log.write(OPERATOR, "EndJob", None, "OK", "", 0.0)
        log.write(OPERATOR, "EndJob", None, "revoked", "", 0.0)
    log.close()
    whole = [(line["method"], line["outcome"]) for line in lines(path) if "method" in line]
    assert whole.count(("EndJob", "OK")) == 10
    assert whole.count(("EndJob", "revoked")) == 1, "a revoked certificate has only its share"
    assert whole.count(("Join", "permission_denied")) == whole.count(("EndJob", "permission_denied")) == 1


@pytest.mark.parametrize("other", PARTIES[1:])
def test_refusals_of_one_party_do_not_hide_those_of_another(path: Path, other: Caller) -> None:
    log = AuditLog(path, clock=lambda: 0.0)
    refuse(log, PARTIES[0], 1000)
    for _ in range(2):
        log.write(other, "Join", None, "permission_denied", "not yours", 0.0)
    log.close()
    written = [line for line in lines(path) if "x" in line.get("text", "")]
    assert sum(line.get("text") == "not yours" for line in lines(path)) == 2
    assert lines(path)[-1]["party"] == "tenant 'vision'"
    assert lines(path)[-1]["unwritten"] == {"Join permission_denied": 1000 - len(written)}


@pytest.mark.parametrize(
    ("caller", "party"),
    [
        (Caller(address="2001:db8::7"), "address '2001:db8::/64'"),
        (Caller(), "address 'this host'"),
        (Caller(address="10.0.0.7", name="node 7", authenticated=True), "certificate 'node 7'"),
        (dataclasses.replace(CALLER, name="vision", authenticated=True), "tenant 'vision'"),
        (
            dataclasses.replace(
                CALLER, authenticated=True, claims=Claims(frozenset({"worker"}), tenants=("speech", "vision"))
            ),
            "tenant 'vision'",
        ),
    ],
)
def test_a_party_is_one_of_those_that_share_connections(path: Path, caller: Caller, party: str) -> None:
    """So a certificate without a tenant has the share of the tenant that it is for quotas."""
    log = AuditLog(path, clock=lambda: 0.0)
    refuse(log, caller, 1000)
    log.close()
    assert lines(path)[-1]["party"] == party
    assert party in map(str, caller.parties)


def test_certificates_of_one_tenant_are_one_party(path: Path) -> None:
    log = AuditLog(path, clock=lambda: 0.0)
    for number in range(1000):
        refuse(log, dataclasses.replace(PARTIES[0], name=f"n{number}"), 1)
    log.close()
    assert path.stat().st_size <= module.REFUSALS_BYTES_AT_ONCE + module.LINE_BYTES_MAX


def test_what_was_not_written_is_told_after_a_minute_whoever_calls(path: Path) -> None:
    now = 0.0
    log = AuditLog(path, clock=lambda: now)
    refuse(log, PARTIES[0], 1000)
    now = 59.0
    log.write(PARTIES[1], "GetReport", None, "OK", "", 0.0)
    assert log.flush(PATIENCE_S)
    assert not any("unwritten" in line for line in lines(path))
    now = 60.0
    log.write(PARTIES[1], "GetReport", None, "OK", "", 0.0)
    assert log.flush(PATIENCE_S)
    assert {"party", "from", "time", "unwritten"} == lines(path)[-1].keys()
    log.close()
    assert sum("unwritten" in line for line in lines(path)) == 1


def test_polling_is_logged_only_if_it_is_refused(path: Path) -> None:
    log = AuditLog(path)
    log.write(CALLER, "GetReport", None, "OK", "", 0.0)
    log.write(CALLER, "GetReport", None, "role", "", 0.0)
    log.close()
    assert [line["outcome"] for line in lines(path)] == ["role"]


def test_without_a_file_events_go_to_the_program_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = AuditLog()
    log.write(CALLER, "Drain", None, "OK", "", 0.0)
    log.close()
    assert '"method": "Drain"' in caplog.text


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """A service whose audit log is tmp_path/audit.log."""
    security = Security(SecurityConfig(audit=tmp_path / "audit.log"))
    server = JoinServer(RecordingDriver(), security=security)
    clients: list[Client] = []

    def start_one() -> Client:
        clients.append(Client(server.start(port=0)))
        return clients[-1]

    yield start_one
    for client in clients:
        client.close()
    server.stop(0.1)
    security.close()


def test_a_service_whose_audit_disk_is_full_goes_on_and_says_it(tmp_path: Path, start: Callable[[], Client]) -> None:
    (tmp_path / "audit.log").unlink(missing_ok=True)
    (tmp_path / "audit.log").symlink_to("/dev/full")
    client = start()
    replies = client.join_all(2)
    wait_until(lambda: client.report().service.audit.lines_lost >= 2, "operators see it")
    assert "No space left" in client.report().service.audit.trouble
    (tmp_path / "audit.log").unlink()
    attended = [Attendance(client, reply) for reply in replies]
    client.join(job_name="another")
    wait_until(lambda: not client.report().service.audit.trouble, "they see that it is over")
    assert "lines_lost" in lines(tmp_path / "audit.log")[0]
    for attendance in attended:
        attendance.hang_up()
