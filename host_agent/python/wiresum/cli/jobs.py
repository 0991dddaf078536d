"""`wiresum jobs`: what goes on at a service, and what an operator changes there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.cli.text import as_dict, duration, table, visible

if TYPE_CHECKING:
    from wiresum import join

COLUMNS = (
    "JOB",
    "NAME",
    "STATE",
    "WORKERS",
    "SWITCH",
    "SLOTS",
    "RESULTS",
    "RESENT",
    "DROPPED",
    "AGE",
    "TENANT",
    "CALLER",
)
DROPPED = ("stale", "out_of_lease", "unknown", "malformed")
"""Reasons for which the switch drops a packet that is not a mere duplicate."""
CALL_S_MAX = 10.0
"""A service may have to tell its switch before it answers."""
COMPLETION_S_MAX = 1.0
"""A shell that completes a name waits for it."""

EPILOG = """\b
Examples:
  wiresum jobs
  wiresum jobs --switch 10.0.0.1:43487
  wiresum jobs --json | jq '.jobs[] | select(.state == "queued") | .name'
  wiresum jobs create night --workers 8 --slots 512
  wiresum jobs end night --reason "the cluster is needed"
"""

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, with every counter.")
@service_options
@click.pass_context
def jobs(context: click.Context, service: Service, as_json: bool) -> None:
    """List the jobs of a switch or controller; create, end, drain.

    RESULTS are packets with a sum; RESENT, results that a worker had to ask for again; DROPPED, packets that belonged
    to no slot of the job; ?, that the switch does not say. CALLER is who asked for the job first.
    """
    if context.invoked_subcommand is not None:
        return
    report = service.report()
    click.echo(json.dumps(as_dict(report), indent=2) if as_json else _listing(report))


def _listing(report: join.Report) -> str:
    lines = [table([COLUMNS, *(_row(job) for job in report.jobs)])] if report.jobs else ["no jobs"]
    lines += [f"{job.name}: {_waiting(job)}" for job in report.jobs if job.waiting]
    for switch in report.switches:
        state = f"{switch.state} ({switch.trouble})" if switch.trouble else switch.state
        lines.append(
            f"{switch.name}, {switch.kind}, {state}: {switch.slots_free} of {switch.slots_total} slots are free"
        )
    if report.service.trouble:
        lines.append(f"the service is in trouble: {report.service.trouble}; no job begins or ends until that is mended")
    if report.service.role == "standby":
        lines.append("this is a standby: it serves when the active controller is gone")
    return "\n".join([lines[0], *map(visible, lines[1:])])


def _waiting(job: join.JobReport) -> str:
    return f"number {job.queue_position} in the queue, {job.waiting}" if job.queue_position else job.waiting


def _row(job: join.JobReport) -> tuple[str, ...]:
    return (
        str(job.job) if job.slots else "-",
        job.name,
        job.state,
        f"{job.joined}/{job.world_size}",
        job.switch_name or "-",
        f"{job.slot_base}+{job.slots}" if job.slots else "-",
        *(["?"] * 3 if job.uncounted else _counts(job)),
        duration(job.age_seconds),
        job.tenant or "-",
        job.caller or "-",
    )


def _counts(job: join.JobReport) -> list[str]:
    dropped = sum(job.packets.get(reason, 0) for reason in DROPPED)
    return [str(job.results), str(job.packets.get("resent", 0)), str(dropped)]


def complete_job(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the jobs there are, for a shell: none, if nobody answers."""
    states = {job.name: job.state for job in _report_for_shell(context).jobs}  # once, though at several aggregators
    return _for_shell(states, incomplete)


def complete_switch(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the switches there are, for a shell."""
    return _for_shell({switch.name: switch.kind for switch in _report_for_shell(context).switches}, incomplete)


def _for_shell(names: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    """`names`, each with what it is. Quoted, since a shell reads what it inserts, and a service says what it likes."""
    return [
        CompletionItem(shlex.quote(name), help=kind)
        for name, kind in names.items()
        if name.startswith(incomplete) and name.isprintable()
    ]


def _report_for_shell(context: click.Context) -> join.Report:
    from wiresum import join

    options = context.params
    try:
        with Service(
            options.get("switch") or "127.0.0.1", tls=options.get("tls") or "", insecure=bool(options.get("insecure"))
        ) as service:
            return service.report(COMPLETION_S_MAX)
    except ServiceError:
        return join.Report()


@jobs.command(
    epilog="\b\nExample:\n  export WIRESUM_JOB=night WIRESUM_JOB_TOKEN=$(wiresum jobs create night --workers 8)"
)
@click.argument("name")
@click.option("--workers", required=True, type=click.IntRange(1, 32), help="How many will join.")
@click.option("--slots", default=0, type=click.IntRange(0), help="Slots that it gets.  [default: the service's]")
@click.option("--tenant", default="", help="On whose account.")
@click.option("--priority", default=0, type=int, show_default=True, help="When slots are short, the larger goes first.")
@click.option(
    "--on",
    "switch_name",
    default="",
    metavar="SWITCH",
    help="On this switch.  [default: any with room]",
    shell_complete=complete_switch,
)
@click.option(
    "--keep",
    "keep_seconds",
    default=0,
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Forget it if nobody has joined by then.  [default: the service's]",
)
@as_json_option
@service_options
def create(service: Service, as_json: bool, name: str, workers: int, **wanted: str | int) -> None:
    """Keep the name of a job for its workers, and print the token that admits them."""
    from wiresum import join

    request = join.CreateJobRequest(job_name=name, world_size=workers)
    for field, value in wanted.items():  # the options have the names of the fields
        setattr(request, field, value)
    reply = service.tell(lambda stub: stub.CreateJob(request, timeout=CALL_S_MAX))
    click.echo(json.dumps(as_dict(reply)) if as_json else reply.job_token)


@jobs.command(epilog='\b\nExample:\n  wiresum jobs end night --reason "the cluster is needed"')
@click.argument("name", shell_complete=complete_job)
@click.option("--reason", default="an operator ended it", show_default=True, help="What its workers are told.")
@as_json_option
@service_options
def end(service: Service, as_json: bool, name: str, reason: str) -> None:
    """End a job at all its workers, or forget one that waits."""
    from wiresum import join

    request = join.EndJobRequest(job_name=name, reason=reason)
    reply = service.tell(lambda stub: stub.EndJob(request, timeout=CALL_S_MAX))
    click.echo(json.dumps(as_dict(reply)) if as_json else f"job '{name}' ends")


@jobs.command(epilog="\b\nExample:\n  wiresum jobs drain rack1")
@click.argument("name", default="", shell_complete=complete_switch)
@as_json_option
@service_options
def drain(service: Service, as_json: bool, name: str) -> None:
    """Let a switch take no new jobs; those that run go on. NAME may be left out if there is only one."""
    jobs_left = _drain(service, name, as_json=as_json, resume=False)
    if jobs_left is not None:
        click.echo(
            f"it takes no new jobs; {jobs_left} still run there" if jobs_left else "it takes no new jobs, and none run"
        )


@jobs.command(epilog="\b\nExample:\n  wiresum jobs resume rack1")
@click.argument("name", default="", shell_complete=complete_switch)
@as_json_option
@service_options
def resume(service: Service, as_json: bool, name: str) -> None:
    """Let a drained switch take jobs again. NAME may be left out if there is only one."""
    if _drain(service, name, as_json=as_json, resume=True) is not None:
        click.echo("it takes new jobs")


def _drain(service: Service, name: str, *, as_json: bool, resume: bool) -> int | None:
    """How many jobs still run there; None if it has been printed."""
    from wiresum import join

    request = join.DrainRequest(switch_name=name, resume=resume)
    reply = service.tell(lambda stub: stub.Drain(request, timeout=CALL_S_MAX))
    if as_json:
        click.echo(json.dumps(as_dict(reply)))
        return None
    return reply.jobs
