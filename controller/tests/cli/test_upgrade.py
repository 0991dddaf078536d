from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.cli import upgrade as command
from wiresum.cli.upgrade import Plan, plan, upgrade
from wiresum.cli.versions import installed, of_service
from wiresum_lab.doubles.operator_service import WrittenService

SAID = {
    "software_version": "0.0.8", "join_protocol": 5, "state_schema": 4, "program_version": "1", "program_digest": "a11",
}  # fmt: skip


def report(role: str = "active", *switches: join.SwitchReport, jobs: int = 1, **said: object) -> join.Report:
    return join.Report(
        service=join.ServiceReport(role=role, **SAID | said),  # type: ignore[arg-type]
        switches=switches,
        jobs=[join.JobReport(name=f"job {n}") for n in range(jobs)],
    )


def software(name: str, jobs: int = 0, **fields: str) -> join.SwitchReport:
    given = {"kind": "software", "state": "ready", "software_version": "0.0.8", "program_version": "1"} | fields
    return join.SwitchReport(name=name, jobs=jobs, **given)  # type: ignore[arg-type]


def ours(**changed: object) -> dict[str, str]:
    return of_service(report(**changed).service)  # type: ignore[arg-type]


def first_words(found: Plan) -> list[str]:
    return [step.partition(":")[0] for step in found.steps]


PROGRAM = {"software_version": "0.9.0", "program_version": "2", "program_digest": "b0b"}


def test_with_another_program_the_emptiest_switch_goes_before_the_controllers() -> None:
    reports = {"a:1": report("standby"), "b:1": report("active", software("left", 2), software("right", 1))}
    found = plan(reports, ours(**PROGRAM))
    assert first_words(found) == ["right", "the standby at a", "the active controller at b", "right", "left"]
    assert "wiresum jobs drain right --wait" in found.steps[0] and "leave it drained" in found.steps[0]
    assert (found.problems, found.lost) == ([], [])


def test_with_the_same_program_the_controllers_go_first() -> None:
    reports = {"b:1": report("active", software("left"), software("right")), "a:1": report("standby")}
    found = plan(reports, ours(software_version="0.9.0"))
    assert first_words(found) == ["the standby at a", "the active controller at b", "left", "right"]


def test_what_is_of_this_release_is_not_upgraded_again() -> None:
    left = software("left", software_version="0.9.0", program_version="2")
    right = software("right", state="outdated", trouble="it has switch program 1")
    new = report("active", left, right, **PROGRAM)
    assert first_words(plan({"b:1": new, "a:1": report("standby")}, ours(**PROGRAM))) == ["the standby at a", "right"]
    done = plan({"b:1": report("active", left, **PROGRAM)}, ours(**PROGRAM))
    assert (done.steps, done.problems, done.lost) == ([], [], [])


def test_without_another_controller_or_switch_it_says_who_waits() -> None:
    found = plan({"b:1": report("active", software("only", 3))}, ours(**PROGRAM))
    assert first_words(found) == ["the controller at b", "only"]
    assert "joins wait meanwhile" in found.steps[0]
    assert "no other switch than only" in found.lost[0] and found.problems == []


def test_a_switch_with_its_own_service_is_one_step() -> None:
    found = plan({"b:1": report("active", software("switch", program_version=""))}, ours(**PROGRAM))
    (step,) = found.steps
    assert "within 30 s, so that its jobs go on" in step


def test_switches_that_are_loaded_with_the_program_say_what_becomes_of_their_jobs() -> None:
    chips = [join.SwitchReport(name=f"chip.{n}", kind="tofino", state="ready", part_of="chip") for n in range(2)]
    bmv2 = join.SwitchReport(name="leaf", kind="bmv2", state="ready", program_version="1")
    assert plan({"b:1": report("active", bmv2, *chips)}, ours(software_version="0.9.0")).lost == []
    leaf, chip = plan({"b:1": report("active", bmv2, *chips)}, ours(**PROGRAM)).lost
    assert leaf.startswith("the upgraded controller loads leaf anew")
    assert chip.startswith("chip needs the program of this release, compiled")


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ({"join_protocol": 4}, "1 jobs run or wait, and the join protocol is 4 there, and 5 here"),
        ({"state_schema": 3}, "1 jobs run or wait, and the state schema is 3 there, and 4 here"),
        ({"trouble": "the disk is full"}, "the active controller is in trouble: the disk is full"),
    ],
)
def test_what_forbids_it_is_said(theirs: dict[str, object], why: str) -> None:
    (problem,) = plan({"b:1": report(**theirs)}, ours()).problems  # type: ignore[arg-type]
    assert why in problem


@pytest.mark.parametrize("theirs", [{"join_protocol": 4}, {"state_schema": 3}])
def test_without_jobs_there_are_none_to_lose(theirs: dict[str, object]) -> None:
    assert plan({"b:1": report(jobs=0, **theirs)}, ours()).problems == []  # type: ignore[arg-type]


def test_what_nobody_can_say_is_no_yes() -> None:
    lost = software("left", state="unreachable", trouble="no answer")
    assert plan({"b:1": report("active", lost)}, ours()).problems == ["left is unreachable: no answer"]
    assert "none of these serves" in plan({"a:1": report("standby")}, ours()).problems[0]
    assert "2 of these serves" in plan({"a:1": report(), "b:1": report()}, ours()).problems[0]
    assert plan({"a:1": "it does not answer", "b:1": report()}, ours()).problems == ["it does not answer"]


def test_the_command_asks_each_controller_and_says_it_by_its_status(
    service: WrittenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = WrittenService()
    other.start()
    service.reports, other.reports = [report("active", software("left"))], [report("standby")]
    arguments = ["--check", "--switch", f"{service.target},{other.target}"]
    monkeypatch.setattr(command, "installed", lambda: ours(**PROGRAM))
    done = CliRunner().invoke(upgrade, arguments)
    assert done.exit_code == 0, done.output
    assert f"{other.target}, standby: wiresum 0.0.8, join protocol 5, state schema 4, switch program 1" in done.output
    assert "left, software, ready: wiresum 0.0.8, program 1" in done.output
    assert "1. the standby at" in done.output
    other.stop()
    done = CliRunner().invoke(upgrade, [*arguments, "--json"])
    assert done.exit_code == 1
    (problem,) = json.loads(done.output)["problems"]
    assert other.target in problem
    said = CliRunner().invoke(upgrade, arguments).output
    assert "Do not upgrade it" in said and "cannot be upgraded" not in said, "nobody knows whether it can"
    assert CliRunner().invoke(upgrade, arguments[1:]).exit_code == 2, "it only checks"


def test_this_installation_and_a_report_are_compared_by_the_same_names() -> None:
    assert installed().keys() == of_service(join.ServiceReport()).keys()
    assert all(installed().values())
