"""`wiresum jobs`: lists a service's jobs, and creates, ends and drains."""

from __future__ import annotations

import fnmatch
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from wiresum.cli.options import json_option
from wiresum.cli.rates import REFUSED
from wiresum.cli.service import Service, ServiceError, service_options
from wiresum.cli.text import as_dict, duration, scarcest, switches_of, table, visible, workers_of
from wiresum.cli.versions import of_controller, of_switch

if TYPE_CHECKING:
    from wiresum import join

OF_CALLER = ("TENANT", "CALLER")
COLUMNS = ("JOB", "NAME", "STATE", "WORKERS", "SWITCH", "SLOTS", "RESULTS", "RESENT", "DROPPED", "AGE", *OF_CALLER)
ENDED_COLUMNS = ("ENDED", "NAME", "OUTCOME", "WORKERS", "SWITCH", "AGE", *OF_CALLER, "REASON")
DROPPED = (*REFUSED, "stale")
"""Reasons for which the switch drops a packet that is no duplicate."""
CALL_S_MAX = 10.0
"""A service may have to write to its switch before it answers."""
DRAIN_S_MAX = 3600
DRAIN_LOOK_S = 1.0
PATTERN_CHARACTERS = "*?["
"""Characters that make an argument a pattern; names of jobs have none of these."""
UNUSABLE = ("unreachable", "outdated")
"""States of a switch in which it cannot be programmed."""
NAMES_SHOWN_MAX = 8
"""How many of the jobs that a drain waits for are named."""

EPILOG = """\b
Examples:
  wiresum jobs
  wiresum jobs --switch 10.0.0.1:43487
  wiresum jobs --json | jq '.jobs[] | select(.state == "queued") | .name'
  wiresum jobs --ended                      what became of the jobs that are over
  wiresum jobs create night --workers 8 --slots 512
  wiresum jobs end night --reason "the cluster is needed"
  wiresum jobs discard night          of a job that the service cannot go on with
"""


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, with every counter.")
@click.option(
    "--ended", is_flag=True, help="List the jobs that are over instead, the newest first, and why they ended."
)
@service_options
@click.pass_context
def jobs(context: click.Context, service: Service, as_json: bool, ended: bool) -> None:
    """List the jobs of a switch or controller; create, end, drain.

    SLOTS 64+256: 256 slots, from number 64. RESULTS: packets with a sum. RESENT: results that a worker asked for
    again. DROPPED: packets that belong to no slot of the job. A ? means that the switch does not report the number.
    spine+2 is a tree of three switches: spine, and two below it, with as many SLOTS at each. 8/8 in 2 WORKERS: all
    eight have joined, and those of one host share a stream. CALLER: who asked for the job first. TENANT: without
    one in its certificate, a caller is a tenant of its own.

    With --ended and a worker's certificate you see the jobs of its own tenants; operators see all.
    """
    if context.invoked_subcommand is not None:
        return
    found = service.ended(CALL_S_MAX) if ended else service.report()
    if as_json:
        click.echo(json.dumps(as_dict(found), indent=2))
    else:
        click.echo(_ended_listing(found) if ended else _listing(found))


def _listing(report: join.Report) -> str:
    lines = [table([COLUMNS, *(_row(job) for job in report.jobs)])] if report.jobs else ["no jobs"]
    lines += [f"{job.name}: {job.waiting}" for job in report.jobs if job.waiting]
    for switch in report.switches:
        lines.append(_switch(switch, report.service))
    lines += map(_tenant, report.tenants)
    if report.service.trouble:
        lines.append(f"the service is in trouble: {report.service.trouble}; no job begins until that is repaired")
    if report.service.past:
        lines.append(f"the service began with an old copy of its state: {report.service.past}")
    if report.service.audit.trouble:
        lines.append(f"the audit log cannot be written: {report.service.audit.trouble}; the service goes on without it")
    lines += map(_set_aside, report.set_aside)
    return "\n".join([lines[0], *map(visible, lines[1:])])


def _switch(switch: join.SwitchReport, service: join.ServiceReport) -> str:
    state = f"{switch.state} ({switch.trouble})" if switch.trouble else switch.state
    share, least = scarcest(switch.room, switch.room_taken)
    scarcer = share * switch.slots_total < switch.slots_free
    only = f", but only {least}" if scarcer else ""
    free = f"{switch.slots_free} of {switch.slots_total} slots are free"
    theirs = switch.software_version or service.software_version, switch.program_version or service.program_version
    differ = theirs != (service.software_version, service.program_version)
    versions = f"; it has {of_switch(switch)}, the controller {of_controller(service)}" if differ else ""
    wrong = f"; its workers have had {switch.sums_wrong} wrong sums" if switch.sums_wrong else ""
    return f"{switch.name}, {switch.kind}, {state}: {free}{only}{versions}{wrong}"


def _set_aside(record: join.SetAsideRecord) -> str:
    remove = f"`wiresum jobs discard {shlex.quote(record.name)}`"
    return (
        f"the record of job {record.name}, at {record.switch_name}, is set aside: {record.why}; {remove} removes it "
        f"(docs/operations.md, Records set aside)"
    )


def _tenant(tenant: join.TenantReport) -> str:
    def of(field: str, what: str) -> str:
        most = getattr(tenant, f"{field}_max") if tenant.HasField(f"{field}_max") else "any number of"
        return f"{getattr(tenant, field)} of {most} {what}"

    has = f"{of('jobs', 'jobs')}, {of('slots', 'slots')}"
    if tenant.switch_percent < 100:
        free = [f"{scarcest(each.room, each.room_taken)[1]} free at {each.switch_name}" for each in tenant.switches]
        has += f", {tenant.switch_percent}% of each switch" + f" ({', '.join(free)})" * bool(free)
    waiting = f"{tenant.waiting_jobs} of {tenant.waiting_jobs_max} jobs form or wait"
    return f"{f'tenant {tenant.name}' if tenant.name else 'without a tenant'}: {has}; {waiting}"


def _ended_listing(found: join.EndedJobs) -> str:
    return table([ENDED_COLUMNS, *(_ended_row(job) for job in found.jobs)]) if found.jobs else "no job has ended yet"


def _ended_row(job: join.EndedJob) -> tuple[str, ...]:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.ended_at)),
        job.name,
        job.outcome.replace("_", " "),
        str(job.world_size),
        switches_of(job.switch_name, job.switches) or "-",
        duration(max(0.0, job.ended_at - job.created_at)),
        job.tenant or "-",
        job.caller or "-",
        job.reason,
    )


def _row(job: join.JobReport) -> tuple[str, ...]:
    return (
        str(job.job) if job.slots else "-",
        job.name,
        job.state,
        workers_of(job),
        switches_of(job.switch_name, len(job.switches)) or "-",
        f"{job.slot_base}+{job.slots}" if job.slots else "-",
        *(["?"] * 3 if job.uncounted else _counts(job)),
        duration(job.age_seconds),
        job.tenant or "-",
        job.caller or "-",
    )


def _counts(job: join.JobReport) -> list[str]:
    dropped = sum(job.packets.get(reason, 0) for reason in DROPPED)
    return [str(job.results), str(job.packets.get("resent", 0)), str(dropped)]


@jobs.command(
    epilog="\b\nExample:\n  export WIRESUM_JOB=night WIRESUM_JOB_TOKEN=$(wiresum jobs create night --workers 8)"
)
@click.argument("name")
@click.option("--workers", required=True, type=click.IntRange(1), help="How many will join.")
@click.option("--slots", default=0, type=click.IntRange(0), help="Slots at each switch.  [default: the service's]")
@click.option("--tenant", default="", help="The tenant whose quota it takes from.")
@click.option("--priority", default=0, type=int, show_default=True, help="If slots are short, higher goes first.")
@click.option(
    "--on",
    "switch_name",
    default="",
    metavar="SWITCH",
    help="Where it is to run: at this switch, or at those below it.  [default: any with room]",
)
@click.option(
    "--keep",
    "keep_seconds",
    default=0,
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Forget the job if nobody has joined after this time.  [default: the service's]",
)
@json_option
@service_options
def create(service: Service, as_json: bool, name: str, workers: int, **wanted: str | int) -> None:
    """Reserve the name of a job for its workers, and print the token that admits them."""
    from wiresum import join

    request = join.CreateJobRequest(job_name=name, world_size=workers)
    for field, value in wanted.items():  # the options have the names of the fields
        setattr(request, field, value)
    reply = service.tell(lambda stub: stub.CreateJob(request, timeout=CALL_S_MAX))
    click.echo(json.dumps(as_dict(reply)) if as_json else reply.job_token)


@jobs.command(
    epilog="\b\nExamples:\n"
    '  wiresum jobs end night --reason "the cluster is needed"\n'
    "  wiresum jobs end 'night-*' 'slurm-4711[.-]*'      # no error if there is none"
)
@click.argument("names", nargs=-1, required=True, metavar="NAME|PATTERN...")
@click.option("--reason", default="an operator ended it", show_default=True, help="What its workers are told.")
@json_option
@service_options
def end(service: Service, as_json: bool, names: tuple[str, ...], reason: str) -> None:
    """End jobs for all their workers, and forget jobs that wait in the queue."""
    wanted = _matching(service, names)
    for name in wanted:
        _end(service, name, reason)
        if not as_json:
            click.echo(f"job '{name}' ends")
    if as_json:
        click.echo(json.dumps({"names": wanted}))


def _end(service: Service, name: str, reason: str) -> None:
    from wiresum import join

    request = join.EndJobRequest(job_name=name, reason=reason)
    service.tell(lambda stub: stub.EndJob(request, timeout=CALL_S_MAX))


def _matching(service: Service, names: Sequence[str]) -> list[str]:
    """The names, and the names of the jobs that match a pattern."""
    patterns = [name for name in names if set(name) & set(PATTERN_CHARACTERS)]
    there = [job.name for job in service.report().jobs if job.state != "ending"] if patterns else []
    matching = [name for name in there if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return list(dict.fromkeys([*(name for name in names if name not in patterns), *matching]))


@jobs.command(epilog="\b\nExamples:\n  wiresum jobs drain rack1\n  wiresum jobs drain rack1 --wait --timeout 7200")
@click.argument("name", default="")
@click.option("--wait", is_flag=True, help="Wait until no job runs there; print which ones do, whenever that changes.")
@click.option(
    "--timeout",
    "timeout_s",
    default=DRAIN_S_MAX,
    show_default=True,
    type=click.IntRange(1),
    metavar="SECONDS",
    help="With --wait: end with status 1 if jobs still run after this time. The switch still takes no new ones.",
)
@json_option
@service_options
def drain(service: Service, as_json: bool, name: str, wait: bool, timeout_s: int) -> None:
    """Stop a switch from taking new jobs. Running ones move away as other switches can take them, and go on there until
    then. NAME may be left out if there is only one switch.

    With --wait --json an object is printed whenever something changes. While no active controller answers, the reason
    is printed, and the wait goes on: which jobs run is not known then.
    """
    jobs_left = _drain(service, name, resume=False)
    if not wait:
        said = f"; {jobs_left} still run there" if jobs_left else ", and none run"
        click.echo(json.dumps({"jobs": jobs_left}) if as_json else f"it takes no new jobs{said}")
        return
    left: list[str] | ServiceError = []
    for left in _jobs_left(service, name, timeout_s):
        if isinstance(left, ServiceError):
            unknown = {"jobs": None, "names": None, "error": left.message}
            click.echo(json.dumps(unknown) if as_json else f"which jobs run there is not known: {left.message}")
        else:
            click.echo(json.dumps({"jobs": len(left), "names": left}) if as_json else _drained(left))
    if not left:
        return
    unknown_or_many = "it is not known which jobs" if isinstance(left, ServiceError) else f"{len(left)} jobs"
    raise ServiceError(
        f"{unknown_or_many} still run there after {timeout_s} s: wait for longer (--timeout), end them with `wiresum "
        f"jobs end`, or let it take new jobs again with `wiresum jobs resume`",
        code="DEADLINE_EXCEEDED",
    )


def _jobs_left(service: Service, switch_name: str, timeout_s: float) -> Iterator[list[str] | ServiceError]:
    """Yields the names of the jobs at a switch, now and whenever they change, until there are none or the time is up.
    While no active controller answers, the reason is yielded once instead.

    If the service goes away, perhaps for an upgrade, this waits. Raises a `ServiceError` if the service refuses.
    """
    timing = service.timing
    give_up_at = timing.now() + timeout_s
    before: list[str] | None = None
    silent = False
    while True:
        try:
            report = service.report()
        except ServiceError as error:
            if error.code != "UNAVAILABLE":
                raise
            if not silent:
                yield error
            before, silent = None, True
        else:
            silent = False
            there = {switch_name, *(switch.name for switch in report.switches if switch.part_of == switch_name)}
            held = [job for job in report.jobs if job.slots and not there.isdisjoint(["", *_holding(job)])]
            # A switch that cannot be programmed keeps jobs that have ended until it is started again.
            lost = any(
                switch.state in UNUSABLE for switch in report.switches if not switch_name or switch.name in there
            )
            names = [job.name for job in held if not (lost and job.state == "ending")]
            if names != before:
                yield names
            before = names
        if before == [] or timing.now() >= give_up_at:
            return
        timing.sleep(min(DRAIN_LOOK_S, give_up_at - timing.now()))


def _holding(job: join.JobReport) -> list[str]:
    """The switches where the job has slots."""
    return [node.switch_name for node in job.switches if node.phase != "forgotten"]


def _drained(names: list[str]) -> str:
    if not names:
        return "it takes no new jobs, and none run"
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return visible(f"it takes no new jobs; {len(names)} still run there: {', '.join(names[:NAMES_SHOWN_MAX])}{more}")


@jobs.command(epilog="\b\nExample:\n  wiresum jobs resume rack1")
@click.argument("name", default="")
@json_option
@service_options
def resume(service: Service, as_json: bool, name: str) -> None:
    """Let a drained switch take jobs again. NAME may be left out if there is only one switch."""
    jobs_left = _drain(service, name, resume=True)
    click.echo(json.dumps({"jobs": jobs_left}) if as_json else "it takes new jobs")


def _drain(service: Service, name: str, *, resume: bool) -> int:
    """Drains or resumes a switch. Returns how many jobs run there."""
    from wiresum import join

    request = join.DrainRequest(switch_name=name, resume=resume)
    return service.tell(lambda stub: stub.Drain(request, timeout=CALL_S_MAX)).jobs


@jobs.command(epilog="\b\nExample:\n  wiresum jobs discard night")
@click.argument("name")
@json_option
@service_options
def discard(service: Service, as_json: bool, name: str) -> None:
    """Remove what is written down of a job that the service cannot go on with. `wiresum jobs` lists these records, with
    the reasons. No job ends: the switches have forgotten the job of the record.
    """
    from wiresum import join

    request = join.DiscardRecordRequest(job_name=name)
    records = service.tell(lambda stub: stub.DiscardRecord(request, timeout=CALL_S_MAX)).records
    removed = f"{records} records are removed" if records > 1 else "the record is removed"
    click.echo(json.dumps({"records": records}) if as_json else removed)
