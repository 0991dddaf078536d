"""Revoked certificates: the list, who enforces it, and what happens to jobs of a revoked holder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum.controller.security.authority import Authority, AuthorityError, Holder, show
from wiresum.controller.security.command import ca
from wiresum.controller.security.names import Claims
from wiresum.controller.security.revocation import Revocations
from wiresum.join.credentials import CredentialsError
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, refusal_of
from wiresum_lab.processes import PATIENCE_S, wait_until


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """An authority, a controller, an operator, and two workers."""
    authority = Authority.create(tmp_path / "pki", "test")
    for name, role in (("controller", "controller"), ("operator", "operator"), ("good", "worker"), ("bad", "worker")):
        addresses = ("127.0.0.1",) if role == "controller" else ()
        authority.issue(Holder(name, Claims(frozenset({role})), addresses), tmp_path / "pki" / name, 10)
    return tmp_path / "pki"


def revoke(pki: Path, *what: str, status: int = 0) -> str:
    result = CliRunner().invoke(ca, ["revoke", "--ca", str(pki), *what])
    assert result.exit_code == status, result.output
    return result.output


def serial(directory: Path) -> str:
    return show(directory / "tls.crt").serial


def put(pki: Path) -> None:
    """Replaces the list beside a service's certificate atomically, as an operator does."""
    shutil.copy(pki / "ca.crl", pki / "controller" / ".new")
    (pki / "controller" / ".new").rename(pki / "controller" / "ca.crl")


@pytest.mark.parametrize("by", ["directory", "name", "serial"])
def test_a_certificate_can_be_revoked_by_directory_name_or_serial(pki: Path, by: str) -> None:
    what = {"directory": str(pki / "bad"), "name": "bad", "serial": serial(pki / "bad")}[by]
    said = revoke(pki, what)
    assert f"'bad', serial {serial(pki / 'bad')}" in said
    assert "copy it into the TLS directory of each controller and switch" in said
    put(pki)
    revoked = Revocations(pki / "controller")
    assert revoked.has(serial(pki / "bad"))
    assert not revoked.has(serial(pki / "good"))


def test_the_list_is_cumulative_and_contains_all_certificates_of_a_holder(pki: Path) -> None:
    before = serial(pki / "bad")
    Authority.open(pki).renew(pki / "bad")
    revoke(pki, "bad")
    assert "lists 3 now" in revoke(pki, str(pki / "good"))
    put(pki)
    revoked = Revocations(pki / "controller")
    assert all(revoked.has(one) for one in (before, serial(pki / "bad"), serial(pki / "good")))


def test_a_certificate_of_another_authority_cannot_be_revoked(pki: Path, tmp_path: Path) -> None:
    assert "has signed nothing for 'nobody'" in revoke(pki, "nobody", status=1)
    Authority.create(tmp_path / "other", "other").issue(
        Holder("w", Claims(frozenset({"worker"}))), tmp_path / "foreign", 1
    )
    assert "was signed by 'other'" in revoke(pki, str(tmp_path / "foreign"), status=1)
    assert not (pki / "ca.crl").exists()


def test_a_service_certificate_is_issued_with_the_list(pki: Path) -> None:
    revoke(pki, "bad")
    authority = Authority.open(pki)
    authority.renew(pki / "controller")
    authority.renew(pki / "good")
    assert Revocations(pki / "controller").has(serial(pki / "bad"))
    assert not (pki / "good" / "ca.crl").exists()


def test_an_invalid_list_is_refused_at_the_start_and_ignored_later(
    pki: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    revoke(pki, "bad")
    put(pki)
    revoked = Revocations(pki / "controller")
    assert revoked.refresh(), "the first caller is told that it is new"
    assert not revoked.refresh()
    other = Authority.create(tmp_path / "other", "test")
    other.issue(Holder("w", Claims(frozenset({"worker"}))), tmp_path / "foreign", 1)
    other.revoke(other.issued("w"))
    for content in (b"nonsense", (tmp_path / "other" / "ca.crl").read_bytes()):
        (pki / "controller" / "ca.crl").unlink()
        (pki / "controller" / "ca.crl").write_bytes(content)
        assert not revoked.refresh()
        assert revoked.has(serial(pki / "bad"))
        assert "in use stays" in caplog.text
        caplog.clear()
        with pytest.raises(CredentialsError, match=r"ca\.crl"):
            Revocations(pki / "controller")
    (pki / "ca.crl").write_bytes((tmp_path / "other" / "ca.crl").read_bytes())
    with pytest.raises(AuthorityError, match="another authority's"):
        Authority.open(pki).revoke([])


@pytest.fixture
def server(pki: Path, tmp_path: Path) -> Iterator[JoinServer]:
    security = Security(SecurityConfig(tls=pki / "controller", audit=tmp_path / "audit.log"))
    server = JoinServer(RecordingDriver(), security=security)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.1)
    security.close()


@pytest.fixture
def connect(server: JoinServer, pki: Path) -> Iterator[Callable[[str], Client]]:
    clients: list[Client] = []

    def connect_one(name: str) -> Client:
        clients.append(Client(server.port, tls=pki / name))
        return clients[-1]

    yield connect_one
    for client in clients:
        client.close()


def test_a_revoked_worker_is_removed_from_its_jobs_and_cannot_join_again(
    connect: Callable[[str], Client], pki: Path, tmp_path: Path
) -> None:
    good, bad = connect("good"), connect("bad")
    kept = Attendance(good, good.join(job_name="kept"))
    lost = Attendance(bad, bad.join(job_name="lost"))
    revoke(pki, "bad")
    put(pki)
    ended = lost.wait_ended()
    assert (ended.cause, "its certificate was revoked" in ended.reason) == (join.JobEnded.WORKER_LOST, True)
    code, text = bad.refusal(job_name="again")
    assert (code, "was revoked: ask whoever issued it for another" in text) == ("UNAUTHENTICATED", True)
    with pytest.raises(grpc.RpcError) as caught:
        list(connect("bad").stub.Attend(iter([join.Heartbeat(member=kept.member)]), timeout=PATIENCE_S))
    assert refusal_of(caught.value)[0] == "UNAUTHENTICATED", "neither a new connection nor another's token helps"
    pulses = kept.pulses
    wait_until(lambda: kept.pulses > pulses or kept.ended is not None, "the other job's heartbeats are answered")
    assert kept.ended is None
    for attendance in (kept, lost):
        attendance.hang_up()
    operator = connect("operator")
    assert operator.report().service.refusals["revoked"] == 2
    assert '"outcome": "revoked"' in (tmp_path / "audit.log").read_text()


def test_a_tenant_sees_its_own_ended_jobs_and_an_operator_sees_all(connect: Callable[[str], Client]) -> None:
    for name in ("good", "bad"):
        client = connect(name)
        client.leave(client.join(job_name=f"{name}-job"))

    def ended(name: str) -> list[tuple[str, str, str]]:
        listed = connect(name).operator.ListEnded(join.ListEndedRequest(), timeout=PATIENCE_S)
        return [(job.name, job.tenant, job.outcome) for job in listed.jobs]

    assert ended("good") == [("good-job", "good", "completed")]
    assert ended("bad") == [("bad-job", "bad", "completed")]
    assert sorted(ended("operator")) == [("bad-job", "bad", "completed"), ("good-job", "good", "completed")]
