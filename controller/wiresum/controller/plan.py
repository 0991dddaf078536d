"""What a controller would change at a switch. The switch is only read, which needs no arbitration: a controller may
run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import finsy as fy

from wiresum.controller.driver import DriverError, JobEntry, Versions
from wiresum.controller.p4runtime import Target, desired, versions
from wiresum.controller.p4runtime.client import CALL_S_MAX, reason_of
from wiresum.controller.p4runtime.connection import Connection, Runs
from wiresum.controller.p4runtime.difference import NormalEntry, concerning, difference, normal
from wiresum.controller.p4runtime.tables import decode_held, encode_held
from wiresum.controller.resources import JOBS, NOTHING, SLOTS, Amounts
from wiresum.join.credentials import CredentialsError

ASK_S_MAX = 3.0


def plan(target: Target, jobs: Sequence[JobEntry]) -> list[str]:
    """A line for each change, in order: "+ " an entry that would come, "- " one that would go, "~ " one that would
    change. Entries that pipes share are listed for the first pipe. Raises `DriverError`."""
    try:
        runs, held = asyncio.run(asyncio.wait_for(_look(target), CALL_S_MAX))
    except (fy.P4ClientError, CredentialsError) as error:
        raise DriverError(f"{target.name} at {target.p4runtime} cannot be read: {reason_of(error)}") from error
    except asyncio.TimeoutError:
        raise DriverError(f"{target.name} at {target.p4runtime} did not answer within {CALL_S_MAX:.0f} s") from None
    lines = []
    if runs is not Runs.OURS and (asked := ask(target)) and asked.outdated:
        return [f"~ nothing: {target.name} {asked.outdated}"]
    if runs is not Runs.OURS:
        now = "no program runs" if runs is Runs.NOTHING else "another program runs, or ours for another state's jobs"
        if target.is_first:
            lines.append(f"~ program: {now}, and ours would be loaded, which sets all registers to zero")
        jobs = []  # these jobs cannot continue
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
    """How much of the switch these jobs take, in words. `beside`: jobs at the switch's other pipes, which share its
    tables."""
    slots = sum(job.slots for job in jobs)
    taken = Amounts({SLOTS: slots, JOBS: len(jobs)})
    taken += sum((desired.needs(target, job.shape) for job in (*jobs, *beside)), NOTHING)
    total = Amounts({SLOTS: target.pipeline.slots, JOBS: target.jobs_max}) + desired.room(target)
    return ", ".join(f"{taken.of(name)} of {total[name]} {name}" for name in total)


class Asked(NamedTuple):
    """The answer of a switch."""

    versions: Versions
    outdated: str = ""
    """Why the switch cannot be used before it or the controller is upgraded; empty: it can."""
    problem: str = ""
    """Why a software switch cannot have the lanes and slots of its configuration; empty: it can."""


def ask(target: Target) -> Asked | None:
    """Asks a switch; None: it does not answer, or not this controller."""
    try:
        return asyncio.run(asyncio.wait_for(_ask(target), ASK_S_MAX))
    except (fy.P4ClientError, asyncio.TimeoutError, CredentialsError):
        return None


async def _ask(target: Target) -> Asked:
    async with Connection(target.p4runtime, target.device, target.tls) as connection:
        found = await connection.check_alive()
        await connection.runs(target.pipeline)
        found = found if found.digest else found._replace(program=connection.program)
        if target.kind != "software":
            return Asked(found)
        try:
            await connection.verify(target.pipeline)
        except fy.P4ClientError as error:
            if error.code != fy.GRPCStatusCode.INVALID_ARGUMENT:
                raise
            why = reason_of(error)
            outdated = versions.why_refused(found)
            return Asked(found, outdated, "" if outdated else why)
        return Asked(found)


async def _look(target: Target) -> tuple[Runs, list[NormalEntry]]:
    async with Connection(target.p4runtime, target.device, target.tls) as connection:
        runs = await connection.runs(target.pipeline)
        if runs is not Runs.OURS:
            return runs, []
        schema = fy.P4Schema(target.pipeline.p4info)
        return runs, decode_held(await connection.read(encode_held(schema)), schema)
