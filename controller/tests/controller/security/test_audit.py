from __future__ import annotations

import dataclasses
import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest

from wiresum import join
from wiresum.controller.security import audit as module
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.caller import Caller
from wiresum.controller.security.names import Claims

CALLER = Caller(peer="ipv4:10.0.0.7:5", address="10.0.0.7", name="node 7", claims=Claims(frozenset({"worker"})))
SECRETS = join.JoinRequest(job_name="a-job", rank=1, key=123456789, attempt="attempt-x", job_token="token-x")


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
        "priority": 0,
        "endpoint": ":0",
        "outcome": "PERMISSION_DENIED",
        "text": "not yours",
        "seconds": 0.25,
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


def test_repeated_refusals_are_counted_instead_of_logged(path: Path) -> None:
    now = 0.0
    log = AuditLog(path, clock=lambda: now)
    for _ in range(1000):
        log.write(CALLER, "Join", None, "rate", "", 0.0)
    log.write(CALLER, "Join", None, "OK", "", 0.0)
    log.close()
    written = lines(path)
    assert len(written) == module.REFUSALS_BURST + 1
    assert written[-1]["outcome"] == "OK"
    assert written[-1]["refusals_unwritten"] == 1000 - module.REFUSALS_BURST


PARTIES = [
    Caller(address="10.0.0.7", name="a", authenticated=True, claims=Claims(frozenset({"worker"}), tenants=("vision",))),
    Caller(address="10.0.0.7", name="b", authenticated=True, claims=Claims(frozenset({"worker"}), tenants=("speech",))),
    Caller(address="10.0.0.7", name="c", authenticated=True, claims=Claims(frozenset({"worker"}))),
    Caller(address="10.0.0.7"),
    Caller(address="10.0.0.8"),
]


@pytest.mark.parametrize("other", PARTIES[1:])
def test_refusals_of_one_party_do_not_hide_those_of_another(path: Path, other: Caller) -> None:
    log = AuditLog(path, clock=lambda: 0.0)
    for _ in range(1000):
        log.write(PARTIES[0], "Join", None, "rate", "", 0.0)
    log.write(other, "Join", None, "permission_denied", "not yours", 0.0)
    log.close()
    assert [line for line in lines(path) if line.get("outcome") == "permission_denied"]
    assert {"party": "tenant vision", "refusals_unwritten": 900}.items() <= lines(path)[-1].items()


def test_certificates_of_one_tenant_are_one_party(path: Path) -> None:
    log = AuditLog(path, clock=lambda: 0.0)
    for number in range(200):
        log.write(dataclasses.replace(PARTIES[0], name=f"n{number}"), "Join", None, "rate", "", 0.0)
    log.close()
    assert len(lines(path)) == module.REFUSALS_BURST + 1


def test_what_was_not_written_is_told_after_a_minute_whoever_calls(path: Path) -> None:
    now = 0.0
    log = AuditLog(path, clock=lambda: now)
    for _ in range(module.REFUSALS_BURST + 7):
        log.write(PARTIES[0], "Join", None, "rate", "", 0.0)
    now = 59.0
    log.write(PARTIES[1], "GetReport", None, "OK", "", 0.0)
    assert len(lines(path)) == module.REFUSALS_BURST
    now = 60.0
    log.write(PARTIES[1], "GetReport", None, "OK", "", 0.0)
    log.close()
    assert lines(path)[-1]["refusals_unwritten"] == 7
    assert len(lines(path)) == module.REFUSALS_BURST + 1


def test_files_are_rotated_so_that_they_never_fill_a_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 2000)
    log = AuditLog(path)
    for _ in range(300):
        log.write(CALLER, "Leave", None, "OK", "x" * 1000, 0.0)
    log.close()
    files = list(path.parent.iterdir())
    assert len(files) == module.FILES_KEPT + 1
    assert all(file.stat().st_size <= 2000 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


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
