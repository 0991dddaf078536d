"""Turns samples into what `wiresum top` shows, a renderable of `rich`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wiresum.cli.rates import HEARTBEAT_LATE_MS, JobRates, Rates, Sample, key_of, rates_of, stray_rate
from wiresum.cli.text import counted, duration, most_taken, switches_of, visible, workers_of
from wiresum.cli.versions import of_switch
from wiresum.join.trees import packets_behind, silent_switches

if TYPE_CHECKING:
    from wiresum import join

UNKNOWN = "-"
FEW_FREE = 0.1
"""If a smaller share is free of the resource that is most taken, this is a warning."""
GOOD, WARN, BAD, DIM = "green", "yellow", "red", "dim"
STATE_STYLE = {"running": GOOD, "ready": GOOD, "attending": GOOD, "ending": DIM, "left": DIM, "lost": BAD}
STATE_STYLE |= {
    "unreachable": BAD,
    "outdated": BAD,
    "slow": WARN,
    "draining": WARN,
    "queued": WARN,
    "moving": WARN,
    "standby": DIM,
}

SORTS: dict[str, Callable[[join.JobReport, JobRates | None], tuple[object, ...]]] = {
    "results": lambda job, rates: (-(rates.results if rates else 0.0), job.name),
    "packets": lambda job, rates: (-(rates.packets if rates else 0.0), job.name),
    "resent": lambda job, rates: (-(rates.resent if rates else 0.0), job.name),
    "slots": lambda job, rates: (-job.slots, job.name),
    "age": lambda job, rates: (-job.age_seconds, job.name),
    "name": lambda job, rates: (job.name,),
}


@dataclass(frozen=True)
class View:
    sort: str = "results"
    job: str = ""
    """Name of the job whose workers are shown; empty: none."""
    trouble: str = ""
    """Why there is no newer sample; empty: there is one."""
    trouble_s: float = 0.0


def screen(before: Sample | None, now: Sample | None, view: View) -> RenderableType:
    parts: list[RenderableType] = []
    if view.trouble:
        parts.append(Text(f"no answer for {duration(view.trouble_s)}, asking again: {visible(view.trouble)}", BAD))
    if now is None:
        return Group(*parts)
    rates = rates_of(before, now)
    parts += [_service(now.report), _switches(before, now), Text(), _jobs(now.report, rates, view.sort)]
    parts += [Text(visible(f"{job.name}: {job.waiting}"), WARN) for job in now.report.jobs if job.waiting]
    if view.job:
        parts += [Text(), *_workers(now.report, rates, view.job)]
    return Group(*parts)


def _service(report: join.Report) -> Text:
    service = report.service
    states = Counter(job.state for job in report.jobs)
    version = f"wiresum {service.software_version}, " if service.software_version else ""
    text = Text(f"{service.role or 'service'}, {version}up {duration(service.age_seconds)}")
    text.append(f"   jobs: {counted(states) or 'none'}")
    if service.refusals:
        text.append(f"   refused requests: {counted(service.refusals)}", WARN)
    return text


def _switches(before: Sample | None, now: Sample) -> Table:
    table = _table(
        [
            "SWITCH",
            "KIND",
            "BELOW",
            "STATE",
            ">JOBS",
            ">SLOTS FREE",
            "MOST TAKEN",
            ">STRAY/s",
            ">WRONG SUMS",
            "VERSIONS",
            "TROUBLE",
        ]
    )
    for switch in now.report.switches:
        stray = stray_rate(before, now, switch.name)
        table.add_row(
            visible(switch.name),
            switch.kind,
            visible(switch.parent) or UNKNOWN,
            _state(switch.state),
            f"{switch.jobs}/{switch.jobs_max}",
            f"{switch.slots_free}/{switch.slots_total}",
            _most_taken(switch),
            _alarming(stray),
            _alarming(switch.sums_wrong),
            visible(of_switch(switch)) or UNKNOWN,
            Text(visible(switch.trouble), STATE_STYLE.get(switch.state, BAD)),
        )
    return table


def _most_taken(switch: join.SwitchReport) -> Text:
    name, free = most_taken(switch.room, switch.room_taken)
    return Text(f"{visible(name)} {100 * (1 - free):.0f}%" if name else UNKNOWN, WARN if free < FEW_FREE else "")


def _jobs(report: join.Report, rates: Rates, sort: str) -> Table:
    headings = ["JOB", "STATE", ">WORKERS", "SWITCH", ">SLOTS", ">PACKETS/s", ">RESULTS/s", ">GBIT/s", ">RESENT/s"]
    table = _table([*headings, ">LATE/s", ">REFUSED/s", ">AGE"])
    for job in sorted(report.jobs, key=lambda job: SORTS[sort](job, rates.get(key_of(job)))):
        found = rates.get(key_of(job))
        table.add_row(
            visible(job.name),
            _state(job.state),
            workers_of(job),
            visible(switches_of(job.switch_name, len(job.switches))) or UNKNOWN,
            str(job.slots) if job.slots else UNKNOWN,
            *_figures(found),
            duration(job.age_seconds),
        )
    return table


def _figures(rates: JobRates | None) -> list[RenderableType]:
    if rates is None:
        return [UNKNOWN] * 6
    return [
        f"{rates.packets:,.0f}",
        f"{rates.results:,.0f}",
        f"{rates.gbit:.3f}",
        f"{rates.resent:,.0f}",
        f"{rates.late:,.0f}",
        _alarming(rates.refused),
    ]


def _workers(report: join.Report, rates: Rates, name: str) -> list[RenderableType]:
    found = [job for job in report.jobs if job.name == name]
    if not found:
        return [Text(f"there is no job '{name}'", WARN)]
    return [part for job in found for part in _workers_of(job, rates.get(key_of(job)))]


def _workers_of(job: join.JobReport, rates: JobRates | None) -> list[RenderableType]:
    headings = [">RANK", "HOST", ">PROCESS", "ADDRESS", "SWITCH", "STATE", ">HEARTBEAT", ">CONTRIBUTIONS", ">PER s"]
    table = _table([*headings, ">BEHIND", ">WRONG SUMS"])
    newest = max((worker.contributions for worker in job.workers), default=0)
    silent = silent_switches(job.switches)
    for index, worker in enumerate(job.workers):
        late = worker.heartbeat_age_ms > HEARTBEAT_LATE_MS and worker.state == "attending"
        table.add_row(
            str(worker.peer.rank),
            visible(worker.peer.host_name),
            str(worker.peer.process_id),
            f"{worker.endpoint.address}:{worker.endpoint.port}",
            visible(worker.switch_name) or UNKNOWN,
            _state(worker.state),
            Text(f"{worker.heartbeat_age_ms} ms", WARN if late else ""),
            "?" if worker.switch_name in silent else str(worker.contributions),
            f"{rates.contributions[index]:,.0f}" if rates and rates.contributions else UNKNOWN,
            "?" if silent else str(newest - worker.contributions),
            _alarming(worker.sums_wrong),
        )
    where = f" at {visible(job.switch_name)}" if job.switch_name else ""
    parts: list[RenderableType] = [Text(f"workers of '{visible(job.name)}'{where}", "bold"), table]
    if len(job.switches) > 1:
        parts += [Text(), Text(f"switches of '{visible(job.name)}'", "bold"), _tree_of(job)]
    return parts


def _tree_of(job: join.JobReport) -> Table:
    """A table of the job's switches. BEHIND: how many packets a switch's sums lag at its parent, compared with the
    parent's other inputs."""
    table = _table(["SWITCH", "BELOW", ">WORKERS", ">SLOTS", "HAS", ">RESULTS", ">RESENT", ">SUMS UP", ">BEHIND"])
    behind = packets_behind(job.switches, job.workers)
    silent = silent_switches(job.switches)
    for node in job.switches:
        lag = behind.get(node.switch_name)
        sums_up = "?" if node.parent in silent else str(node.contributions)
        table.add_row(
            visible(node.switch_name),
            visible(node.parent) or UNKNOWN,
            str(node.workers),
            f"{node.slot_base}+{job.slots}",
            node.phase,
            *(["?"] * 2 if node.uncounted else [str(node.results), str(node.packets.get("resent", 0))]),
            sums_up if node.parent else UNKNOWN,
            UNKNOWN if lag is None else str(lag),
        )
    return table


def _table(headings: Sequence[str]) -> Table:
    """An empty table. A heading that begins with > is that of a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading.lstrip(">"), justify="right" if heading[0] == ">" else "left", no_wrap=True)
    return table


def _state(state: str) -> Text:
    return Text(state, STATE_STYLE.get(state, ""))


def _alarming(rate: float | None) -> RenderableType:
    """Shows a rate or a count that should be zero; None: unknown."""
    return UNKNOWN if rate is None else Text(f"{rate:,.0f}", WARN if rate else "")
