from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess

import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.cli.top import top
from wiresum_lab.clocks.by_hand import ScriptedTiming
from wiresum_lab.doubles.operator_service import WrittenService, example_report, later, racks_report
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until, wiresum


def shown_for(looks: int, service: WrittenService, *arguments: str) -> str:
    """What it shows until it has looked so often, and Ctrl-C comes."""
    left = iter(range(1, looks))
    timing = ScriptedTiming(lambda: next(left, None) or timing.stop())
    result = CliRunner().invoke(top, ["--switch", service.target, *arguments], obj=timing)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_job_at_several_aggregators_has_one_line_and_workers_for_each(service: WrittenService) -> None:
    other = WrittenService()
    other.start()
    for written in (service, other):
        written.reports = [example_report(), later(example_report(), packets=100, results=50)]
    arguments = ["--switch", f"{service.target}+{other.target}", "--once", "--interval", "0.1", "--job", "night-run"]
    output = CliRunner().invoke(top, arguments).output
    other.stop()
    for written in (service, other):
        assert output.count(f"workers of 'night-run' at rack1 ({written.target})") == 1
        (line,) = [line for line in output.splitlines() if line.startswith("night-run") and written.target in line]
        assert "running" in line
    assert output.count("host0") == 2


def test_once_prints_the_rates_of_one_interval(service: WrittenService) -> None:
    service.reports = [example_report(), later(example_report(), packets=100, results=50)]
    output = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"]).output
    assert "active, wiresum 0.0.test, up 2h05m   jobs: 1 queued, 1 running" in output
    lines = [line.split() for line in output.splitlines()]
    night, following = (line for line in lines if line[:1] in (["night-run"], ["next"]))
    assert night[:4] == ["night-run", "running", "2/2", "rack1"]
    assert 0 < int(night[5].replace(",", "")) <= 1000
    assert following == ["next", "queued", "4/4", "-", "-", "0", "0", "0.000", "0", "0", "0", "0s"]
    assert "next: job 'next' is number 1 of 1" in output


def test_each_switch_shows_its_versions(service: WrittenService) -> None:
    report = example_report()
    report.switches[0].software_version, report.switches[0].program_version = "0.0.9", "1"
    service.reports = [report]
    output = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"]).output
    assert "wiresum 0.0.9, program 1" in output


def test_each_switch_shows_what_jobs_have_most_of(service: WrittenService) -> None:
    for taken, shown in (({"slots": 256, "jobs": 1, "admit": 2}, "slots 50%"), ({"admit": 4096}, "admit 100%")):
        report = example_report()
        report.switches[0].room_taken.update(taken)
        service.reports = [report]
        output = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"]).output
        heading, row = (line for line in output.splitlines() if line.startswith(("SWITCH", "rack1")))
        assert row[heading.index("MOST TAKEN") :].startswith(f"{shown} ")


def test_wrong_sums_are_shown_at_the_switch_and_at_the_worker(service: WrittenService) -> None:
    report = example_report()
    report.switches[0].sums_wrong, report.jobs[0].workers[1].sums_wrong = 31, 17
    service.reports = [report]
    command = ["--switch", service.target, "--once", "--interval", "0.1", "--job", "night-run"]
    lines = CliRunner().invoke(top, command).output.splitlines()
    (rack1,) = (line for line in lines if line.startswith("rack1"))
    assert " 31 " in rack1
    assert [line.split()[-1] for line in lines if "host" in line] == ["0", "17"]


def test_an_answer_that_takes_longer_than_the_interval_is_waited_for(service: WrittenService) -> None:
    service.reports = [example_report()]
    CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"])
    assert min(service.s_left) > 0.1


def test_jobs_are_sorted_by_the_given_column(service: WrittenService) -> None:
    service.reports = [example_report()]
    names = {}
    for sort in ("slots", "name"):
        output = (
            CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1", "--sort", sort]).output
        )
        names[sort] = [line.split()[0] for line in output.splitlines() if line.startswith(("night", "next "))]
    assert names == {"slots": ["night-run", "next"], "name": ["next", "night-run"]}


def test_the_workers_of_a_job_show_which_one_lags(service: WrittenService) -> None:
    service.reports = [example_report(), later(example_report(), packets=100, results=50)]
    result = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1", "--job", "night-run"])
    rows = [line.split() for line in result.output.splitlines() if "host" in line]
    assert [(row[1], row[4], row[6], row[8], row[10]) for row in rows] == [
        ("host0", "rack1", "40", "550", "0"),
        ("host1", "rack1", "3040", "510", "40"),
    ]
    assert "switches of" not in result.output, "the job has one worker"
    other = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1", "--job", "nobody"])
    assert "there is no job 'nobody'" in other.output
    assert other.exit_code == 1


def test_switches_of_a_tree_show_whose_sums_lag_at_their_parent(service: WrittenService) -> None:
    service.reports = [racks_report()]
    result = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1", "--job", "wide"])
    assert " spine+2 " in result.output
    _, _, tree = result.output.partition("switches of 'wide'")
    rows = [line.split() for line in tree.splitlines() if line.startswith(("spine", "leaf"))]
    assert [(row[0], row[1], row[2], row[7], row[8]) for row in rows] == [
        ("spine", "-", "0", "-", "-"),
        ("leaf1", "spine", "1", "507", "0"),
        ("leaf2", "spine", "1", "500", "7"),
    ]


def test_what_a_switch_does_not_say_is_a_question_mark(service: WrittenService) -> None:
    report = racks_report()
    report.jobs[0].uncounted = True
    spine, leaf1, _ = report.jobs[0].switches
    spine.uncounted = leaf1.uncounted = True
    service.reports = [report]
    result = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1", "--job", "wide"])
    workers, _, tree = result.output.partition("switches of 'wide'")
    rows = [line.split() for line in workers.splitlines() if "host" in line]
    assert [(row[4], row[8], row[10]) for row in rows] == [("leaf1", "?", "?"), ("leaf2", "507", "?")]
    rows = [line.split() for line in tree.splitlines() if line.startswith(("spine", "leaf"))]
    assert [(row[0], row[5], row[7], row[8]) for row in rows] == [
        ("spine", "?", "-", "-"),
        ("leaf1", "?", "?", "-"),
        ("leaf2", "500", "?", "-"),
    ]


def test_only_a_standby_is_trouble_and_no_screen_without_jobs(service: WrittenService) -> None:
    service.reports = [join.Report(service=join.ServiceReport(role="standby"))]
    result = CliRunner().invoke(top, ["--switch", service.target, "--once"])
    assert (result.exit_code, "no active controller answers" in result.output) == (1, True)
    assert "no active controller answers" in json.loads(shown_for(1, service, "--json"))["error"]


def test_json_has_every_counter_and_the_rates(service: WrittenService) -> None:
    service.reports = [example_report(), later(example_report(), packets=100, results=50)]
    result = CliRunner().invoke(top, ["--switch", service.target, "--once", "--json", "--interval", "0.2"])
    found = json.loads(result.output)
    night, following = found["jobs"]
    assert night["packets"]["admitted"] == 1100
    assert night["rates"]["results"] == pytest.approx(50 / found["interval_s"])
    assert following["rates"]["packets"] == 0.0
    assert found["switches"][0]["stray_rate"] == 0.0


def test_an_unreachable_service_is_an_error_only_with_once() -> None:
    result = CliRunner().invoke(top, ["--switch", "127.0.0.1:1", "--once"])
    assert result.exit_code == 1
    assert "`wiresum switch`" in result.output


def test_a_service_that_goes_away_is_waited_for(service: WrittenService) -> None:
    service.reports = [example_report()]
    steps = iter([service.stop, service.start])

    def each_time() -> None:
        if step := next(steps, None):
            step()
        elif len(service.asked) > 1:
            timing.stop()

    timing = ScriptedTiming(each_time)
    result = CliRunner().invoke(top, ["--switch", service.target, "--json"], obj=timing)
    before, lost, *_, back = map(json.loads, result.output.splitlines())
    assert before["jobs"]
    assert "cannot ask the service" in lost["error"]
    assert back["jobs"]
    assert back["interval_s"] is None, "rates over the time without it would mean nothing"


def test_a_pipe_gets_one_screen_after_another_without_escape_sequences(service: WrittenService) -> None:
    service.reports = [example_report()]
    shown = shown_for(2, service)
    assert sum(line.startswith("active") for line in shown.splitlines()) == 2
    assert "\x1b" not in shown


def test_a_terminal_is_redrawn_until_control_c(service: WrittenService) -> None:
    report = example_report()
    report.jobs[0].name = "[red]\x1b[2Jnight"
    service.reports = [report]
    ours, theirs = pty.openpty()
    waiting = select.poll()  # select() takes no descriptor above 1023, and a long test run has opened more
    waiting.register(ours, select.POLLIN)
    process = subprocess.Popen(
        wiresum("top", "--switch", service.target),
        stdin=theirs,
        stdout=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
    )
    os.close(theirs)
    shown = b""

    def read(until: bytes) -> bool:
        nonlocal shown
        with contextlib.suppress(OSError):  # it has ended
            shown += os.read(ours, 65536) if waiting.poll(100) else b""
        return until in shown

    try:
        wait_until(lambda: read(b"[red]\xef\xbf\xbd[2Jnight"), "it shows the job")
        assert b"\x1b[?1049h" in shown, "it uses the alternate screen"
        process.send_signal(signal.SIGINT)
        wait_until(lambda: read(b"\x1b[?1049l"), "the terminal is restored")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
