"""What a controller would change at a switch. Only reads, which needs no arbitration: a controller may run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import finsy as fy

from wiresum.controller.driver import DriverError, JobEntry
from wiresum.controller.p4runtime import Target, desired
from wiresum.controller.p4runtime.client import CALL_S_MAX, reason_of
from wiresum.controller.p4runtime.connection import Connection, Runs
from wiresum.controller.p4runtime.difference import NormalEntry, concerning, difference, normal
from wiresum.controller.p4runtime.tables import decode_held, encode_held
from wiresum.controller.resources import JOBS, NOTHING, SLOTS, Amounts
from wiresum.join.credentials import CredentialsError

SIZES_S_MAX = 3.0


def plan(target: Target, jobs: Sequence[JobEntry]) -> list[str]:
    """A line for each change, in order: "+ " what would come, "- " what would go, "~ " what would change. What pipes
    share is listed for the first one. Raises `DriverError`."""
    try:
        runs, held = asyncio.run(asyncio.wait_for(_look(target), CALL_S_MAX))
    except (fy.P4ClientError, CredentialsError) as error:
        raise DriverError(f"{target.name} at {target.p4runtime} cannot be read: {reason_of(error)}") from error
    except asyncio.TimeoutError:
        raise DriverError(f"{target.name} at {target.p4runtime} did not answer within {CALL_S_MAX:.0f} s") from None
    lines = []
    if runs is not Runs.OURS:
        now = "no program runs" if runs is Runs.NOTHING else "another program runs, or ours for another state's jobs"
        if target.is_first:
            lines.append(f"~ program: {now}, and ours would be loaded, which sets all registers to zero")
        jobs = []  # they cannot go on
    elif jobs and not any(entry.stage == "own" for entry in held):
        lines.append("~ jobs: the program was loaded anew, so none that ran before can go on, and all would end")
        jobs = []
    going_on = []
    for job in jobs:
        try:
            desired.hosts(target, job)
        except ValueError as error:
            lines.append(f"~ jobs: number {job.job} cannot go on, and would be forgotten: {error}")
        else:
            going_on.append(job)
    schema = fy.P4Schema(target.pipeline.p4info)
    wanted = [normal(entity, schema) for entity in desired.everything(target, going_on)]
    if not target.is_first:
        held, wanted = [[e for e in found if desired.pipe_of(target, e.entity) is not None] for found in (held, wanted)]
    batches = difference(concerning(target, held), wanted)
    return lines + [line for batch in batches for line in batch.lines()]


def room(target: Target, jobs: Sequence[JobEntry], beside: Iterable[JobEntry] = ()) -> str:
    """How much of the switch these jobs take, in words. `beside`: those at its other pipes, which share its tables."""
    slots = sum(job.slots for job in jobs)
    taken = Amounts({SLOTS: slots, JOBS: len(jobs)})
    taken += sum((desired.needs(target, job.shape) for job in (*jobs, *beside)), NOTHING)
    total = Amounts({SLOTS: target.pipeline.slots, JOBS: target.jobs_max}) + desired.room(target)
    return ", ".join(f"{taken.of(name)} of {total[name]} {name}" for name in total)


def sizes_problem(target: Target) -> str | None:
    """Why a software switch cannot have the lanes and slots of its configuration, or an empty text; None: it does not
    say."""
    try:
        asyncio.run(asyncio.wait_for(_verify(target), SIZES_S_MAX))
    except fy.P4ClientError as error:
        return reason_of(error) if error.code == fy.GRPCStatusCode.INVALID_ARGUMENT else None
    except (asyncio.TimeoutError, CredentialsError):
        return None
    return ""


async def _verify(target: Target) -> None:
    async with Connection(target.p4runtime, target.device, target.tls) as connection:
        await connection.verify(target.pipeline)


async def _look(target: Target) -> tuple[Runs, list[NormalEntry]]:
    async with Connection(target.p4runtime, target.device, target.tls) as connection:
        runs = await connection.runs(target.pipeline)
        if runs is not Runs.OURS:
            return runs, []
        schema = fy.P4Schema(target.pipeline.p4info)
        return runs, decode_held(await connection.read(encode_held(schema)), schema)
