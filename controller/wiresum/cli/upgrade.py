"""`wiresum upgrade --check`: says whether a cluster can be upgraded to this installation while jobs run, and in which
order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from wiresum.cli.options import json_option
from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.cli.text import visible
from wiresum.cli.versions import in_words, installed, of_service, of_switch

if TYPE_CHECKING:
    from wiresum import join

PROGRAM = ("switch program", "P4Info digest")
RESTART = "stop, upgrade and start it"

EPILOG = """\b
Examples:
  wiresum upgrade --check --switch 10.0.0.5:43487,10.0.0.6:43487
  wiresum upgrade --check --json | jq '.problems'
"""


@dataclass
class Plan:
    parts: list[str] = field(default_factory=list)
    """A line for each controller and switch, with its versions."""
    steps: list[str] = field(default_factory=list)
    """The steps that are left to do, in this order."""
    lost: list[str] = field(default_factory=list)
    """What running jobs lose by the upgrade."""
    problems: list[str] = field(default_factory=list)
    """Why the upgrade cannot be done while jobs run."""


@click.command(epilog=EPILOG)
@click.option("--check", is_flag=True, required=True, help="Say it, and change nothing: this command never does.")
@json_option
@service_options
def upgrade(service: Service, check: bool, as_json: bool) -> None:
    """Say whether a cluster can be upgraded to this installation while jobs run, in which order, and what they lose.

    Name all its controllers, with commas between them. Each is asked for its versions, and for those of its switches.
    Exits with status 0 if it can be done, and 1 if not.
    """
    reports: dict[str, join.Report | str] = {**service.standbys()}
    for target in [target for target in service.targets if target not in reports]:
        with Service(target, tls=service.tls, insecure=service.insecure) as alone:
            try:
                reports[target] = alone.report()
            except ServiceError as error:
                reports[target] = str(error)
    ours = installed()
    found = plan(reports, ours)
    click.echo(json.dumps({"installed": ours} | asdict(found)) if as_json else visible_lines(found, ours))
    if found.problems:
        raise click.exceptions.Exit(1)


def visible_lines(found: Plan, ours: Mapping[str, str]) -> str:
    lines = [f"this installation: {in_words(ours)}", *found.parts, ""]
    if found.problems:
        lines += ["Do not upgrade it to this installation while jobs run:", *(f"- {p}" for p in found.problems)]
    elif found.steps:
        lines += ["It can be upgraded to this installation while jobs run, in this order:"]
    else:
        lines += ["It is of this installation: nothing is left to do"]
    lines += [f"{number}. {step}" for number, step in enumerate(found.steps, start=1)]
    if found.lost:
        lines += ["What jobs lose:", *(f"- {text}" for text in found.lost)]
    return "\n".join(map(visible, lines))


def plan(reports: Mapping[str, join.Report | str], ours: Mapping[str, str]) -> Plan:
    """Plans an upgrade. `reports`: the report of each controller, or why it gave none."""
    found = Plan()
    serving: dict[str, join.Report] = {}
    standbys: dict[str, join.Report] = {}
    for target, report in reports.items():
        if isinstance(report, str):
            found.parts.append(f"{target}: no answer")
            found.problems.append(report)
            continue
        found.parts.append(f"{target}, {report.service.role}: {in_words(of_service(report.service))}")
        (standbys if report.service.role == "standby" else serving)[target] = report
    if len(serving) != 1:
        found.problems.append(
            f"{len(serving) or 'none'} of these serves as the active controller, and exactly one should: name all "
            f"controllers of one cluster with --switch or WIRESUM_SWITCH"
        )
        return found
    ((active, report),) = serving.items()
    found.parts += [f"{s.name}, {s.kind}, {s.state}: {of_switch(s) or '?'}" for s in report.switches]
    theirs = of_service(report.service)
    found.problems += _problems(report, theirs, ours)
    if not found.problems:
        others = [target for target, each in standbys.items() if of_service(each.service) != ours]
        found.steps += _steps(report, active if theirs != ours else "", others, ours, alone=not standbys)
        found.lost += _lost(report, theirs, ours)
    return found


def _problems(report: join.Report, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    running = len(report.jobs)
    for what, todo in (
        ("join protocol", "their workers could not be told from hostile ones: end these jobs first (wiresum jobs end)"),
        ("state schema", "this installation could not read what it must know of them: end these jobs first, and move "
         "the state away"),
    ):  # fmt: skip
        if running and theirs[what] != ours[what]:
            yield f"{running} jobs run or wait, and the {what} is {theirs[what]} there, and {ours[what]} here: {todo}"
    if report.service.trouble:
        yield f"the active controller is in trouble: {report.service.trouble}"
    for switch in report.switches:
        if switch.state == "unreachable":
            yield f"{switch.name} is unreachable: {switch.trouble}"


def _steps(
    report: join.Report, active: str, standbys: list[str], ours: Mapping[str, str], *, alone: bool
) -> Iterator[str]:
    """Yields the steps. `active` and `standbys`: the controllers to upgrade."""
    switches = _older(report, ours)
    first = ""
    if active and len(switches) > 1 and any(of_service(report.service)[what] != ours[what] for what in PROGRAM):
        # Jobs can use this switch as soon as an upgraded controller serves, which cannot use the others.
        first = min(switches, key=lambda name: switches[name])
        yield f"{first}: wiresum jobs drain {first} --wait; {RESTART}, and leave it drained"
    for target in standbys:
        yield f"the standby at {target}: {RESTART}"
    if active and all(map(_is_served, report.switches)):
        yield f"the switch at {active}: {RESTART} within 30 s, so that its jobs go on"
    elif active and alone:
        yield f"the controller at {active}: {RESTART}; joins wait meanwhile"
    elif active:
        yield f"the active controller at {active}: stop it, so that a standby takes over; upgrade and start it"
    if first:
        yield f"{first}: wiresum jobs resume {first}"
    for name in switches:
        if name != first:
            yield f"{name}: wiresum jobs drain {name} --wait; {RESTART}; wiresum jobs resume {name}"


def _older(report: join.Report, ours: Mapping[str, str]) -> dict[str, int]:
    """The software switches to upgrade, and how many jobs each has."""
    return {
        switch.name: switch.jobs
        for switch in report.switches
        if switch.kind.startswith("software") and switch.software_version != ours["wiresum"] and not _is_served(switch)
    }


def _is_served(switch: join.SwitchReport) -> bool:
    """True if the switch is served by its own process; a switch that a controller programs has a switch program."""
    return bool(switch.software_version) and not switch.program_version


def _lost(report: join.Report, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    if len({switch.part_of or switch.name for switch in report.switches}) == 1 and _older(report, ours):
        yield (
            f"there is no other switch than {report.switches[0].name}: do not wait until it is drained. Its jobs stand "
            f"still while it is started again, and end if that takes 30 s"
        )
    if all(theirs[what] == ours[what] for what in PROGRAM):
        return
    for name in dict.fromkeys(switch.part_of or switch.name for switch in report.switches if switch.kind == "bmv2"):
        yield f"the upgraded controller loads {name} anew: its jobs move, and those that find no place in 30 s end"
    for name in dict.fromkeys(switch.part_of or switch.name for switch in report.switches if switch.kind == "tofino"):
        yield f"{name} needs the program of this release, compiled (docs/tofino_deploy.md); its jobs move likewise"
