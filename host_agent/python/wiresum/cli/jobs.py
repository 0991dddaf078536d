"""`wiresum jobs`: what goes on at a switch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wiresum import join

TIMEOUT_S = 5.0
COLUMNS = ("JOB", "NAME", "STATE", "WORKERS", "SLOTS", "RESULTS", "RESENT", "DROPPED", "AGE")
DROPPED = ("stale", "out_of_lease", "unknown", "malformed")
"""Reasons for which the switch drops a packet that is not a mere duplicate."""


EPILOG = """\b
Examples:
  wiresum jobs
  wiresum jobs --switch 10.0.0.1:43487
  wiresum jobs --json | jq .slots_free
"""


@click.command(epilog=EPILOG)
@click.option(
    "--switch",
    envvar="WIRESUM_SWITCH",
    default="127.0.0.1:43487",
    show_default=True,
    metavar="HOST:PORT",
    help="Control endpoint of the switch.",
    show_envvar=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, with every counter.")
def jobs(switch: str, as_json: bool) -> None:
    """List the jobs of a switch.

    RESULTS are packets with a sum; RESENT, results that a worker had to ask for again; DROPPED, packets that belonged
    to no slot of the job.
    """
    reply = _ask(switch)
    if as_json:
        click.echo(json.dumps(_as_dict(reply), indent=2))
        return
    if reply.jobs:
        rows = [COLUMNS, *(_row(job) for job in reply.jobs)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        for row in rows:
            click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        click.echo("no jobs")
    click.echo(f"{reply.slots_free} of {reply.slots_total} slots are free")


def _ask(switch: str) -> join.ListJobsReply:
    import grpc

    from wiresum import join
    from wiresum.join import join_pb2_grpc

    target = switch if ":" in switch else f"{switch}:{join.DEFAULT_CONTROL_PORT}"
    options = [("grpc.max_receive_message_length", join.LIST_BYTES_MAX), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(target, options=options) as channel:
        try:
            return join_pb2_grpc.JoinServiceStub(channel).ListJobs(join.ListJobsRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise click.ClickException(
                f"cannot ask the switch at {target} ({error.details()}): start one with `wiresum switch`, or name "
                f"another with --switch or WIRESUM_SWITCH"
            ) from None


def _row(job: join.ListJobsReply.Job) -> tuple[str, ...]:
    return (
        str(job.job) if job.slots else "-",
        job.name,
        job.state,
        f"{job.joined}/{job.world_size}",
        f"{job.slot_base}+{job.slots}" if job.slots else "-",
        str(job.results),
        str(job.packets.get("resent", 0)),
        str(sum(job.packets.get(reason, 0) for reason in DROPPED)),
        _duration(job.age_seconds),
    )


def _duration(seconds: float) -> str:
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole:02}s" if minutes else f"{whole}s"


def _as_dict(reply: join.ListJobsReply) -> dict[str, Any]:
    return {
        "slots_total": reply.slots_total,
        "slots_free": reply.slots_free,
        "jobs": [
            {
                "job": job.job,
                "name": job.name,
                "state": job.state,
                "world_size": job.world_size,
                "joined": job.joined,
                "slot_base": job.slot_base,
                "slots": job.slots,
                "results": job.results,
                "packets": dict(job.packets),
                "age_seconds": job.age_seconds,
            }
            for job in reply.jobs
        ],
    }
