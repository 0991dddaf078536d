"""Figures of the data plane for Prometheus, over all jobs.

Figures of single jobs come from the join service (wiresum.controller.metrics), which knows their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wiresum.switch.software_switch import SwitchStats

FIGURES: dict[str, tuple[str, type[CounterMetricFamily | GaugeMetricFamily], Callable[[SwitchStats], float]]] = {
    "jobs": ("Jobs that are installed.", GaugeMetricFamily, lambda stats: stats.jobs_now),
    "jobs_ended": ("Jobs that have ended.", CounterMetricFamily, lambda stats: stats.jobs_ended),
    "threads": ("Data threads.", GaugeMetricFamily, lambda stats: stats.threads),
    "results": ("Cells completed.", CounterMetricFamily, lambda stats: stats.results),
    "datagrams_received": ("Datagrams taken.", CounterMetricFamily, lambda stats: stats.datagrams_received),
    "datagrams_passed": (
        "Datagrams that came to another data thread than theirs, and were passed on.",
        CounterMetricFamily,
        lambda stats: stats.datagrams_passed,
    ),
    "datagrams_sent": ("Datagrams sent.", CounterMetricFamily, lambda stats: stats.datagrams_sent),
    "send_failures": ("Datagrams that were not sent.", CounterMetricFamily, lambda stats: stats.send_failures),
    "cpu_seconds": ("Processor time of the data threads.", CounterMetricFamily, lambda stats: stats.cpu_seconds),
}
"""Help text, type and value of each metric, by its name without the prefix wiresum_dataplane_."""


class DataplaneCollector(Collector):
    def __init__(self, stats: Callable[[], SwitchStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the registry asks before there are any figures."""
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, (text, kind, value) in FIGURES.items():
            yield kind(f"wiresum_dataplane_{name}", text, value=value(stats))
        packets = CounterMetricFamily("wiresum_dataplane_packets", "Packets, by reason.", labels=["reason"])
        for reason, count in stats.packets.items():
            packets.add_metric([reason], count)
        yield packets
