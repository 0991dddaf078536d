from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from wiresum.cli.top import top
from wiresum_lab.doubles.operator_service import WrittenService, example_report, later, racks_report
from wiresum_lab.processes import PATIENCE_S, wiresum


@contextlib.contextmanager
def running(*arguments: str, terminal: int | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        wiresum("top", "--interval", "0.1", *arguments),
        stdin=terminal,
        stdout=subprocess.PIPE if terminal is None else terminal,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines_until(process: subprocess.Popen[str], found: Callable[[str], bool]) -> list[str]:
    assert process.stdout is not None
    give_up = threading.Timer(PATIENCE_S, process.kill)
    give_up.start()
    seen = []
    for line in process.stdout:
        seen.append(line)
        if found(line):
            give_up.cancel()
            return seen
    raise AssertionError(f"it did not print that: {seen}")


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
    assert "next: it waits for " in output


def test_each_switch_shows_what_jobs_have_most_of(service: WrittenService) -> None:
    for taken, shown in (({"slots": 256, "jobs": 1, "admit": 2}, "slots 50%"), ({"admit": 4096}, "admit 100%")):
        report = example_report()
        report.switches[0].room_taken.update(taken)
        service.reports = [report]
        output = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"]).output
        heading, row = (line for line in output.splitlines() if line.startswith(("SWITCH", "rack1")))
        assert row[heading.index("MOST TAKEN") :].startswith(f"{shown} ")


def test_an_answer_that_takes_longer_than_the_interval_is_waited_for(service: WrittenService) -> None:
    service.reports, service.answers_after_s = [example_report()], 1.5
    result = CliRunner().invoke(top, ["--switch", service.target, "--once", "--interval", "0.1"])
    assert result.exit_code == 0, result.output


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
    with running("--switch", service.target, "--json") as process:
        lines_until(process, lambda line: bool(json.loads(line).get("jobs")))
        service.stop()
        lost = lines_until(process, lambda line: "error" in json.loads(line))[-1]
        assert "cannot ask the service" in json.loads(lost)["error"]
        service.start()
        back = lines_until(process, lambda line: "jobs" in json.loads(line))[-1]
        assert json.loads(back)["interval_s"] is None
        assert process.poll() is None


def test_a_pipe_gets_one_screen_after_another_without_escape_sequences(service: WrittenService) -> None:
    service.reports = [example_report()]
    with running("--switch", service.target) as process:
        lines = lines_until(process, lambda line: line.startswith("active"))
        lines += lines_until(process, lambda line: line.startswith("active"))
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_is_redrawn_until_control_c(service: WrittenService) -> None:
    report = example_report()
    report.jobs[0].name = "[red]\x1b[2Jnight"
    service.reports = [report]
    ours, theirs = pty.openpty()
    waiting = select.poll()  # select() takes no descriptor above 1023, and a long test run has opened more
    waiting.register(ours, select.POLLIN)
    with running("--switch", service.target, terminal=theirs) as process:
        os.close(theirs)
        give_up_at = time.monotonic() + PATIENCE_S
        shown = b""
        while b"[red]\xef\xbf\xbd[2Jnight" not in shown:
            assert time.monotonic() < give_up_at, shown
            if waiting.poll(100):
                shown += os.read(ours, 65536)
        assert b"\x1b[?1049h" in shown, "it uses the alternate screen"
        process.send_signal(2)
        while True:
            with contextlib.suppress(OSError):
                if data := os.read(ours, 65536):
                    shown += data
                    continue
            break
        assert process.wait(PATIENCE_S) == 0
    os.close(ours)
    assert b"\x1b[?1049l" in shown, "the terminal is restored"
