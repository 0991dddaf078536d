"""Metrics of a service for Prometheus, over HTTP at /metrics.

A scrape turns one report into series; nothing is kept. The number of series is bounded: at most JOBS_MAX jobs have
some, and single workers none (`wiresum top` shows workers). An unknown value has no sample, rather than one of 0: a
standby has no samples of jobs, of the state, or of what is free at the switches. Names of jobs are not for everybody:
listen where only Prometheus comes.

A report takes the service's event loop. The metrics that show a late loop, or an expiring certificate, do without.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from wiresum import join
from wiresum.controller.driver import REASONS
from wiresum.join import hosts
from wiresum.join.credentials import AUTHORITY_FILE, CERTIFICATE_FILE
from wiresum.join.trees import packets_behind

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from wiresum.controller.service.join_server import JoinServer

log = logging.getLogger(__name__)

JOBS_MAX = 256
"""How many jobs have series of their own, those with the most results; `wiresum_jobs_unlisted` counts the others."""
CLOSE_S_MAX = 2.0
CONNECTIONS_MAX = 32
CONNECTION_S_MAX = 10.0
"""The longest life of a connection, however slowly it is read."""
GIVE_WAY_S_MAX = 0.2
"""How long the oldest connection may take to end, where there is no room for a new one."""

REFUSALS_ALERTED = ("calls", "connections", "permission_denied", "rate", "revoked")
"""Reasons of refusals that have a series from the start: if a series appeared only with the first refusal, Prometheus
would not see the rise."""

UNUSABLE = ("unreachable", "outdated")
"""States of a switch in which the service cannot use it."""
JOB_LABELS = ("job_name", "switch")
"""Labels of a job's series. The first is not `job`, which Prometheus sets itself, to the name of its target."""


def serve(host: str, port: int, *collectors: Collector) -> MetricsServer:
    """Serves the metrics of the collectors, and the process's own figures, until `close`; the collectors are called
    from the server's threads. Raises `OSError` if the server cannot listen. Port 0 takes a free port."""
    registry = CollectorRegistry()
    for ours in collectors:
        registry.register(ours)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    try:
        return MetricsServer(host, port, make_wsgi_app(registry))
    except OSError as error:
        raise OSError(
            error.errno, f"cannot serve metrics at {host}:{port}: {error.strerror}. Choose another address or port"
        ) from error


class MetricsServer:
    def __init__(
        self, host: str, port: int, application: WSGIApplication, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server = _Server.at(host, port)
        self._server.clock = clock
        self._server.set_app(application)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="wiresum-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(CLOSE_S_MAX)
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection, at most CONNECTIONS_MAX. Where there is no room, the oldest
    connection gives way, so that a client which holds connections does not keep Prometheus out."""

    daemon_threads = True
    block_on_close = False

    @classmethod
    def at(cls, host: str, port: int) -> _Server:
        address = hosts.addresses_of(host)[0]
        cls.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return cls((address, port), _Handler)

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self._places = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._began_at: dict[socket.socket, float] = {}
        """The connections, the oldest first."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self._end_those_older_than(0.0, at_most=1)
            if not self._places.acquire(timeout=GIVE_WAY_S_MAX):
                self.shutdown_request(request)
                return
        with self._lock:
            self._began_at[request] = self.clock()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        self._end_those_older_than(CONNECTION_S_MAX, at_most=CONNECTIONS_MAX)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection of %s for the metrics broke", client_address)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            del self._began_at[request]
        self._places.release()

    def _end_those_older_than(self, seconds: float, *, at_most: int) -> None:
        """Ends old connections. A time-out of the socket would not do: it begins anew with each byte."""
        now = self.clock()
        with self._lock:
            old = [request for request, began_at in self._began_at.items() if now - began_at >= seconds]
        for request in old[:at_most]:
            with contextlib.suppress(OSError):  # the connection has ended meanwhile
                request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Logs nothing: a line for each scrape would hide all others."""


class LoopCollector(Collector):
    """Metrics of an active service that are known without its event loop."""

    def __init__(self, server: JoinServer) -> None:
        self._server = server

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, as `ReportCollector.describe`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "wiresum_event_loop_lag_seconds",
            "How long a call may have waited for the service's event loop: the most in the last half minute or more.",
            self._server.lag.worst_s(),
        )
        yield GaugeMetricFamily(
            "wiresum_ready",
            "Whether jobs are taken, as `wiresum health --ready` says.",
            not self._server.why_not_ready,
        )


class CertificateCollector(Collector):
    """When the certificates of TLS directories and of their authorities expire, as the files say now."""

    def __init__(self, directories: Mapping[str, Path | None]) -> None:
        """`directories`: by purpose; None: this purpose does without TLS."""
        self._directories = {which: path.expanduser() for which, path in directories.items() if path is not None}

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, as `ReportCollector.describe`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        expires = GaugeMetricFamily(
            "wiresum_certificate_expires_timestamp_seconds",
            "When a certificate expires, in Unix time; 0 if its file cannot be read.",
            labels=["which", "file"],
        )
        for which, directory in self._directories.items():
            for name in (AUTHORITY_FILE, CERTIFICATE_FILE):
                expires.add_metric([which, name], _expiry(directory / name))
        yield expires


def _expiry(path: Path) -> float:
    """When the first of the certificates in a file expires, in Unix time; 0 if the file cannot be read."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
        return min(certificate.not_valid_after_utc.timestamp() for certificate in found)
    except (OSError, ValueError) as error:
        log.warning("cannot read the certificate %s: %s", path, error)
        return 0.0


class ReportCollector(Collector):
    """A report as metric families."""

    def __init__(self, report: Callable[[], join.Report]) -> None:
        self._report = report

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: to ask for a report at the registration would be too early."""
        return ()

    def collect(self) -> Iterator[Metric]:
        try:
            report = self._report()
        except Exception:  # a scrape that fails as a whole would hide the process's own metrics
            log.exception("there is no report for the metrics")
            yield GaugeMetricFamily("wiresum_up", "Whether the service could report.", 0)
            return
        yield GaugeMetricFamily("wiresum_up", "Whether the service could report.", 1)
        yield from _service(report.service)
        stands_by = report.service.role == "standby"
        yield from _switches(report.switches, of_standby=stands_by)
        if stands_by:
            yield from _standby(report.service)
        else:
            yield from _state(report)
            yield from _jobs(report)


def _service(service: join.ServiceReport) -> Iterator[Metric]:
    about = {"role": service.role, "version": service.software_version}
    yield InfoMetricFamily("wiresum_service", "The role and the version of the service.", about)
    yield GaugeMetricFamily("wiresum_service_uptime_seconds", "Seconds since the service began.", service.age_seconds)
    refusals = CounterMetricFamily("wiresum_refusals", "Requests that were refused, by reason.", labels=["reason"])
    for reason in sorted({*REFUSALS_ALERTED, *service.refusals}):
        refusals.add_metric([reason], service.refusals.get(reason, 0))
    yield refusals


def _standby(service: join.ServiceReport) -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "wiresum_active_silent_seconds",
        "Seconds since a standby has last seen life of the active controller.",
    )
    if service.HasField("active_silent_seconds"):
        silent.add_metric([], service.active_silent_seconds)
    yield silent


def _state(report: join.Report) -> Iterator[Metric]:
    service = report.service
    yield GaugeMetricFamily(
        "wiresum_state_writable",
        "Whether the state can be written; if not, no job begins, and slots of those that end are not free.",
        not service.trouble,
    )
    yield GaugeMetricFamily(
        "wiresum_state_past",
        "Whether the state that the service began with was not what had been written last.",
        bool(service.past),
    )
    yield GaugeMetricFamily(
        "wiresum_audit_writable",
        "Whether the audit log can be written; if not, the service goes on without it.",
        not service.audit.trouble,
    )
    yield CounterMetricFamily(
        "wiresum_audit_lines_lost", "Lines of the audit log that the disk did not take.", service.audit.lines_lost
    )
    yield GaugeMetricFamily(
        "wiresum_records_set_aside",
        "Records of jobs that the service cannot go on with, until they are removed.",
        len(report.set_aside),
    )
    moves = CounterMetricFamily("wiresum_moves", "Moves of jobs to other leases, by cause.", labels=["cause"])
    for cause, count in sorted(service.moves.items()):
        moves.add_metric([cause], count)
    yield moves


def _switches(switches: Iterable[join.SwitchReport], *, of_standby: bool) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"wiresum_switch_{name}", text, labels=["switch"])

    about = InfoMetricFamily("wiresum_switch", "The kind of a switch, and its versions.", labels=["switch"])
    usable = gauge("up", "Whether the service can use the switch, or a standby reaches it.")
    slow = gauge("slow", "Whether the switch is in reach, but did not say in time what it counted.")
    draining = gauge("draining", "Whether the switch takes no new jobs since an operator said so.")
    total, free = gauge("slots", "Slots for all jobs."), gauge("slots_free", "Slots that no job has.")
    running, most = gauge("jobs", "Jobs on the switch."), gauge("jobs_max", "Jobs that the switch has room for.")
    labels = ["switch", "resource"]
    room = GaugeMetricFamily("wiresum_switch_room", "What the switch has for jobs, by resource.", labels=labels)
    taken = GaugeMetricFamily(
        "wiresum_switch_room_taken", "What jobs have taken of a switch, by resource.", labels=labels
    )
    strays = CounterMetricFamily(
        "wiresum_switch_stray_packets", "Packets of no job, by reason.", labels=["switch", "reason"]
    )
    wrong = CounterMetricFamily(
        "wiresum_switch_sums_wrong", "Sums that a worker of the switch found to be wrong.", labels=["switch"]
    )
    for switch in switches:
        about.add_metric(
            [switch.name], {"kind": switch.kind, "version": switch.software_version, "program": switch.program_version}
        )
        reached = switch.state not in UNUSABLE
        usable.add_metric([switch.name], reached)
        total.add_metric([switch.name], switch.slots_total)
        most.add_metric([switch.name], switch.jobs_max)
        for resource, count in sorted(switch.room.items()):
            room.add_metric([switch.name, resource], count)
        if of_standby:
            continue
        slow.add_metric([switch.name], switch.uncounted and reached)
        if reached:  # the report gives only one of the two states
            draining.add_metric([switch.name], switch.state == "draining")
        free.add_metric([switch.name], switch.slots_free)
        running.add_metric([switch.name], switch.jobs)
        wrong.add_metric([switch.name], switch.sums_wrong)
        for resource, count in sorted(switch.room_taken.items()):
            taken.add_metric([switch.name, resource], count)
        for reason in REASONS:
            if reason in switch.stray_packets and not switch.uncounted:
                strays.add_metric([switch.name, reason], switch.stray_packets[reason])
    yield from (about, usable, slow, draining, total, free, running, most, room, taken, strays, wrong)


def _jobs(report: join.Report) -> Iterator[Metric]:
    states = GaugeMetricFamily("wiresum_jobs", "Jobs, by state.", labels=["state"])
    for state, count in sorted(Counter(job.state for job in report.jobs).items()):
        states.add_metric([state], count)
    yield states
    # Two jobs with one name would be a series twice, for which Prometheus refuses the whole scrape. A job that ends is
    # left out.
    distinct = {(job.name, job.switch_name): job for job in sorted(report.jobs, key=lambda job: job.state != "ending")}
    listed = sorted(distinct.values(), key=lambda job: (-job.results, job.name))[:JOBS_MAX]
    yield GaugeMetricFamily(
        "wiresum_jobs_unlisted", "Jobs without series of their own.", len(report.jobs) - len(listed)
    )
    yield from _job_counters(listed)
    yield from _job_gauges(listed)


def _job_counters(jobs: Iterable[join.JobReport]) -> Iterator[Metric]:
    packets = CounterMetricFamily(
        "wiresum_job_packets", "Packets that the switch took for the job, by reason.", labels=[*JOB_LABELS, "reason"]
    )
    results = CounterMetricFamily("wiresum_job_results", "Packets with a sum that went out.", labels=JOB_LABELS)
    summed = CounterMetricFamily(
        "wiresum_job_summed_bytes", "Bytes of sums that each worker got, full packets assumed.", labels=JOB_LABELS
    )
    for job in jobs:
        if job.uncounted:  # a counter that falls to zero would look like one that began anew
            continue
        labels = [job.name, job.switch_name]
        for reason in REASONS:
            if reason in job.packets:
                packets.add_metric([*labels, reason], job.packets[reason])
        results.add_metric(labels, job.results)
        summed.add_metric(labels, 4 * job.lanes * job.results)
    yield from (packets, results, summed)


def _heartbeat_age_s(job: join.JobReport) -> float | None:
    ages = [worker.heartbeat_age_ms for worker in job.workers if worker.state == "attending"]
    return max(ages) / 1000 if ages else None


def _contributions_behind(job: join.JobReport) -> float | None:
    counts = [worker.contributions for worker in job.workers]
    return None if job.uncounted else max(counts, default=0) - min(counts, default=0)


GAUGES: dict[str, tuple[str, Callable[[join.JobReport], float | None]]] = {
    "switches": ("Switches of the job's tree.", lambda job: len(job.switches)),
    "workers": ("Workers that the job has when it is complete.", lambda job: job.world_size),
    "workers_joined": ("Workers that have asked to join.", lambda job: job.joined),
    "streams": ("Streams that its workers send: those of one host share one.", lambda job: job.streams),
    "slots": ("Slots of the job's lease.", lambda job: job.slots),
    "queue_position": ("Place in the queue for slots; 1 is the next, 0 not in it.", lambda job: job.queue_position),
    "age_seconds": ("Seconds since the first worker asked.", lambda job: job.age_seconds),
    "heartbeat_age_seconds": (
        "Seconds since the last heartbeat of the attending worker that is silent for longest.",
        _heartbeat_age_s,
    ),
    "contributions_behind": (
        "Packets by which the worker with the fewest is behind the one with the most.",
        _contributions_behind,
    ),
}
"""Gauges of a job: the help text, and the value in a report. A value of None is not known."""


def _job_gauges(jobs: Iterable[join.JobReport]) -> Iterator[Metric]:
    jobs = list(jobs)
    for name, (text, value) in GAUGES.items():
        gauge = GaugeMetricFamily(f"wiresum_job_{name}", text, labels=JOB_LABELS)
        for job in jobs:
            if (found := value(job)) is not None:
                gauge.add_metric([job.name, job.switch_name], found)
        yield gauge
    yield _uplinks(jobs)
    yield _worker_certificates(jobs)


def _uplinks(jobs: Iterable[join.JobReport]) -> Metric:
    behind = GaugeMetricFamily(
        "wiresum_job_uplink_behind",
        "Packets by which the sums of a switch lag, at the switch above, behind what else comes there.",
        labels=[*JOB_LABELS, "below"],
    )
    for job in jobs:
        for below, packets in packets_behind(job.switches, job.workers).items():
            behind.add_metric([job.name, job.switch_name, below], packets)
    return behind


def _worker_certificates(jobs: Iterable[join.JobReport]) -> Metric:
    """When the workers' certificates expire. A job without any known certificate has no sample."""
    expires = GaugeMetricFamily(
        "wiresum_job_certificate_expires_timestamp_seconds",
        "When the first of the certificates expires with which the job's workers are connected, in Unix time.",
        labels=JOB_LABELS,
    )
    for job in jobs:
        known = [w.certificate_expires_at for w in job.workers if w.state == "attending" and w.certificate_expires_at]
        if known:
            expires.add_metric([job.name, job.switch_name], min(known))
    return expires
