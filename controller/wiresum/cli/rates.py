"""Rates, from two reports of a service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wiresum import join

REFUSED = ("out_of_lease", "unknown", "malformed")
"""Reasons for which the switch refuses a packet. No worker of the job sends such packets."""
LATE = ("duplicate", "stale")
BITS_PER_LANE = 32
HEARTBEAT_LATE_MS = 2000
"""Four heartbeats: fewer may be late at a busy host."""


@dataclass(frozen=True)
class Sample:
    """A report, and when it came, in seconds of the monotonic clock."""

    report: join.Report
    taken_at: float


@dataclass(frozen=True)
class JobRates:
    """Rates of a job, per second."""

    packets: float
    results: float
    gbit: float
    """10^9 bits of sums that each worker got back: results times the payload of a full packet. The rate is an upper
    bound, since some results carry no words."""
    resent: float
    late: float
    refused: float
    contributions: tuple[float, ...]
    """Packets of each worker, in the order of the report; empty: not known."""


Key = tuple[str, str, int]
Rates = Mapping[Key, JobRates]


def key_of(job: join.JobReport) -> Key:
    """Identifies a job in two reports. A later job may have its name or its number; a job that has both counts from
    zero."""
    return job.switch_name, job.name, job.job


def rates_of(before: Sample | None, now: Sample) -> Rates:
    """The rates of each job by `key_of`. A job that was not in the earlier report, whose counters went back, or whose
    switch does not report them, is absent."""
    if before is None or now.taken_at <= before.taken_at:
        return {}
    seconds = now.taken_at - before.taken_at
    earlier = {key_of(job): job for job in before.report.jobs}
    found = {}
    for job in now.report.jobs:
        old = earlier.get(key_of(job))
        if old is None or old.uncounted or job.uncounted:
            continue
        if (rates := _rates(old, job, seconds)) is not None:
            found[key_of(job)] = rates
    return found


def stray_rate(before: Sample | None, now: Sample, switch_name: str) -> float | None:
    """Packets of no job that came to a switch, per second; None: not known yet, or the switch does not report them."""
    if before is None or now.taken_at <= before.taken_at:
        return None
    counts: list[int] = [
        sum(switch.stray_packets.values())
        for sample in (before, now)
        for switch in sample.report.switches
        if switch.name == switch_name and not switch.uncounted
    ]
    if len(counts) != 2 or counts[1] < counts[0]:
        return None
    return (counts[1] - counts[0]) / (now.taken_at - before.taken_at)


def _rates(old: join.JobReport, job: join.JobReport, seconds: float) -> JobRates | None:
    steps: dict[str, int] = {reason: count - old.packets.get(reason, 0) for reason, count in job.packets.items()}
    results: int = job.results - old.results
    if results < 0 or any(step < 0 for step in steps.values()):
        return None

    def of(*reasons: str) -> float:
        count: int = sum(steps.get(reason, 0) for reason in reasons)
        return count / seconds

    return JobRates(
        packets=sum(steps.values()) / seconds,
        results=results / seconds,
        gbit=results * job.lanes * BITS_PER_LANE / seconds / 1e9,
        resent=of("resent"),
        late=of(*LATE),
        refused=of(*REFUSED),
        contributions=_contributions(old, job, seconds),
    )


def _contributions(old: join.JobReport, job: join.JobReport, seconds: float) -> tuple[float, ...]:
    if len(old.workers) != len(job.workers):
        return ()
    return tuple(
        max(0.0, (worker.contributions - before.contributions) / seconds)
        for before, worker in zip(old.workers, job.workers, strict=True)
    )
