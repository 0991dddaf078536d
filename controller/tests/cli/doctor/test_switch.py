from __future__ import annotations

import grpc
import pytest

from wiresum import join
from wiresum.cli.doctor import switch
from wiresum.cli.doctor.finding import Finding, Level
from wiresum.cli.service import Service, ServiceError
from wiresum_lab.doubles.operator_service import WrittenService, example_report


def findings(targets: str) -> dict[str, Finding]:
    with Service(targets) as service:
        return {finding.check: finding for finding in switch.findings(service)}


def ready(**changes: object) -> join.SwitchReport:
    fields = {"state": "ready", "slots_total": 512, "slots_free": 256, "jobs": 1, "jobs_max": 64} | changes
    return join.SwitchReport(name="rack1", kind="bmv2", **fields)


def test_a_service_whose_switch_has_free_slots_is_healthy(service: WrittenService) -> None:
    service.reports = [join.Report(switches=[ready()], service=join.ServiceReport(role="active"))]
    found = findings(service.target)
    assert {check: finding.level for check, finding in found.items()} == {"service": Level.OK, "state": Level.OK}
    assert "256 of 512 slots and 63 of 64 jobs are free" in found["state"].what


def test_an_unreachable_service_is_a_problem_if_alone_and_a_warning_beside_another(service: WrittenService) -> None:
    assert findings("127.0.0.1:1")["reachable"].level is Level.PROBLEM
    service.reports = [example_report()]
    found = findings(f"127.0.0.1:1,{service.target}")
    assert found["reachable"].level is Level.WARNING
    assert found["service"].level is Level.OK
    assert findings("127.0.0.1:1,127.0.0.1:2")["reachable"].level is Level.PROBLEM, "neither is reached"


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"trouble": "connection refused", "state": "unreachable"}, "trouble", Level.PROBLEM),
        ({"trouble": "it did not say", "state": "slow", "uncounted": True}, "slow", Level.WARNING),
        ({"trouble": "refused", "state": "unreachable", "uncounted": True}, "trouble", Level.PROBLEM),
        ({"state": "draining"}, "draining", Level.WARNING),
        ({"slots_free": 16}, "full", Level.WARNING),
        ({"jobs": 64}, "full", Level.WARNING),
        ({"room": {"slots": 512, "admit": 100}, "room_taken": {"slots": 9, "admit": 91}}, "full", Level.WARNING),
        ({"room": {"slots": 512, "admit": 100}, "room_taken": {"slots": 9, "admit": 90}}, "state", Level.OK),
        ({"stray_packets": {"malformed": 3, "unknown": 0}}, "strays", Level.NOTE),
        ({"sums_wrong": 2}, "sums", Level.WARNING),
    ],
)
def test_trouble_of_a_switch_is_reported(
    service: WrittenService, changes: dict[str, object], check: str, level: Level
) -> None:
    service.reports = [join.Report(switches=[ready(**changes)])]
    found = findings(service.target)[check]
    assert found.level is level
    assert found.advice or level is Level.OK
    assert "rack1" in found.what


def test_refused_requests_that_need_attention_are_reported(service: WrittenService) -> None:
    refusals = {"rate": 4, "calls": 3, "not_found": 100}
    service.reports = [join.Report(service=join.ServiceReport(refusals=refusals))]
    assert findings(service.target)["refusals"].what.startswith("7 requests were refused because they came too often")


def test_a_service_that_cannot_write_its_state_is_a_problem(service: WrittenService) -> None:
    service.reports = [join.Report(service=join.ServiceReport(role="active", trouble="the disk is full"))]
    found = findings(service.target)["state"]
    assert found.level is Level.PROBLEM
    assert "the disk is full" in found.what


def test_a_service_that_started_with_an_old_copy_of_its_state_is_a_warning(service: WrittenService) -> None:
    service.reports = [join.Report(service=join.ServiceReport(role="active", past="leaf has been given more keys"))]
    found = findings(service.target)["state"]
    assert found.level is Level.WARNING
    assert "leaf has been given more keys" in found.what


def test_an_audit_log_that_cannot_be_written_is_a_problem_and_lines_lost_are_a_warning(service: WrittenService) -> None:
    for audit, level in (
        (join.AuditReport(trouble="the disk is full", lines_lost=7), Level.PROBLEM),
        (join.AuditReport(lines_lost=7), Level.WARNING),
    ):
        service.reports = [join.Report(service=join.ServiceReport(role="active", audit=audit))]
        found = findings(service.target)["audit"]
        assert found.level is level
        assert ("the audit log cannot be written: the disk is full" in found.what) == bool(audit.trouble)
    service.reports = [join.Report(service=join.ServiceReport(role="active"))]
    assert "audit" not in findings(service.target)


def test_a_standby_without_an_active_controller_is_a_problem(service: WrittenService) -> None:
    service.reports = [
        join.Report(
            switches=[ready(state="standby")],
            service=join.ServiceReport(role="standby", age_seconds=60, active_silent_seconds=7.5),
        )
    ]
    found = findings(service.target)
    assert set(found) == {"report", "standby"}
    assert found["report"].level is Level.PROBLEM
    assert "no active controller answers" in found["report"].what
    said = f"{service.target} stands by: up 1m00s, it has seen no life of the active controller for 7.5 s"
    assert said in found["report"].what
    assert found["standby"].level is Level.OK


def test_other_versions_are_a_warning(service: WrittenService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "software_version", lambda: "1.2.3")
    service.reports = [join.Report(service=join.ServiceReport(software_version="1.2.4"))]
    assert findings(service.target)["versions"].what == "the service is wiresum 1.2.4, this host has 1.2.3"
    service.reports = [join.Report(service=join.ServiceReport(software_version="1.2.3"))]
    assert "versions" not in findings(service.target)


def test_what_the_certificate_may_not_see_is_a_note(service: WrittenService) -> None:
    service.refusal = (grpc.StatusCode.PERMISSION_DENIED, "you are a worker")
    assert findings(service.target)["report"].level is Level.NOTE
    service.refusal = (grpc.StatusCode.INTERNAL, "the state is broken")
    assert findings(service.target)["report"].level is Level.PROBLEM
    assert "journalctl" in findings(service.target)["report"].advice
    ours = switch._no_report(ServiceError("its key is public", code="UNAUTHENTICATED"))
    assert (ours.what, ours.advice) == ("its key is public", ""), "no log there says anything"


def test_a_waiting_standby_is_healthy_and_one_that_failed_to_take_over_is_not(
    service: WrittenService,
) -> None:
    standby = WrittenService()
    standby.start()
    standby.reports = [
        join.Report(
            switches=[ready(state="standby")],
            service=join.ServiceReport(role="standby", age_seconds=60, active_silent_seconds=0.5),
        )
    ]
    service.reports = [join.Report(switches=[ready()], service=join.ServiceReport(role="active"))]
    found = findings(f"{service.target},{standby.target}")
    assert {finding.level for finding in found.values()} == {Level.OK}
    seen = "it has seen no life of the active controller for 0.5 s"
    assert found["standby"].what == f"{standby.target} stands by, up 1m00s, {seen}, and reaches 'rack1'"
    standby.reports[0].switches[0].trouble = "connection refused"
    found = findings(f"{service.target},{standby.target}")
    standby.stop()
    assert found["standby"].level is Level.WARNING
    assert "does not reach 'rack1' (connection refused)" in found["standby"].what
