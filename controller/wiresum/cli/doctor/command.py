"""`wiresum doctor`: says what is wrong with this host, a switch or a job, and what to do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from wiresum.cli.doctor.finding import COLOURS, Finding, Level, note, passed, problem
from wiresum.cli.options import ipv4, json_option
from wiresum.cli.rates import Sample
from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.join import hosts

if TYPE_CHECKING:
    from wiresum.agent import AgentConfig

SUBJECTS = ("host", "switch", "path", "job")
WATCHED_S = 1.5
"""Time between the two reports that are compared: three heartbeats."""

EPILOG = """\b
Examples:
  wiresum doctor
  wiresum doctor --switch 10.0.0.1:43487 --job night
  wiresum doctor --check host --check path
  wiresum doctor --json | jq '.findings[] | select(.level != "ok")'

\b
Exit status: 0, it works (warnings may say why it is slow); 1, something does not work.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--check",
    "subjects",
    multiple=True,
    type=click.Choice(SUBJECTS),
    help="Look at this only; may be given several times.  [default: all]",
)
@click.option("--job", default="", metavar="NAME", help="Look at this job only.")
@click.option(
    "--address",
    metavar="IPV4",
    envvar="WIRESUM_ADDRESS",
    show_envvar=True,
    callback=ipv4,
    help="This host's IPv4 address for data.  [default: the one that routes to the switch]",
)
@click.option(
    "--size",
    "mebibytes",
    metavar="MIB",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="How much is summed through the switch.",
)
@json_option
@service_options
@click.pass_context
def doctor(
    context: click.Context,
    service: Service,
    subjects: tuple[str, ...],
    job: str,
    address: str,
    mebibytes: int,
    as_json: bool,
) -> None:
    """Find out what is wrong with this host, a switch, a job.

    Run the doctor where a worker runs, with the worker's settings. It examines each of several aggregators. HOST:
    processor, buffers, MTU. SWITCH: whether it is reachable, certificates are valid, and slots are free. PATH: joins a
    job of its own and sums a tensor through the switch. JOB: which workers are missing, slow or silent. Nothing is
    changed, but the tensor uses the network.
    """
    found: list[tuple[str, Finding]] = []
    for subject in subjects or SUBJECTS:
        if not as_json:
            click.secho(subject, bold=True)
        for finding in _examine(subject, service, job, address, mebibytes):
            if not as_json:
                _show(finding)
            found.append((subject, finding))
    findings = [finding for _, finding in found]
    if as_json:
        listed = [{"subject": subject} | finding.as_dict() for subject, finding in found]
        click.echo(json.dumps({"passed": passed(findings), "findings": listed}, indent=2))
    else:
        click.echo(_summary(findings))
    context.exit(0 if passed(findings) else 1)


def _examine(subject: str, service: Service, job: str, address: str, mebibytes: int) -> Iterator[Finding]:
    # Imported here: `wiresum doctor --help` should not wait for the native agent.
    from wiresum.cli.doctor import host, path, switch

    if subject == "switch":
        for aggregator in service.aggregators():
            yield from switch.findings(aggregator)
    elif subject == "job":
        yield from _examine_jobs(service, job)
    elif subject == "host":
        found: list[Finding] = []
        for aggregator in service.aggregators():
            found += [finding for finding in _examine_host(aggregator, address) if finding not in found]
        yield from found
    elif (config := _agent_config(service, address)).transport_kind == "dpdk":
        alone = "no sum was tried: DPDK drives its ports for one worker, and a sum takes two"
        yield note("sum", alone)
    else:
        # The sum takes two workers, and AF_XDP serves one. Plain sockets use the same path.
        config = replace(config, transport="udp")
        try:
            facts = [host.gather(_control_address(part), address) for part in service.aggregators()]
        except OSError as error:
            yield _no_way(service, error)
        else:
            yield from path.findings(config, {each.interface for each in facts}, mebibytes, service)


def _examine_host(aggregator: Service, address: str) -> Iterator[Finding]:
    from wiresum.cli.doctor import host, transport

    config = _agent_config(aggregator, address)
    try:
        # The kernel does not know the address that DPDK gives to a port.
        facts = host.gather(_control_address(aggregator), "" if config.transport_kind == "dpdk" else address)
    except OSError as error:
        yield _no_way(aggregator, error)
        return
    yield from host.findings(facts, config.transport_kind)
    yield from transport.findings(config, config.address or facts.address)


def _examine_jobs(service: Service, name: str) -> Iterator[Finding]:
    from wiresum.cli.doctor import job

    try:
        before = Sample(service.report(), service.timing.now())
        service.timing.sleep(WATCHED_S)
        yield from job.findings(before, Sample(service.report(), service.timing.now()), name)
    except ServiceError as error:
        found = note if error.code == "PERMISSION_DENIED" else problem
        yield found("report", f"nothing can be said about jobs: {error.message}")


def _control_address(service: Service) -> str:
    """IPv4 address of the first endpoint. Raises `OSError`."""
    return hosts.addresses_of(service.targets[0].rpartition(":")[0], socket.AF_INET)[0]


def _agent_config(service: Service, address: str) -> AgentConfig:
    """The settings of a worker on this host, without the token of its job."""
    from wiresum.agent import AgentConfig

    return AgentConfig.from_environment(
        switch=service.switch,
        tls=service.tls,
        insecure=service.insecure,
        address=address,
        job_token="",
    )


def _no_way(service: Service, error: OSError) -> Finding:
    return problem(
        "route",
        f"cannot reach {service.switch} from here: {error.strerror or error}",
        "neither control nor data would get through",
        "does the name resolve (getent hosts), is the network up (ip route get), and is WIRESUM_ADDRESS, if it is set, "
        "an address of this host (ip address)?",
    )


def _show(finding: Finding) -> None:
    word = f"  {finding.level.value}"
    click.echo(click.style(word, fg=COLOURS[finding.level]) + finding.text()[len(word) :])


def _summary(found: Sequence[Finding]) -> str:
    levels = [finding.level for finding in found]
    problems, warnings = (_several(levels.count(level), level) for level in (Level.PROBLEM, Level.WARNING))
    if not passed(found):
        return f"\n{problems}, {warnings}: begin with the first problem"
    if Level.WARNING in levels:
        return f"\nit works, with {warnings}"
    notes = _several(levels.count(Level.NOTE), Level.NOTE)
    return f"\nit works, with {notes}" if Level.NOTE in levels else "\nit works, and nothing is amiss"


def _several(count: int, level: Level) -> str:
    return f"{count} {level.value}{'s' * (count != 1)}"
