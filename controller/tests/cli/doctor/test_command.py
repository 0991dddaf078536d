"""The doctor against the real service and the real switch, over loopback."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from wiresum.agent import causes
from wiresum.cli.doctor import doctor, path
from wiresum.cli.doctor.finding import Level
from wiresum.cli.service import Service
from wiresum.controller import JoinServer
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import RecordingDriver


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    device = SoftwareSwitch(port=0, slots=256)
    server = JoinServer(device)
    yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    server.stop(0.2)
    device.close()


def examine(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(doctor, ["--switch", target, "--size", "1", *arguments])


def test_a_real_sum_passes_and_leaves_no_job_behind(target: str) -> None:
    result = examine(target)
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if line in ("host", "switch", "path", "job")] == [
        "host",
        "switch",
        "path",
        "job",
    ]
    assert "2 workers summed 1 MiB through the switch, every bit right" in " ".join(result.output.split())
    assert "there are no jobs" in result.output
    with Service(target) as service:
        report = service.report()
    assert (len(report.jobs), report.switches[0].slots_free) == (0, 256)


def test_several_aggregators_are_each_checked_and_then_summed_through_together(target: str) -> None:
    device = SoftwareSwitch(port=0, slots=128)
    server = JoinServer(device)
    other = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    result = examine(f"{target}+{other}")
    server.stop(0.2)
    device.close()
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "2 workers summed 1 MiB through 2 aggregators, every bit right" in said
    assert f"to {target}" in said and f"to {other}" in said
    assert "256 of 256 slots" in said and "128 of 128 slots" in said
    assert said.count("SIMD") == 1, "findings about the host are given once"


def test_json_output_lists_every_finding(target: str) -> None:
    found = json.loads(examine(target, "--json", "--check", "path", "--check", "switch").output)
    assert found["passed"] is True
    assert {finding["subject"] for finding in found["findings"]} == {"path", "switch"}
    assert {finding["check"] for finding in found["findings"]} >= {"sums", "loss", "service", "state"}


def test_an_unreachable_service_sets_the_exit_status(target: str) -> None:
    result = examine("127.0.0.1:1", "--check", "switch", "--check", "job")
    assert result.exit_code == 1
    assert "nobody answers at 127.0.0.1:1" in result.output
    assert result.output.splitlines()[-1].startswith("2 problems, 0 warnings")


def test_data_ports_that_nobody_listens_at_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "GREETING_TIMEOUT_S", 0.5)
    server = JoinServer(RecordingDriver())  # a switch that admits jobs but never sums
    result = examine(f"127.0.0.1:{server.start('127.0.0.1', 0)}", "--check", "path")
    server.stop(0.2)
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "the switch's data ports (UDP 127.0.0.1:43488" in said
    assert "a firewall here or there must let UDP pass" in said


def test_an_unresolvable_name_and_a_foreign_local_address_are_problems_of_the_host() -> None:
    result = examine("no-such-host.invalid", "--check", "host")
    assert "cannot reach no-such-host.invalid:43487 from here" in " ".join(result.output.split())
    assert result.exit_code == 1
    assert examine("127.0.0.1:1", "--check", "host", "--address", "203.0.113.1").exit_code == 1
    assert examine("127.0.0.1:1", "--address", "x").exit_code == 2


def test_a_wrong_sum_is_a_problem(target: str) -> None:
    from wiresum.agent import AgentConfig

    name = f"wrong-{os.getpid()}"
    trials = path._try(AgentConfig(switch=target, slots=64), name, numbers=1000, seen=path.Seen())
    assert path._sums(trials).level is Level.OK
    assert [trial.stats.sharing for trial in trials] == [(), ()], "its packets pass the switch"
    wrong = [path.Trial(1, trial.numbers, trial.seconds, trial.lanes, trial.stats) for trial in trials]
    finding = path._sums(wrong)
    assert finding.level is Level.PROBLEM
    assert "2 of 2000 sums came back wrong" in finding.what
