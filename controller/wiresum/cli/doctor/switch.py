"""Checks whether the service can be reached, accepts our certificate, and has usable switches. Changes nothing."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wiresum.cli.doctor.finding import Finding, note, ok, problem, warning
from wiresum.cli.service import Service, ServiceError, about_standby
from wiresum.cli.text import counted, duration, scarcest
from wiresum.join import credentials
from wiresum.join.release import software_version

if TYPE_CHECKING:
    from wiresum import join

CONNECT_S_MAX = 3.0
EXPIRY_NEAR = timedelta(days=30)
SLOTS_FEW = 0.1
"""Fraction of the slots, and of every other resource. If a smaller part is free the next job may have to wait."""
REFUSALS_SHOWN = {
    "came without a certificate that the service knows": ("unauthenticated",),
    "had a certificate of another role": ("role",),
    "had a certificate that was revoked": ("revoked",),
    "had the wrong key, token or certificate for the job": ("permission_denied",),
    "came too often, or too many at once, from one address, certificate or tenant": ("rate", "calls", "connections"),
    "were no messages of this service": ("malformed", "oversized", "silent", "unimplemented", "invalid_argument"),
}
"""Requests that an operator may want to look into, and the reasons for which they are refused. Other refusals are
usual."""


def findings(service: Service) -> Iterator[Finding]:
    """Findings about all endpoints, and about the switches of the active one."""
    reached, found = endpoints(service)
    yield from found
    if not reached:
        return
    try:
        report = service.report()
    except ServiceError as error:
        yield _no_report(error)
        if error.code == "UNAVAILABLE":
            yield from _standbys(service)
        return
    yield _answered(report)
    yield from _audit(report.service.audit)
    if len(service.targets) > 1:
        yield from _standbys(service)
    yield from _versions(report.service.software_version)
    for switch in report.switches:
        yield _switch(switch)
        yield from _strays(switch)
        yield from _wrong_sums(switch)
    yield from _refusals(report)


def endpoints(service: Service) -> tuple[list[str], list[Finding]]:
    """The endpoints that can be reached, and findings about all endpoints and their certificates. Any gRPC service may
    listen there."""
    errors = {target: _cannot_connect(target) for target in service.targets}
    reached = [target for target, error in errors.items() if error is None]
    found = [_unreachable(target, error, others=bool(reached)) for target, error in errors.items() if error is not None]
    return reached, [*found, *(certificates(service, reached) if service.tls else ())]


def _cannot_connect(target: str) -> OSError | None:
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S_MAX):
            return None
    except OSError as error:
        return error


def _unreachable(target: str, error: OSError, *, others: bool) -> Finding:
    return (warning if others else problem)(
        "reachable",
        f"nobody answers at {target}: {error.strerror or error}",
        "workers join there" + ("; meanwhile they try the other endpoints" if others else ""),
        f"{_doubt_about_frames(target, error)}is `wiresum switch` or `wiresum controller` running there (systemctl "
        "status), does it listen at that address, and does a firewall let TCP pass? --switch or WIRESUM_SWITCH names "
        "another endpoint",
    )


def _doubt_about_frames(target: str, error: OSError) -> str:
    """A text that precedes other advice. A refused connection is an answer, so frames arrive."""
    # Imported here: `host` loads the native agent, which is not needed for the rest.
    from wiresum.cli.doctor import host

    doubt = host.doubt_about_frames(host.interface_towards(target)) if isinstance(error, TimeoutError) else ""
    return f"{doubt}. If there is none: " if doubt else ""


def _no_report(error: ServiceError) -> Finding:
    if error.code == "PERMISSION_DENIED":
        return note(
            "report",
            "this certificate may not ask for the report, so nothing is said about switches and jobs",
            "only operators may see everything; whether this host may join, the path check says",
            "run it with the certificate of an operator (wiresum ca issue) to see more",
        )
    its_log = "its own log says why (journalctl -u wiresum-switch or -u wiresum-controller)"
    is_ours = error.code == "UNAUTHENTICATED"  # the service was not asked: the text says what is wrong here
    return problem("report", error.message, "without an answer nobody joins", "" if is_ours else its_log)


def _audit(audit: join.AuditReport) -> Iterator[Finding]:
    if audit.trouble:
        yield problem(
            "audit",
            f"the audit log cannot be written: {audit.trouble}",
            "the service goes on, and nobody will know who asked for what meanwhile",
            "make room on that disk, or mount it for writing; the service tries again by itself",
        )
    elif audit.lines_lost:
        yield warning(
            "audit",
            f"lines of the audit log are missing: {audit.lines_lost}",
            "the disk did not take what was asked then",
            "watch wiresum_audit_lines_lost_total; in the file a line with lines_lost says when; the warning goes when "
            "the service is started again",
        )


def _answered(report: join.Report) -> Finding:
    service = report.service
    what = f"{service.role or 'the service'} answers, up {duration(service.age_seconds)}, {len(report.jobs)} jobs"
    if service.trouble:
        return problem(
            "state",
            f"{service.role or 'the service'} answers, but cannot write its state: {service.trouble}",
            "jobs that run go on, but none begins, and slots of those that end are not free",
            "make room on that disk, or mount it for writing; the service tries again by itself",
        )
    if service.past:
        return warning(
            "state",
            f"{what}; it began with an old copy of its state: {service.past}",
            "jobs that the copy does not hold have ended; no key is used twice, so sums are right",
            "look at the disk that holds the state, and make sure that nobody else uses a copy of it; the warning goes "
            "when the controller is started again",
        )
    return ok("service", what)


def _standbys(service: Service) -> Iterator[Finding]:
    """Says whether the standbys of an active controller would take over."""
    for target, report in service.standbys().items():
        yield _standby(target, report)


def _standby(target: str, report: join.Report) -> Finding:
    lost = [f"'{switch.name}' ({switch.trouble})" for switch in report.switches if switch.trouble]
    up = f"{target} stands by, {about_standby(report.service)}"
    if not lost:
        names = ", ".join(f"'{switch.name}'" for switch in report.switches)
        return ok("standby", f"{up}, and reaches {names}")
    return warning(
        "standby",
        f"{up}, but does not reach {', '.join(lost)}",
        "if the active controller goes, it cannot take over there",
        "look at the way from the standby to the switch's P4Runtime port, and at its certificate",
    )


def _versions(theirs: str) -> Iterator[Finding]:
    ours = software_version()
    if ours and theirs and ours != theirs:
        yield warning(
            "versions",
            f"the service is wiresum {theirs}, this host has {ours}",
            "versions with different join protocols refuse each other, and others are not tested together",
            f"install wiresum {theirs} here, or upgrade the service",
        )


def _switch(switch: join.SwitchReport) -> Finding:
    what = (
        f"'{switch.name}' ({switch.kind}) is {switch.state}: {switch.slots_free} of {switch.slots_total} slots and "
        f"{switch.jobs_max - switch.jobs} of {switch.jobs_max} jobs are free, {switch.lanes_max} lanes"
    )
    if switch.uncounted and switch.state not in ("unreachable", "outdated"):
        return warning(
            "slow",
            f"'{switch.name}' ({switch.kind}) is {switch.state}: {switch.trouble}",
            "it or the way to it is busy. Its jobs go on, and others begin and end there; what it counted is unknown",
            "look again; if it stays so, look at the load of that switch's processor and of the controller's host",
        )
    if switch.trouble:
        return problem(
            "trouble",
            f"'{switch.name}' ({switch.kind}) is {switch.state}: {switch.trouble}",
            "its jobs go on while the switch forwards, but no job begins or ends there",
            "look at the switch itself and at the way to its P4Runtime port; the controller tries again by itself",
        )
    if switch.state == "draining":
        advice = "wiresum jobs resume, when it may take jobs again"
        return warning("draining", what, "it takes no new jobs", advice)
    share, least = scarcest(switch.room, switch.room_taken)
    if switch.slots_free < SLOTS_FEW * switch.slots_total or switch.jobs >= switch.jobs_max:
        return warning(
            "full",
            what,
            "the next job may have to wait in the queue",
            "start the switch with more --slots, ask for fewer for each job, or end jobs (wiresum jobs)",
        )
    if share < SLOTS_FEW:
        return warning(
            "full",
            f"{what}, but only {least}",
            "the next job may have to wait in the queue",
            "give workers fewer threads (WIRESUM_THREADS), limit tenants ([[tenant]]), or end jobs (wiresum jobs)",
        )
    return ok("state", what)


def _strays(switch: join.SwitchReport) -> Iterator[Finding]:
    strays = {reason: count for reason, count in switch.stray_packets.items() if count}
    if strays:
        yield note(
            "strays",
            f"'{switch.name}' dropped packets of no job: {counted(strays)}",
            "some are the last packets of jobs that have ended; a steady stream has a sender that should send none",
            "wiresum top shows the rate; if it goes on, look for the sender at the switch (tcpdump on its data ports)",
        )


def _wrong_sums(switch: join.SwitchReport) -> Iterator[Finding]:
    if switch.sums_wrong:
        yield warning(
            "sums",
            f"'{switch.name}' gave {switch.sums_wrong} wrong sums: their check words did not fit",
            "they were asked for again, and none was stored; a sum that is wrong twice ends its job",
            "docs/runbook.md, WiresumSumsWrong, says what to test, and when to drain the switch; the warning goes when "
            "the service is started again",
        )


def _refusals(report: join.Report) -> Iterator[Finding]:
    for what, reasons in REFUSALS_SHOWN.items():
        if count := sum(report.service.refusals.get(reason, 0) for reason in reasons):
            yield note(
                "refusals",
                f"{count} requests were refused because they {what}",
                "a misconfigured worker, `wiresum doctor` with a worker's certificate, or somebody who tries to get in",
                "the service's audit log, if `audit` names one, has a line for each, with the peer's address and name",
            )


# Certificates.


def certificates(service: Service, targets: list[str], s_max: float = CONNECT_S_MAX) -> Iterator[Finding]:
    """Checks our certificate, and those of services that can be reached. `s_max`: how long a service may take to
    answer."""
    try:
        ours = credentials.load(service.tls)
    except credentials.CredentialsError as error:
        yield problem("certificate", str(error), "without it nobody lets us in")
        return
    yield _expiry("our certificate", str(ours.directory / credentials.CERTIFICATE_FILE), ours.expires_at)
    for target in targets:
        try:
            expires_at = _expiry_of_server(target, ours.directory, s_max)
        except TimeoutError as error:
            yield problem(
                "tls",
                f"{target} takes a connection, and does not answer to TLS in {s_max:.0f} s",
                "workers cannot join, whatever their certificates are",
                f"{_doubt_about_frames(target, error)}is its process stopped or overloaded (systemctl status, there), "
                "and do packets of 1500 bytes pass on the way (ping -M do -s 1472)?",
            )
        except OSError as error:  # of TLS, too
            yield problem(
                "tls",
                f"TLS with {target} fails: {_reason(error)}",
                "workers cannot join",
                "both need certificates of one authority (ca.crt), and the service's must name the address in "
                "--switch: wiresum ca issue. If the service runs without TLS, leave --tls out",
            )
        else:
            yield _expiry(f"the certificate of {target}", f"that of {target}", expires_at)


def _expiry(whose: str, which: str, expires_at: datetime) -> Finding:
    what = f"{whose} is valid until {expires_at:%Y-%m-%d %H:%M} UTC"
    if expires_at - datetime.now(timezone.utc) > EXPIRY_NEAR:
        return ok("certificate", what)
    return warning(
        "certificate",
        what,
        "from then on connections fail; jobs that run end at their next reconnection",
        f"renew {which}: wiresum ca renew; services take a new file without a restart",
    )


def _expiry_of_server(target: str, directory: Path, s_max: float) -> datetime:
    host, _, port = target.rpartition(":")
    context = ssl.create_default_context(cafile=str(directory / credentials.AUTHORITY_FILE))
    context.load_cert_chain(directory / credentials.CERTIFICATE_FILE, directory / credentials.KEY_FILE)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), s_max) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        certificate: Any = secured.getpeercert()
        _wait_for_refusal(secured, s_max)
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), timezone.utc)


def _wait_for_refusal(secured: ssl.SSLSocket, s_max: float) -> None:
    """Waits whether the server refuses our certificate: in TLS 1.3 this happens only after the handshake. Raises
    `ssl.SSLError`."""
    secured.settimeout(s_max)
    with contextlib.suppress(TimeoutError):
        secured.recv(1)  # gRPC speaks first: its settings


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == credentials.CERT_NOT_YET_VALID:
            return f"{error.verify_message}: is the clock of this host right, or that of the host which issued it?"
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return error.strerror or str(error)
