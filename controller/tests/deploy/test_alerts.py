"""Each alert fires on its cause, ends with it, asks for metrics that the services have, and has its section in
docs/runbook.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from wiresum import join
from wiresum.controller import JoinServer, metrics
from wiresum.controller.metrics import CertificateCollector, LoopCollector, ReportCollector
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.controller.service.lag import LoopLag
from wiresum.switch.metrics import DataplaneCollector
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.controller import Client
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.promql import Rule, Scrapes, evaluate, seconds, selectors

pytestmark = pytest.mark.slow

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the alerts are not read")

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
RUNBOOK = (DEPLOY.parents[1] / "docs/runbook.md").read_text()
SCRAPE_S = 15.0
BEGAN_AT = time.time()
"""Where virtual time begins: certificates have real dates."""


# ---- the page


def test_every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() -> None:
    sections = re.findall(r"^## (Wiresum\w+)$", RUNBOOK, re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES], "in the same order"
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_section_says_what_it_means_what_to_look_at_and_what_to_do(rule: dict[str, Any]) -> None:
    section = RUNBOOK.partition(f"\n## {rule['alert']}\n")[2].partition("\n## ")[0]
    assert [*re.findall(r"^\*\*(\w[\w ]+)\.\*\*", section, re.MULTILINE)] == ["Look", "Do"]
    assert re.search(r"`wiresum |`systemctl |`journalctl |^```", section, re.MULTILINE), "a command, as typed"


def test_prometheus_accepts_the_rules() -> None:
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", str(DEPLOY / "alerts.yml")], check=True, timeout=PATIENCE_S)
    for rule in RULES:
        evaluate(rule["expr"], Scrapes(), BEGAN_AT)


def test_the_debian_package_has_the_rules() -> None:
    assert '"$deploy"/*.yml' in (DEPLOY.parents[1] / ".ci/deb").read_text()


# ---- the metrics


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each number of days."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.create(folder / "ca", "test")
    for days in (10, 100):
        authority.issue(
            Holder("controller", Claims(frozenset({"controller"})), ("127.0.0.1",)), folder / f"{days}", days
        )
    (folder / "unreadable").mkdir()
    (folder / "short").mkdir()
    for name in ("ca.crt", "tls.crt"):
        shutil.copy(folder / "10/tls.crt", folder / "short" / name)
    return folder


@pytest.fixture(scope="module")
def scraped(tls: Path) -> dict[str, list[dict[str, str]]]:
    """The labels of all samples that a software switch with a service and a job really gives, by name."""
    with contextlib.ExitStack() as cleanup:
        device = SoftwareSwitch(port=0, threads=1)
        cleanup.callback(device.close)
        server = JoinServer(device)
        client = Client(server.start("127.0.0.1", 0))
        cleanup.callback(server.stop, 0.1)
        cleanup.callback(client.close)
        client.join(job_name="night")
        found: dict[str, list[dict[str, str]]] = {}
        serving = metrics.serve(
            "127.0.0.1", 0, DataplaneCollector(device.stats), CertificateCollector({"service": tls / "100"}),
            LoopCollector(server), ReportCollector(server.report),
        )  # fmt: skip
        cleanup.callback(serving.close)
        with urllib.request.urlopen(f"http://127.0.0.1:{serving.port}/metrics", timeout=PATIENCE_S) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                found.setdefault(family.name, [])
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample.labels)
        return found


def test_alerts_and_dashboard_ask_for_metrics_and_labels_that_a_service_has(
    scraped: dict[str, list[dict[str, str]]],
) -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    asked += [rule["expr"] for rule in RULES]
    assert len(asked) > 30
    for name, matchers in (each for expression in asked for each in selectors(expression)):
        assert name in scraped or f"{name}_total" in scraped, f"no service has {name}"
        for label in matchers if any(scraped.get(name, ())) else ():
            assert all(label in labels for labels in scraped[name]), f"{name} has no label {label}"


def test_refusals_that_an_alert_asks_for_are_counted_from_zero(scraped: dict[str, list[dict[str, str]]]) -> None:
    """Prometheus sees no rise in a series that begins with its first refusal."""
    there = {labels["reason"] for labels in scraped["wiresum_refusals_total"]}
    for rule in RULES:
        for name, matchers in selectors(rule["expr"]):
            if name == "wiresum_refusals_total":
                assert set(matchers["reason"].split("|")) <= there


# ---- causes


class Constant(Collector):
    """Samples of other collectors, or of other processes."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class Service(NamedTuple):
    """As far as LoopCollector knows one."""

    lag: LoopLag
    why_not_ready: str = ""


class Cause(NamedTuple):
    make: Callable[[bool, float, Path], list[Collector]]
    """What is scraped, if it is there or not, so many seconds after the begin. The path: TLS directories."""
    labels: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """Some of the alert's."""


def reported(wrong: join.Report, right: join.Report | None = None) -> Cause:
    right = right or join.Report(service=join.ServiceReport(role="active"))
    return Cause(lambda is_wrong, _at, _tls: [ReportCollector(lambda: wrong if is_wrong else right)])


def service(**fields: Any) -> join.Report:
    return join.Report(service=join.ServiceReport(role="active", **fields))


def with_switch(**fields: Any) -> join.Report:
    return join.Report(switches=[join.SwitchReport(name="leaf", **fields)], service=join.ServiceReport(role="active"))


def with_job(*workers: join.WorkerReport, **fields: Any) -> join.Report:
    return join.Report(jobs=[join.JobReport(name="night", switch_name="leaf", workers=workers, **fields)])


def rising(per_second: float, make: Callable[[int], Metric | join.Report]) -> Cause:
    """A counter that rises while something is wrong."""

    class Rising:
        count, before = 0.0, 0.0

        def __call__(self, is_wrong: bool, at: float, _tls: Path) -> list[Collector]:
            self.count += is_wrong * per_second * (at - self.before)
            self.before = at
            made = make(int(self.count))
            return [ReportCollector(lambda: made) if isinstance(made, join.Report) else Constant(made)]

    return Cause(Rising())


def refused(per_second: float, reason: str) -> Cause:
    return rising(per_second, lambda count: service(refusals={reason: count}))


def failing() -> join.Report:
    raise RuntimeError("the loop is held up")


def late(is_wrong: bool, _at: float, _tls: Path) -> list[Collector]:
    now = [0.0]
    lag = LoopLag(0.1, lambda: now[0])
    now[0] = 1.6 if is_wrong else 0.2
    lag.beat()
    return [LoopCollector(Service(lag))]  # type: ignore[arg-type]


def not_ready(is_wrong: bool, _at: float, _tls: Path) -> list[Collector]:
    return [LoopCollector(Service(LoopLag(0.1), "the disk is full" if is_wrong else ""))]  # type: ignore[arg-type]


def memory(is_wrong: bool, _at: float, _tls: Path) -> list[Collector]:
    size = 700e6 if is_wrong else 100e6
    return [
        Constant(GaugeMetricFamily("process_resident_memory_bytes", "", size), GaugeMetricFamily("wiresum_up", "", 1))
    ]


def certificates(wrong: str) -> Callable[[bool, float, Path], list[Collector]]:
    return lambda is_wrong, _at, tls: [CertificateCollector({"service": tls / (wrong if is_wrong else "100")})]


def with_certificate(left_s: float) -> join.Report:
    shown = join.WorkerReport(state="attending", certificate_expires_at=BEGAN_AT + left_s)
    return with_job(join.WorkerReport(state="attending"), shown)


FULL = [join.SwitchReport(name="leaf", room={"slots": 100}, room_taken={"slots": 95})]
WAITING = [join.JobReport(name="next", state="queued", queue_position=1)]
CAUSES: dict[str, list[Cause]] = {
    "WiresumServiceDown": [
        Cause(lambda is_wrong, _at, _tls: [ReportCollector(failing if is_wrong else service)]),
        Cause(lambda is_wrong, _at, _tls: [] if is_wrong else [ReportCollector(service)]),
        reported(join.Report(service=join.ServiceReport(role="standby"))),
    ],
    "WiresumNotReady": [Cause(not_ready)],
    "WiresumEventLoopLate": [Cause(late)],
    "WiresumMemory": [Cause(memory)],
    "WiresumStateNotWritable": [reported(service(trouble="the disk is full"))],
    "WiresumStatePast": [reported(service(past="an old copy"))],
    "WiresumRecordSetAside": [
        Cause(lambda is_wrong, _at, _tls: [Constant(GaugeMetricFamily("wiresum_records_set_aside", "", is_wrong))])
    ],
    "WiresumAuditLost": [
        rising(0.02, lambda count: CounterMetricFamily("wiresum_audit_lines_lost", "", count)),
        Cause(lambda is_wrong, _at, _tls: [Constant(GaugeMetricFamily("wiresum_audit_writable", "", not is_wrong))]),
    ],
    "WiresumCertificateExpires": [Cause(certificates("10")), Cause(certificates("unreadable"), {"which": "service"})],
    "WiresumAuthorityExpires": [Cause(certificates("short"), {"which": "service"})],
    "WiresumWorkerCertificateExpires": [reported(with_certificate(40_000), with_certificate(400_000))],
    "WiresumConnectionsRefused": [refused(1, "connections")],
    "WiresumCallsRefused": [refused(9, "calls"), refused(9, "rate")],
    "WiresumRefused": [refused(0.01, "permission_denied"), refused(0.01, "revoked")],
    "WiresumSwitchDown": [reported(with_switch(state="unreachable"), with_switch(state="ready"))],
    "WiresumSwitchSlow": [reported(with_switch(state="slow", uncounted=True), with_switch(state="ready"))],
    "WiresumHeartbeatLate": [reported(with_job(join.WorkerReport(state="attending", heartbeat_age_ms=12_000)))],
    "WiresumSwitchFull": [
        reported(
            join.Report(jobs=WAITING, switches=FULL),
            join.Report(switches=FULL),
        )
    ],
    "WiresumJobWaits": [reported(join.Report(jobs=WAITING))],
    "WiresumForeignPackets": [rising(0.1, lambda count: with_job(packets={"malformed": count}))],
    "WiresumStrayPackets": [rising(200, lambda count: with_switch(stray_packets={"unknown": count}))],
    "WiresumSumsWrong": [
        rising(0.01, lambda count: with_switch(sums_wrong=count)),
        rising(9, lambda count: with_switch(sums_wrong=count)),
    ],
    "WiresumNotSent": [rising(3, lambda count: CounterMetricFamily("wiresum_dataplane_send_failures", "", count))],
}


def exposed(collectors: list[Collector]) -> str:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode()


class Watched:
    """A service that is scraped in virtual time."""

    def __init__(self, cause: Cause, rule: Rule, tls: Path) -> None:
        self.cause, self.rule, self._tls = cause, rule, tls
        self.scrapes, self.now = Scrapes(), BEGAN_AT

    def run(self, span_s: float, *, wrong: bool) -> None:
        for _ in range(int(span_s / SCRAPE_S)):
            self.now += SCRAPE_S
            text = exposed(self.cause.make(wrong, self.now - BEGAN_AT, self._tls))
            self.scrapes.add(self.now, text, job="wiresum", instance="10.0.0.5:9487")

    def fires(self) -> list[dict[str, str]]:
        return self.rule.fires(self.scrapes, self.now, every_s=SCRAPE_S)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_fires_on_each_of_its_causes_and_ends_with_it(rule: dict[str, Any], tls: Path) -> None:
    for cause in CAUSES[rule["alert"]]:
        watched = Watched(cause, Rule(rule["expr"], seconds(rule.get("for", "0s"))), tls)
        watched.run(600, wrong=False)
        assert watched.fires() == [], "nothing is wrong"
        watched.run(watched.rule.for_s + 330, wrong=True)
        fired = watched.fires()
        assert fired
        for labels in fired:
            asked = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
            assert set(asked) <= set(labels), "its text names labels that the alert has"
            assert cause.labels.items() <= labels.items()
        watched.run(960, wrong=False)
        assert watched.fires() == [], "it ends"


def test_every_alert_has_a_cause() -> None:
    assert list(CAUSES) == [rule["alert"] for rule in RULES]


def test_a_large_software_switch_is_no_controller_with_too_much_memory() -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == "WiresumMemory")
    scrapes = Scrapes()
    families = [GaugeMetricFamily(name, "", value) for name, value in (
        ("process_resident_memory_bytes", 4e9), ("wiresum_up", 1), ("wiresum_dataplane_threads", 4),
    )]  # fmt: skip
    scrapes.add(BEGAN_AT, exposed([Constant(*families)]), job="wiresum", instance="10.0.0.1:9487")
    assert evaluate(rule["expr"], scrapes, BEGAN_AT) == {}
