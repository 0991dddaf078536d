from __future__ import annotations

import json
import re

import grpc
import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.cli.jobs import jobs
from wiresum.controller import JoinServer, Limits
from wiresum_lab.clocks.by_hand import ScriptedTiming
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.doubles.operator_service import WrittenService, example_report, racks_report
from wiresum_lab.processes import wait_until


def test_jobs_are_listed_in_a_table(service: WrittenService) -> None:
    service.reports = [example_report()]
    result = CliRunner().invoke(jobs, [], env={"WIRESUM_SWITCH": service.target})
    assert result.exit_code == 0, result.output
    header, *rows = (line.split() for line in result.output.splitlines()[:3])
    assert header == [
        "JOB", "NAME", "STATE", "WORKERS", "SWITCH", "SLOTS", "RESULTS", "RESENT", "DROPPED", "AGE", "TENANT", "CALLER",
    ]  # fmt: skip
    assert rows == [
        ["1", "night-run", "running", "2/2", "rack1", "0+256", "500", "2", "9", "3m05s", "-", "test", "at", "10.0.0.7"],
        ["-", "next", "queued", "4/4", "-", "-", "0", "0", "0", "0s", "-", "-"],
    ]
    assert result.output.splitlines()[3:] == [
        "next: job 'next' is number 1 of 1",
        "rack1, software, ready: 256 of 512 slots are free",
    ]


def test_an_empty_list_says_so_and_shows_what_is_wrong_with_a_switch(service: WrittenService) -> None:
    switch = join.SwitchReport(
        name="rack2", kind="bmv2", state="unreachable", trouble="connection refused", sums_wrong=2
    )
    service.reports = [join.Report(switches=[switch], service=join.ServiceReport(role="active"))]
    result = CliRunner().invoke(jobs, ["--switch", service.target])
    assert result.output.splitlines() == [
        "no jobs",
        "rack2, bmv2, unreachable (connection refused): 0 of 0 slots are free; its workers have had 2 wrong sums",
    ]


def test_what_is_scarcest_at_a_switch_and_what_tenants_may_have_is_shown(service: WrittenService) -> None:
    switch = join.SwitchReport(
        name="rack1",
        kind="bmv2",
        state="ready",
        slots_total=4096,
        slots_free=3968,
        room={"slots": 4096, "jobs": 255, "admit": 4096},
        room_taken={"slots": 128, "jobs": 8, "admit": 4000},
    )
    limits = {"jobs_max": 8, "slots_max": 2048, "waiting_jobs_max": 16}
    vision = join.TenantReport(name="vision", jobs=7, slots=112, waiting_jobs=2, **limits)
    taken = {"slots": 112, "jobs": 7, "admit": 1900}
    at_rack = join.TenantAtSwitch(switch_name="rack1", room={"slots": 2048, "admit": 2048}, room_taken=taken)
    vision.MergeFrom(join.TenantReport(switch_percent=50, switches=[at_rack]))
    nobody = join.TenantReport(jobs=1, waiting_jobs_max=256, switch_percent=100)
    service.reports = [join.Report(switches=[switch], tenants=[vision, nobody])]
    result = CliRunner().invoke(jobs, ["--switch", service.target])
    assert result.output.splitlines()[1:] == [
        "rack1, bmv2, ready: 3968 of 4096 slots are free, but only 96 of 4096 entries of table admit",
        "tenant vision: 7 of 8 jobs, 112 of 2048 slots, 50% of each switch (148 of 2048 entries of table admit free "
        "at rack1); 2 of 16 jobs form or wait",
        "without a tenant: 1 of any number of jobs, 0 of any number of slots; 0 of 256 jobs form or wait",
    ]


def test_state_that_is_old_or_cannot_be_written_is_reported(service: WrittenService) -> None:
    audit = join.AuditReport(trouble="audit.log: No space left on device")
    trouble = join.ServiceReport(role="active", trouble="the disk is full", past="an old copy", audit=audit)
    service.reports = [join.Report(service=trouble)]
    result = CliRunner().invoke(jobs, ["--switch", service.target])
    assert result.output.splitlines() == [
        "no jobs",
        "the service is in trouble: the disk is full; no job begins until that is repaired",
        "the service began with an old copy of its state: an old copy",
        "the audit log cannot be written: audit.log: No space left on device; the service goes on without it",
    ]


def test_records_set_aside_are_listed_with_the_reason_and_the_remedy(service: WrittenService) -> None:
    record = join.SetAsideRecord(name="night", switch_name="rack1", state="running", why="the disk\x1b[2J damaged it")
    service.reports = [join.Report(set_aside=[record])]
    result = CliRunner().invoke(jobs, ["--switch", service.target])
    said = result.output.splitlines()[-1]
    assert said.startswith("the record of job night, at rack1, is set aside: the disk")
    assert "\x1b" not in said
    assert "`wiresum jobs discard night` removes it" in said


def test_a_record_set_aside_is_removed_by_name(service: WrittenService) -> None:
    result = CliRunner().invoke(jobs, ["discard", "night", "--switch", service.target])
    assert (result.exit_code, result.output) == (0, "the record is removed\n")
    assert service.asked == [join.DiscardRecordRequest(job_name="night")]
    result = CliRunner().invoke(jobs, ["discard", "night", "--json", "--switch", service.target])
    assert json.loads(result.output) == {"records": 1}


def test_json_lists_jobs_with_every_counter(service: WrittenService) -> None:
    service.reports = [example_report()]
    listed = json.loads(CliRunner().invoke(jobs, ["--switch", service.target, "--json"]).output)
    assert listed["jobs"][0]["packets"] == {
        "admitted": 1000,
        "resent": 2,
        "duplicate": 3,
        "stale": 4,
        "out_of_lease": 5,
    }
    assert listed["switches"][0]["slots_free"] == 256
    assert listed["jobs"][0]["workers"][1]["peer"] == {
        "rank": 1,
        "host_name": "host1",
        "process_id": 101,
        "address": "10.0.0.1",
        "called_from": "",
        "certificate": "",
        "global_rank": None,
    }


def test_creating_a_job_prints_its_token_alone(service: WrittenService) -> None:
    arguments = ["create", "night", "--switch", service.target, "--workers", "8", "--slots", "512", "--priority", "-1"]
    result = CliRunner().invoke(jobs, [*arguments, "--tenant", "vision", "--on", "rack1", "--keep", "60"])
    assert (result.exit_code, result.output) == (0, "t0ken\n")
    (request,) = service.asked
    assert (request.job_name, request.world_size, request.slots, request.priority) == ("night", 8, 512, -1)
    assert (request.tenant, request.switch_name, request.keep_seconds) == ("vision", "rack1", 60)
    result = CliRunner().invoke(jobs, [*arguments, "--json"])
    assert json.loads(result.output) == {"job_token": "t0ken"}


def test_ending_a_job_passes_the_reason_on(service: WrittenService) -> None:
    result = CliRunner().invoke(jobs, ["end", "night", "--switch", service.target, "--reason", "because"])
    assert (result.exit_code, result.output) == (0, "job 'night' ends\n")
    assert [(request.job_name, request.reason) for request in service.asked] == [("night", "because")]


def test_draining_prints_how_many_jobs_are_left(service: WrittenService) -> None:
    drained = CliRunner().invoke(jobs, ["drain", "rack1", "--switch", service.target])
    assert drained.output == "it takes no new jobs; 3 still run there\n"
    resumed = CliRunner().invoke(jobs, ["resume", "--switch", service.target])
    assert resumed.output == "it takes new jobs\n"
    assert [(request.switch_name, request.resume) for request in service.asked] == [("rack1", False), ("", True)]
    listed = CliRunner().invoke(jobs, ["drain", "--json", "--switch", service.target])
    assert json.loads(listed.output) == {"jobs": 3}


def test_a_job_over_racks_shows_its_root_and_the_number_of_switches_below(service: WrittenService) -> None:
    service.reports = [racks_report()]
    result = CliRunner().invoke(jobs, ["--switch", service.target])
    (row,) = (line.split() for line in result.output.splitlines() if " wide " in line)
    assert row[4:6] == ["spine+2", "0+64"]
    service.ended = [join.EndedJob(name="wide", outcome="completed", switch_name="spine", slots=64, switches=3)]
    listed = CliRunner().invoke(jobs, ["--ended", "--switch", service.target])
    assert " spine+2 " in listed.output


def test_a_switch_of_another_release_than_the_controller_is_said(service: WrittenService) -> None:
    older = example_report()
    older.service.program_version = older.switches[0].program_version = "2"
    older.switches[0].software_version = older.service.software_version
    service.reports = [older]
    assert "it has" not in CliRunner().invoke(jobs, ["--switch", service.target]).output
    older.switches[0].software_version, older.switches[0].program_version = "0.0.9", "1"
    listed = CliRunner().invoke(jobs, ["--switch", service.target]).output
    assert "free; it has wiresum 0.0.9, program 1, the controller wiresum 0.0.test, program 2" in listed
    older.switches[0].software_version = ""
    assert "it has program 1, the con" in CliRunner().invoke(jobs, ["--switch", service.target]).output


@pytest.mark.parametrize(("state", "left"), [("outdated", 0), ("unreachable", 0), ("draining", 1)])
def test_draining_does_not_wait_for_jobs_that_ended_at_a_switch_that_nobody_can_tell(
    service: WrittenService, state: str, left: int
) -> None:
    """Such a switch forgets them when it is started again, which is what the drain is for."""
    node = join.NodeReport(switch_name="rack1", phase="forgetting")
    ending = join.JobReport(name="a", state="ending", switch_name="rack1", slots=64, switches=[node])
    switches = [join.SwitchReport(name=name, state="ready") for name in ("rack2", "rack3")]
    switches.append(join.SwitchReport(name="rack1", state=state))
    service.reports = [join.Report(jobs=[ending], switches=switches)]
    arguments = ["drain", "rack1", "--wait", "--timeout", "10", "--json", "--switch", service.target]
    result = CliRunner().invoke(jobs, arguments, obj=ScriptedTiming())
    assert (result.exit_code, json.loads(result.output.splitlines()[0])["jobs"]) == (left, left)


def test_draining_can_wait_until_no_job_is_left_and_lists_those_that_run(
    service: WrittenService,
) -> None:
    def report(*names: str) -> join.Report:
        def holding(name: str, *switches: str) -> join.JobReport:
            nodes = [join.NodeReport(switch_name=switch, phase="holding") for switch in switches]
            nodes.append(join.NodeReport(switch_name="rack3", phase="forgotten"))
            return join.JobReport(name=name, switch_name=switches[0], slots=64, switches=nodes)

        elsewhere = holding("elsewhere", "rack2")
        running = [holding(name, "spine", "rack1", "rack2") for name in names]
        return join.Report(jobs=[elsewhere, *running, join.JobReport(name="waits")])

    service.reports = [report("a", "b"), report("a", "b"), report("b"), report()]
    result = CliRunner().invoke(jobs, ["drain", "rack1", "--wait", "--switch", service.target], obj=ScriptedTiming())
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            "it takes no new jobs; 2 still run there: a, b",
            "it takes no new jobs; 1 still run there: b",
            "it takes no new jobs, and none run",
        ],
    )
    service.reports = [report("a"), report()]
    result = CliRunner().invoke(
        jobs, ["drain", "rack1", "--wait", "--json", "--switch", service.target], obj=ScriptedTiming()
    )
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"jobs": 1, "names": ["a"]},
        {"jobs": 0, "names": []},
    ]
    pipes = [join.SwitchReport(name=name, part_of="tofino") for name in ("rack1", "rack2")]
    service.reports = [join.Report(jobs=report("a").jobs, switches=pipes), report()]
    result = CliRunner().invoke(jobs, ["drain", "tofino", "--wait", "--switch", service.target], obj=ScriptedTiming())
    assert result.output.startswith("it takes no new jobs; 2 still run there: elsewhere, a"), "at all its pipes"
    service.reports = [report("a")]
    result = CliRunner().invoke(
        jobs, ["drain", "rack1", "--wait", "--timeout", "10", "--switch", service.target], obj=ScriptedTiming()
    )
    assert result.exit_code == 1
    assert "1 jobs still run there after 10 s: wait for longer (--timeout)" in result.output


def test_draining_waits_on_and_says_why_while_only_a_standby_answers(
    service: WrittenService,
) -> None:
    there = [join.NodeReport(switch_name="rack1", phase="holding")]
    runs = join.Report(jobs=[join.JobReport(name="night", slots=64, switches=there)])
    standby = join.Report(service=join.ServiceReport(role="standby"))
    service.reports = [runs, standby, standby, runs, standby, join.Report()]
    run = [jobs, ["drain", "rack1", "--wait", "--switch", service.target]]
    result = CliRunner().invoke(*run, obj=ScriptedTiming())
    still, unknown, none = (
        "it takes no new jobs; 1 still run there: night",
        "which jobs run there is not known: no active controller answers",
        "it takes no new jobs, and none run",
    )
    lines = result.output.splitlines()
    assert [line.startswith(said) for line, said in zip(lines, [still, unknown, still, unknown, none], strict=True)]
    assert (result.exit_code, lines[-1]) == (0, none)
    service.reports = [standby]
    result = CliRunner().invoke(jobs, [*run[1], "--json", "--timeout", "10"], obj=ScriptedTiming())
    first, error = result.output.splitlines()
    assert json.loads(first) == {"jobs": None, "names": None, "error": json.loads(first)["error"]}
    assert (result.exit_code, "not known which jobs still run there after 10 s" in error) == (1, True)


def test_what_is_uncounted_is_null_in_json(service: WrittenService) -> None:
    report = example_report()
    report.jobs[0].uncounted = report.switches[0].uncounted = True
    service.reports = [report]
    listed = json.loads(CliRunner().invoke(jobs, ["--switch", service.target, "--json"]).output)
    night, rack1 = listed["jobs"][0], listed["switches"][0]
    assert (night["packets"], night["results"], rack1["stray_packets"]) == (None, None, None)
    assert [part["contributions"] for part in (*night["workers"], *night["switches"])] == [None] * 3
    assert listed["jobs"][1]["results"] == 0


def test_ended_jobs_are_listed_with_their_reasons(service: WrittenService) -> None:
    run = [jobs, ["--ended", "--switch", service.target]]
    assert CliRunner().invoke(*run).output == "no job has ended yet\n"
    lost = join.EndedJob(
        name="night",
        outcome="worker_lost",
        reason="rank 1 was\x1b[31m lost",
        world_size=4,
        tenant="vision",
        caller="test at 10.0.0.7",
        switch_name="rack1",
        created_at=1_000_000_000,
        ended_at=1_000_000_185,
    )
    service.ended = [lost, join.EndedJob(name="early", outcome="did_not_begin", ended_at=999_999_999)]
    header, night, early = CliRunner().invoke(*run).output.splitlines()
    assert header.split() == ["ENDED", "NAME", "OUTCOME", "WORKERS", "SWITCH", "AGE", "TENANT", "CALLER", "REASON"]
    assert re.search(
        r"night +worker lost +4 +rack1 +3m05s +vision +test at 10.0.0.7 +rank 1 was\ufffd\[31m lost$", night
    )
    assert re.search(r"early +did not begin ", early)
    listed = json.loads(CliRunner().invoke(jobs, ["--ended", "--json", "--switch", service.target]).output)
    assert [(job["name"], job["ended_at"]) for job in listed["jobs"]] == [
        ("night", 1_000_000_185),
        ("early", 999_999_999),
    ]


def test_several_jobs_are_ended_by_name_or_by_pattern(service: WrittenService) -> None:
    names = ("slurm-7.0", "slurm-7-ab", "slurm-71.0", "night", "over")
    states = dict.fromkeys(names, "running") | {"over": "ending"}
    service.reports = [join.Report(jobs=[join.JobReport(name=name, state=states[name]) for name in names])]
    result = CliRunner().invoke(jobs, ["end", "night", "slurm-7[.-]*", "ov*", "--switch", service.target])
    assert result.output.splitlines() == ["job 'night' ends", "job 'slurm-7.0' ends", "job 'slurm-7-ab' ends"]
    assert [request.job_name for request in service.asked[1:]] == ["night", "slurm-7.0", "slurm-7-ab"]
    result = CliRunner().invoke(jobs, ["end", "nobody-*", "--json", "--switch", service.target])
    assert (result.exit_code, json.loads(result.output)) == (0, {"names": []})


def test_options_of_the_group_apply_to_its_commands(service: WrittenService) -> None:
    elsewhere = {"WIRESUM_SWITCH": "127.0.0.1:1"}
    result = CliRunner().invoke(jobs, ["--switch", service.target, "end", "night"], env=elsewhere)
    assert (result.exit_code, len(service.asked)) == (0, 1), result.output
    result = CliRunner().invoke(jobs, ["--switch", "127.0.0.1:1", "end", "night", "--switch", service.target])
    assert (result.exit_code, len(service.asked)) == (0, 2), result.output


def test_a_refusal_is_shown_in_the_words_of_the_service(service: WrittenService) -> None:
    service.refusal = (grpc.StatusCode.NOT_FOUND, "there is no job 'nobody'")
    result = CliRunner().invoke(jobs, ["end", "nobody", "--switch", service.target])
    assert result.exit_code == 1
    assert result.output == f"Error: the service at {service.target} refuses: there is no job 'nobody'\n"


def test_a_missing_endpoint_is_an_error_that_says_what_to_do() -> None:
    result = CliRunner().invoke(jobs, ["--switch", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "`wiresum switch`" in result.output


def test_a_created_job_can_only_be_joined_with_its_token() -> None:
    server = JoinServer(RecordingDriver(), Limits(drain_ms_max=100))
    client = Client(server.start("127.0.0.1", 0))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(jobs, [*arguments, "--switch", client.target])
        assert result.exit_code == 0, result.output
        return result.output

    token = run("create", "night", "--workers", "1", "--slots", "64").strip()
    assert "created" in run()
    code, text = client.refusal(job_name="night")
    assert (code, "token" in text) == ("PERMISSION_DENIED", True)
    assert client.join(job_name="night", job_token=token).slots == 64
    assert "running" in run()
    assert run("drain") == "it takes no new jobs; 1 still run there\n"
    assert "draining" in run()
    assert run("resume") == "it takes new jobs\n"
    assert "draining" not in run()
    assert run("end", "night", "--reason", "because") == "job 'night' ends\n"
    wait_until(lambda: run().startswith("no jobs"), "the job is gone")
    assert "an operator ended it: because" in run("--ended")
    client.close()
    server.stop(0.2)
