from __future__ import annotations

import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from wiresum import join
from wiresum.controller import JoinServer, metrics
from wiresum.controller.metrics import CertificateCollector, LoopCollector, MetricsServer, ReportCollector
from wiresum.controller.security.authority import Authority, Holder, show
from wiresum.controller.security.names import Claims
from wiresum.controller.service.join_server import LAG_S_MAX, TICK_S
from wiresum_lab.clocks.by_hand import FrozenClock
from wiresum_lab.doubles.controller import RecordingDriver
from wiresum_lab.doubles.operator_service import example_report
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

Labels = dict[str, str]
Serve = Callable[..., MetricsServer]
"""Takes what reports, and further collectors."""


def report_with_trouble() -> join.Report:
    """The usual example, with what only metrics tell."""
    report = example_report()
    report.jobs[0].streams = 1
    report.jobs[0].packets["invented"] = 9
    report.switches[0].state = "draining"
    report.switches[0].stray_packets["unknown"] = 3
    report.switches[0].sums_wrong = 6
    report.service.refusals["permission_denied"] = 4
    report.service.moves["switch_lost"] = 2
    return report


@pytest.fixture
def serving() -> Iterator[Serve]:
    servers: list[MetricsServer] = []

    def serve(report: Callable[[], join.Report], *others: Collector) -> MetricsServer:
        servers.append(metrics.serve("127.0.0.1", 0, ReportCollector(report), *others))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def scraped(server: MetricsServer) -> dict[str, list[tuple[Labels, float]]]:
    """Samples by name, as Prometheus' own parser reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_report_is_exported(serving: Serve) -> None:
    found = scraped(serving(report_with_trouble))
    night = {"job_name": "night-run", "switch": "rack1"}
    assert found["wiresum_up"] == [({}, 1.0)]
    assert found["wiresum_state_writable"] == [({}, 1.0)]
    assert found["wiresum_job_packets_total"] == [
        (night | {"reason": reason}, count)
        for reason, count in (("admitted", 1000), ("resent", 2), ("duplicate", 3), ("stale", 4), ("out_of_lease", 5))
    ]
    assert (night, 500.0) in found["wiresum_job_results_total"]
    assert (night, 500.0 * 360 * 4) in found["wiresum_job_summed_bytes_total"]
    assert (night, 3.04) in found["wiresum_job_heartbeat_age_seconds"]
    assert (night, 40.0) in found["wiresum_job_contributions_behind"]
    assert (night, 1.0) in found["wiresum_job_streams"]
    assert ({"job_name": "next", "switch": ""}, 1.0) in found["wiresum_job_queue_position"]
    assert found["wiresum_jobs"] == [({"state": "queued"}, 1.0), ({"state": "running"}, 1.0)]
    assert found["wiresum_switch_up"] == [({"switch": "rack1"}, 1.0)]
    assert found["wiresum_switch_draining"] == [({"switch": "rack1"}, 1.0)]
    assert found["wiresum_switch_slots_free"] == [({"switch": "rack1"}, 256.0)]
    assert found["wiresum_switch_room"] == [
        ({"switch": "rack1", "resource": "admit"}, 4096.0),
        ({"switch": "rack1", "resource": "jobs"}, 64.0),
        ({"switch": "rack1", "resource": "slots"}, 512.0),
    ]
    assert found["wiresum_switch_room_taken"] == [
        ({"switch": "rack1", "resource": "admit"}, 2.0),
        ({"switch": "rack1", "resource": "jobs"}, 1.0),
        ({"switch": "rack1", "resource": "slots"}, 256.0),
    ]
    assert found["wiresum_switch_stray_packets_total"] == [({"switch": "rack1", "reason": "unknown"}, 3.0)]
    assert found["wiresum_switch_sums_wrong_total"] == [({"switch": "rack1"}, 6.0)]
    assert ({"reason": "permission_denied"}, 4.0) in found["wiresum_refusals_total"]
    assert ({"reason": "connections"}, 0.0) in found["wiresum_refusals_total"]
    assert found["wiresum_moves_total"] == [({"cause": "switch_lost"}, 2.0)]
    assert found["wiresum_service_info"] == [({"role": "active", "version": "0.0.test"}, 1.0)]
    assert found["process_open_fds"][0][1] > 0


def test_the_series_of_a_job_that_has_moved_are_not_those_of_the_lease_that_it_had(
    serving: Serve,
) -> None:
    jobs = [
        join.JobReport(name="night", switch_name="rack1", state=state, results=results)
        for state, results in (("running", 7), ("ending", 9))
    ]
    for ordered in (jobs, jobs[::-1]):
        found = scraped(serving(lambda ordered=ordered: join.Report(jobs=ordered)))
        assert found["wiresum_job_results_total"] == [({"job_name": "night", "switch": "rack1"}, 7.0)]


def test_the_number_of_jobs_with_series_is_bounded(
    serving: Serve,
) -> None:
    jobs = [join.JobReport(name=f"job {number}", results=number) for number in range(metrics.JOBS_MAX + 10)]
    jobs.append(join.JobReport(name="job 300"))  # one name already has a series
    found = scraped(serving(lambda: join.Report(jobs=jobs)))
    names = {labels["job_name"] for labels, _ in found["wiresum_job_results_total"]}
    assert len(names) == metrics.JOBS_MAX
    assert f"job {metrics.JOBS_MAX + 9}" in names
    assert "job 0" not in names
    assert found["wiresum_jobs_unlisted"] == [({}, 11.0)]


def test_unknown_counters_are_omitted_instead_of_zero(
    serving: Serve,
) -> None:
    job = join.JobReport(name="night", switch_name="rack1", uncounted=True, workers=[join.WorkerReport(state="lost")])
    found = scraped(serving(lambda: join.Report(jobs=[job])))
    for name in (
        "results_total",
        "packets_total",
        "summed_bytes_total",
        "contributions_behind",
        "heartbeat_age_seconds",
    ):
        assert f"wiresum_job_{name}" not in found
    assert found["wiresum_job_age_seconds"] == [({"job_name": "night", "switch": "rack1"}, 0.0)]


@pytest.mark.parametrize(
    ("state", "uncounted", "up", "slow"),
    [
        ("ready", False, 1.0, 0.0),
        ("slow", True, 1.0, 1.0),
        ("draining", True, 1.0, 1.0),
        ("unreachable", True, 0.0, 0.0),
    ],
)
def test_a_slow_switch_is_up(serving: Serve, state: str, uncounted: bool, up: float, slow: float) -> None:
    switch = join.SwitchReport(name="rack1", state=state, uncounted=uncounted)
    found = scraped(serving(lambda: join.Report(switches=[switch])))
    assert found["wiresum_switch_up"] == [({"switch": "rack1"}, up)]
    assert found["wiresum_switch_slow"] == [({"switch": "rack1"}, slow)]


def test_a_switch_out_of_reach_has_no_sample_of_whether_it_is_drained(
    serving: Serve,
) -> None:
    switch = join.SwitchReport(name="rack1", state="unreachable", uncounted=True)
    found = scraped(serving(lambda: join.Report(switches=[switch])))
    assert "wiresum_switch_draining" not in found
    assert "wiresum_switch_stray_packets_total" not in found


def test_a_standby_has_samples_of_what_it_knows_alone(
    serving: Serve,
) -> None:
    switch = join.SwitchReport(name="rack1", kind="bmv2", state="standby", slots_total=512, jobs_max=64)
    service = join.ServiceReport(role="standby", age_seconds=60, refusals={"rate": 1}, active_silent_seconds=7.5)
    found = scraped(serving(lambda: join.Report(switches=[switch], service=service)))
    assert {name for name in found if name.startswith("wiresum_")} == {
        "wiresum_up", "wiresum_service_info", "wiresum_service_uptime_seconds", "wiresum_refusals_total",
        "wiresum_active_silent_seconds", "wiresum_switch_info", "wiresum_switch_up", "wiresum_switch_slots",
        "wiresum_switch_jobs_max",
    }  # fmt: skip
    assert found["wiresum_active_silent_seconds"] == [({}, 7.5)]
    assert found["wiresum_switch_up"] == [({"switch": "rack1"}, 1.0)]


def test_a_full_disk_is_exported(serving: Serve) -> None:
    found = scraped(serving(lambda: join.Report(service=join.ServiceReport(trouble="the disk is full"))))
    assert found["wiresum_state_writable"] == [({}, 0.0)]


def test_trouble_with_the_audit_log_is_exported(serving: Serve) -> None:
    for audit, writable in ((join.AuditReport(trouble="full", lines_lost=7), 0.0), (join.AuditReport(), 1.0)):
        found = scraped(serving(lambda audit=audit: join.Report(service=join.ServiceReport(audit=audit))))  # type: ignore[misc]
        assert found["wiresum_audit_writable"] == [({}, writable)]
        assert found["wiresum_audit_lines_lost_total"] == [({}, float(audit.lines_lost))]


def test_an_old_state_is_exported(serving: Serve) -> None:
    for past, value in (("an old copy", 1.0), ("", 0.0)):
        found = scraped(serving(lambda past=past: join.Report(service=join.ServiceReport(past=past))))
        assert found["wiresum_state_past"] == [({}, value)]


def test_each_switch_with_a_parent_has_a_series_for_its_delay(
    serving: Serve,
) -> None:
    nodes = [join.NodeReport(switch_name="spine")]
    nodes += [
        join.NodeReport(switch_name=leaf, parent="spine", contributions=count)
        for leaf, count in (("leaf1", 9), ("leaf2", 4))
    ]
    job = join.JobReport(name="wide", switch_name="spine", switches=nodes)
    found = scraped(serving(lambda: join.Report(jobs=[job])))
    labels = {"job_name": "wide", "switch": "spine"}
    assert found["wiresum_job_switches"] == [(labels, 3.0)]
    assert found["wiresum_job_uplink_behind"] == [
        ({**labels, "below": "leaf1"}, 0.0),
        ({**labels, "below": "leaf2"}, 5.0),
    ]


def test_scraping_works_while_the_service_cannot_report(
    serving: Serve,
) -> None:
    def fail() -> join.Report:
        raise RuntimeError("the loop is closed")

    found = scraped(serving(fail))
    assert found["wiresum_up"] == [({}, 0.0)]
    assert "process_open_fds" in found
    assert not any(name.startswith("wiresum_job") for name in found)


def test_a_scrape_says_that_the_service_is_held_up_while_it_is(serving: Serve) -> None:
    clock = FrozenClock()
    service = JoinServer(RecordingDriver(), clock=clock)
    service.start("127.0.0.1", 0)
    held = threading.Event()
    try:
        late_s = 0.0
        scraping = serving(lambda: service.report(0.0 if late_s else PATIENCE_S), LoopCollector(service))
        wait_until(lambda: scraped(scraping)["wiresum_ready"] == [({}, 1.0)], "a job could begin")
        assert service._loop is not None
        service._loop.call_soon_threadsafe(held.wait, PATIENCE_S)
        late_s = LAG_S_MAX + 1.0
        clock.now += TICK_S + late_s
        found = scraped(scraping)
        assert found["wiresum_event_loop_lag_seconds"] == [({}, pytest.approx(late_s))]
        assert found["wiresum_ready"] == [({}, 0.0)]
        assert found["wiresum_up"] == [({}, 0.0)]
        held.set()
        late_s = 0.0
        wait_until(lambda: scraped(scraping)["wiresum_up"] == [({}, 1.0)], "it reports again")
        ((_, worst_s),) = scraped(scraping)["wiresum_event_loop_lag_seconds"]
        assert worst_s == pytest.approx(LAG_S_MAX + 1.0), "a later scrape sees it, too"
    finally:
        held.set()
        service.stop(0.1)


def test_certificates_are_exported_as_their_files_are_now(serving: Serve, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "test")
    holder = Holder("controller", Claims(frozenset({"controller"})), ("127.0.0.1",))
    tls = tmp_path / "tls"
    authority.issue(holder, tls, 10)
    directories = {"service": tls, "switch leaf": tmp_path / "none", "switch spine": None}
    scraping = serving(join.Report, CertificateCollector(directories))

    def expiry(which: str, file: str = "tls.crt") -> float:
        samples = scraped(scraping)["wiresum_certificate_expires_timestamp_seconds"]
        (found,) = (value for labels, value in samples if labels == {"which": which, "file": file})
        return found

    assert expiry("service") == show(tls / "tls.crt").expires_at.timestamp()
    assert expiry("service", "ca.crt") == show(tmp_path / "ca/ca.crt").expires_at.timestamp()
    assert expiry("switch leaf") == expiry("switch leaf", "ca.crt") == 0, "it cannot be read"
    authority.renew(tls, 20)
    assert expiry("service") == show(tls / "tls.crt").expires_at.timestamp(), "it was renewed"
    shutil.copy(tls / "tls.crt", tmp_path / "short")
    with (tls / "ca.crt").open("a") as file:
        file.write((tmp_path / "short").read_text())
    assert expiry("service", "ca.crt") == expiry("service"), "of several the one that expires first"


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"cannot serve metrics at 127\.0\.0\.1:.* Choose another"):
            metrics.serve("127.0.0.1", taken.getsockname()[1])


def test_a_closed_server_does_not_answer(serving: Serve) -> None:
    server = serving(example_report)
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        scraped(server)


def test_records_set_aside_are_counted(serving: Callable[[Callable[[], join.Report]], MetricsServer]) -> None:
    for count in (0, 2):
        found = scraped(serving(lambda count=count: join.Report(set_aside=count * [join.SetAsideRecord(name="x")])))
        assert found["wiresum_records_set_aside"] == [({}, count)]
