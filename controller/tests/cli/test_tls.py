"""The commands against a real service with TLS: which certificates may ask, and what the doctor says of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from wiresum.cli.doctor import doctor, host, switch
from wiresum.cli.doctor.finding import Level
from wiresum.cli.jobs import jobs
from wiresum.cli.service import Service
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security.command import ca
from wiresum_lab.doubles.controller import RecordingDriver


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    result = CliRunner().invoke(ca, ["init", str(folder / "a")])
    assert result.exit_code == 0, result.output
    CliRunner().invoke(ca, ["init", str(folder / "another"), "--name", "another"])
    return folder


@pytest.fixture(scope="module")
def target(pki: Path) -> Iterator[str]:
    security = Security(SecurityConfig(tls=pki / "a" / "controller"))
    server = JoinServer(RecordingDriver(), security=security)
    yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    server.stop(0.2)
    security.close()


def findings(target: str, tls: Path) -> dict[str, dict[str, str]]:
    arguments = ["--switch", target, "--tls", str(tls), "--check", "switch", "--json"]
    result = CliRunner().invoke(doctor, arguments)
    return {finding["check"]: finding for finding in json.loads(result.output)["findings"]}


def test_an_operator_is_answered_and_a_worker_is_refused(pki: Path, target: str) -> None:
    asked = CliRunner().invoke(jobs, ["--switch", target, "--tls", str(pki / "a" / "operator")])
    assert (asked.exit_code, asked.output.splitlines()[0]) == (0, "no jobs")
    refused = CliRunner().invoke(jobs, [], env={"WIRESUM_SWITCH": target, "WIRESUM_TLS": str(pki / "a" / "worker")})
    assert refused.exit_code == 1
    assert "role operator" in refused.output


def test_without_a_certificate_the_error_says_what_is_missing(target: str) -> None:
    result = CliRunner().invoke(jobs, ["--switch", target])
    assert result.exit_code == 1
    assert "--tls or WIRESUM_TLS names the directory" in result.output
    elsewhere = CliRunner().invoke(jobs, ["--switch", "192.0.2.1:43487"])
    assert "no TLS directory was given" in elsewhere.output


def test_the_doctor_shows_when_certificates_expire(pki: Path, target: str) -> None:
    found = findings(target, pki / "a" / "operator")
    assert found["certificate"]["level"] == Level.OK.value
    assert f"the certificate of {target} is valid until" in found["certificate"]["what"]
    assert found["service"]["level"] == Level.OK.value


def test_the_doctor_reports_a_certificate_of_another_authority(pki: Path, target: str) -> None:
    found = findings(target, pki / "another" / "operator")
    assert found["tls"]["level"] == Level.PROBLEM.value
    assert "one authority" in found["tls"]["advice"]


def test_the_doctor_reports_a_path_that_is_not_a_tls_directory(pki: Path, target: str) -> None:
    found = findings(target, pki / "nowhere")
    assert found["certificate"]["level"] == Level.PROBLEM.value
    assert "nowhere is no directory" in found["certificate"]["what"]


def test_a_service_that_is_silent_is_not_blamed_on_certificates(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the connection, and nobody answers: the process is stopped, or large packets are lost."""
    monkeypatch.setattr(host, "doubt_about_frames", lambda interface: f"{interface} is a veth")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        ours, found = switch.certificates(Service(at, tls=str(pki / "a" / "operator")), [at], s_max=0.1)
    assert (ours.check, found.check) == ("certificate", "tls")
    assert "takes a connection, and does not answer to TLS" in found.what
    assert found.advice.startswith("lo is a veth. If there is none: is its process stopped")
    assert "ca.crt" not in found.advice


@pytest.mark.parametrize(("error", "doubted"), [(TimeoutError("timed out"), True), (ConnectionRefusedError(), False)])
def test_frames_are_doubted_where_nothing_answers_to_a_connection(
    error: OSError, doubted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "doubt_about_frames", lambda interface: f"{interface} is a veth")
    advice = switch._unreachable("127.0.0.1:43487", error, others=False).advice
    assert advice.startswith("lo is a veth. If there is none: is `wiresum switch`") == doubted
    assert "does a firewall let TCP pass" in advice
