"""Certificates expire, and are renewed, while jobs run: who is connected stays, who connects anew needs a valid one,
and a renewed one is read without a restart."""

from __future__ import annotations

import datetime
import os
import socket
import ssl

import grpc
import pytest

from wiresum import join
from wiresum.cli.service import ServiceError
from wiresum.controller.security.authority import show
from wiresum.join import credentials, operator_pb2_grpc
from wiresum_lab.laboratory import HOST, Job, Laboratory, lasting
from wiresum_lab.patience import FACTOR, PATIENCE_S
from wiresum_lab.processes import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

LASTS_S = 25.0 * FACTOR
"""A certificate that expires in a test, from its issue: long enough to start a job with it."""


def await_expiry(laboratory: Laboratory, name: str) -> None:
    expires_at = show(laboratory.pki.tls(name) / "tls.crt").expires_at + datetime.timedelta(seconds=1)
    wait_until(
        lambda: datetime.datetime.now(datetime.timezone.utc) > expires_at, "it has expired", LASTS_S + PATIENCE_S
    )


def serial_at(port: int) -> str:
    """Of the certificate that a server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((HOST, port)) as plain, context.wrap_socket(plain) as shown:
        der = shown.getpeercert(binary_form=True)
    assert der is not None
    from cryptography import x509

    return f"{x509.load_der_x509_certificate(der).serial_number:x}"


def report_as(laboratory: Laboratory, name: str) -> join.Report:
    """By gRPC alone, which sends the certificate as it is: the caller's side checks nothing."""
    tls = laboratory.pki.tls(name)
    authority, key, certificate = ((tls / file).read_bytes() for file in ("ca.crt", "tls.key", "tls.crt"))
    shown = grpc.ssl_channel_credentials(authority, key, certificate)
    with grpc.secure_channel(f"{HOST}:{laboratory.ports['active']}", shown) as channel:
        stub = operator_pb2_grpc.OperatorServiceStub(channel)
        return stub.GetReport(join.GetReportRequest(), timeout=PATIENCE_S)


def test_a_workers_certificate_expires_under_its_running_job_and_is_renewed(laboratory: Laboratory) -> None:
    with lasting(LASTS_S):
        laboratory.pki.issue("short", "worker")
        laboratory.pki.issue("leaving", "operator")
    job = laboratory.job("through", tls="short")
    assert report_as(laboratory, "leaving").jobs, "while it is valid, it is taken"
    await_expiry(laboratory, "leaving")
    job.goes_on()

    # New connections are refused: here with advice, and by the service itself if the caller does not look.
    with pytest.raises(ServiceError, match=r"leaving/tls\.crt .*certificate has expired\. Renew it with `wiresum ca"):
        laboratory.service("leaving").report()
    with pytest.raises(grpc.RpcError) as refused:
        report_as(laboratory, "leaving")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    late = laboratory.start_job("late", tls="short")
    for rank in range(2):
        assert "short/tls.crt is not valid under" in late.error(rank)
        assert "Renew it with `wiresum ca renew`" in late.error(rank)

    # The workers lose their connections, and cannot make others until the certificate is renewed. Their job goes on.
    laboratory.controllers["active"].kill()
    laboratory.await_report(lambda report: report.jobs, "the standby serves")
    job.for_seconds(4.0)
    laboratory.pki.renew("short")
    laboratory.await_report(
        lambda report: [w.state for j in report.jobs for w in j.workers] == ["attending"] * 2, "both attend again"
    )
    laboratory.job("later", tls="short").finish()
    job.finish()


def test_certificates_of_services_are_renewed_without_a_restart(laboratory: Laboratory) -> None:
    job = laboratory.job("through")
    ports = {"controller": laboratory.ports["active"], "left": laboratory.at["left"].p4runtime}
    for name, port in ports.items():
        before = serial_at(port)
        assert before == show(laboratory.pki.tls(name) / "tls.crt").serial
        laboratory.pki.renew(name)
        assert serial_at(port) == show(laboratory.pki.tls(name) / "tls.crt").serial != before
    # A renewal that is half done leaves the old pair in force.
    key = laboratory.pki.tls("left") / "tls.key"
    whole, serial = key.read_bytes(), serial_at(ports["left"])
    key.write_text("-----BEGIN nothing")
    os.utime(key)
    assert serial_at(ports["left"]) == serial
    key.write_bytes(whole)
    job.goes_on()
    laboratory.job("later").finish()
    job.finish()


@pytest.fixture
def job(laboratory: Laboratory) -> Job:
    return laboratory.job("through")


def test_a_switch_whose_certificate_has_expired_keeps_its_connection_and_gets_no_new_one(
    laboratory: Laboratory, job: Job
) -> None:
    tls = laboratory.pki.tls("left")
    with lasting(LASTS_S):
        laboratory.pki.renew("left")
    # The standby connects anew, and so sees this certificate.
    laboratory.controllers["standby"].stop()
    laboratory.start_controller("standby")
    await_expiry(laboratory, "left")
    job.goes_on()
    assert {s.name: s.trouble for s in laboratory.operator.report().switches} == {"left": "", "right": ""}

    laboratory.controllers["active"].kill()
    laboratory.controllers["standby"].stop()
    laboratory.start_controller("active")
    report = laboratory.await_report(
        lambda report: any(s.state == "unreachable" and s.trouble for s in report.switches), "left is out of reach"
    )
    trouble = {s.name: s.trouble for s in report.switches}
    assert trouble["right"] == ""
    assert "certificate" in trouble["left"].lower(), trouble
    job.goes_on()
    with pytest.raises(credentials.CredentialsError, match="certificate has expired"):
        credentials.load(tls, serving=True)

    laboratory.pki.renew("left")
    laboratory.await_switches("ready")
    laboratory.job("later").finish()
    job.finish()
