"""Revoked certificates: the list, who enforces it, and what happens to jobs of a revoked holder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum import join
from wiresum.controller import JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security, front, revocation
from wiresum.controller.security.authority import Authority, AuthorityError, Holder, show
from wiresum.controller.security.command import ca
from wiresum.controller.security.names import Claims
from wiresum.controller.security.revocation import Revocations
from wiresum.controller.security.shares import CERTIFICATE, Party
from wiresum.controller.service.standby_server import StandbyServer
from wiresum.join.credentials import CredentialsError
from wiresum_lab import REPOSITORY
from wiresum_lab.clocks.for_asyncio import VirtualLoop, in_virtual_time
from wiresum_lab.doubles.controller import Attendance, Client, RecordingDriver, join_request, refusal_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


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


def test_a_list_that_could_not_be_read_is_read_again(pki: Path, caplog: pytest.LogCaptureFixture) -> None:
    revoked = Revocations(pki / "controller")
    authority = pki / "controller" / "ca.crt"
    authority.rename(hidden := authority.with_name("hidden"))
    revoke(pki, "bad")
    put(pki)
    assert [revoked.refresh() for _ in range(3)] == [False] * 3
    assert caplog.text.count("in use stays: cannot read") == 1
    hidden.rename(authority)
    assert revoked.refresh()
    assert revoked.has(serial(pki / "bad"))
    assert not revoked.refresh()


def test_what_a_watcher_is_told_and_ends(pki: Path) -> None:
    """Both for the list that was there before, and for each that is new; an error does not keep it from the next."""
    revoke(pki, "good")
    put(pki)
    revoked, seen = Revocations(pki / "controller"), list[tuple[str, bool, float]]()

    async def run(loop: VirtualLoop) -> None:
        began_at = loop.time()

        def note(what: str) -> None:
            seen.append((what, revoked.has(serial(pki / "bad")), round(loop.time() - began_at, 1)))

        def tell() -> None:
            note("told")
            if len(seen) == 4:
                raise ZeroDivisionError

        watching = asyncio.create_task(revoked.watch(tell, lambda: note("ended")))
        await asyncio.sleep(2.0)
        revoke(pki, "bad")
        put(pki)
        await asyncio.sleep(10.0)
        watching.cancel()

    in_virtual_time(run)
    assert seen == [
        ("told", False, 0.0),
        ("ended", False, 0.5),
        ("told", False, 0.5),
        ("told", True, 2.5),
        ("told", True, 3.5),
        ("ended", True, 4.0),
        ("told", True, 4.0),
    ]


def test_what_is_revoked_ends_within_the_two_seconds_that_the_page_promises() -> None:
    assert "Within two seconds" in (REPOSITORY / "docs" / "security.md").read_text()
    assert revocation.LOOK_S + revocation.TELL_S + front.LAST_WORDS_S < 2.0


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
    wait_until(lambda: '"outcome": "revoked"' in (tmp_path / "audit.log").read_text(), "the audit log says so")


def test_all_that_a_revoked_certificate_holds_ends(
    server: JoinServer, connect: Callable[[str], Client], pki: Path
) -> None:
    """A Join that waits, a stream of a job, a call that is no worker's, and a connection without a call."""
    good, bad, waiting, watching, idle = map(connect, ("good", "bad", "bad", "bad", "bad"))
    kept = Attendance(good, good.join(job_name="kept"))
    lost = Attendance(bad, bad.join(job_name="lost"))
    asked = waiting.stub.Join(join_request(job_name="forms", world_size=2), timeout=PATIENCE_S)
    idle.stub.Diagnose.future(join.Member(), timeout=PATIENCE_S).exception()
    watched = health_pb2_grpc.HealthStub(watching.channel).Watch(health_pb2.HealthCheckRequest())
    next(watched)
    shares = server._security.front._shares
    wait_until(lambda: shares.held(Party(CERTIFICATE, "bad")) == 4, "each has a connection")
    revoke(pki, "bad")
    put(pki)
    assert "its certificate was revoked" in lost.wait_ended().reason
    with pytest.raises(grpc.RpcError) as caught:
        list(asked)
    assert (caught.value.code().name, "its certificate was revoked" in caught.value.details()) == ("ABORTED", True)
    with pytest.raises(grpc.RpcError) as caught:
        next(watched)
    assert (caught.value.code().name, "was revoked: ask" in caught.value.details()) == ("UNAUTHENTICATED", True)
    wait_until(lambda: shares.held(Party(CERTIFICATE, "bad")) == 0, "its connections end")
    assert {who for who in shares._held if who.kind == CERTIFICATE} == {Party(CERTIFICATE, "good")}
    pulses = kept.pulses
    wait_until(lambda: kept.pulses > pulses or kept.ended is not None, "the other job's heartbeats are answered")
    assert kept.ended is None
    for attendance in (kept, lost):
        attendance.hang_up()


def test_a_standby_ends_what_a_revoked_certificate_holds(pki: Path) -> None:
    security = Security(SecurityConfig(tls=pki / "controller"))
    server = StandbyServer([], security)
    server.start("127.0.0.1", 0)
    client, later = (Client(server.port, tls=pki / "operator") for _ in range(2))
    try:
        assert client.report().service.role == "standby"
        assert security.front._shares.taken == 1
        revoke(pki, "operator")
        put(pki)
        wait_until(lambda: security.front._shares.taken == 0, "its connection ends")
        with pytest.raises(grpc.RpcError) as caught:
            later.report()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        client.close()
        later.close()
        server.stop()
        security.close()


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


def test_operators_see_when_the_certificate_of_a_running_jobs_worker_expires(
    pki: Path, connect: Callable[[str], Client]
) -> None:
    worker = connect("good")
    attendance = Attendance(worker, worker.join(job_name="night"))
    expires_at = show(pki / "good" / "tls.crt").expires_at.timestamp()

    def told() -> list[float]:
        return [each.certificate_expires_at for job in connect("operator").jobs() for each in job.workers]

    wait_until(lambda: told() == [expires_at], "the worker attends")
    attendance.hang_up()
