"""Admits jobs to a software switch and tears them down, again and again. Measures the time of a join, and finds leaks.

Each round starts `--jobs` jobs, one after the other, whose workers all join at once. When all workers have sent a
heartbeat, they leave, job by job. The switch and its join service run in a process of their own, which counts its
resources after each round: jobs and slots, entries of the data plane, open files, threads, tasks of its event loop. The
counts must be those of the first rounds. A worker here is only its calls to the service; each rank has a connection.
With `--leaves` the workers are shared equally among so many switches below another one, all of them in the switch's
process.

    python -m wiresum_lab.benchmarks.cluster.admission --seconds 600
    python -m wiresum_lab.benchmarks.cluster.admission --seconds 30 --jobs 1 --workers 128 --leaves 8

Prints a line, or with --json an object; exits with status 1 if anything has leaked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import grpc
import grpc.aio

from wiresum import join as messages
from wiresum.join import join_pb2_grpc
from wiresum.join.constants import JOB_WORKERS_MAX
from wiresum_lab.doubles.controller import join_request, member_of
from wiresum_lab.loopback_tree import host_of
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import resident_kib

if TYPE_CHECKING:
    from wiresum.switch.software_switch import SoftwareSwitch

LANES = 64
NETWORK = "127.0.9"
"""First three bytes of the addresses of a tree of switches."""
SLOTS_OF_JOB = 64
WARM_ROUNDS = 2
"""How many rounds it takes until gRPC's pools and Python's caches stop growing."""
REQUESTS_MAX = 1_000_000


@dataclass(frozen=True)
class Census:
    """Resources of the switches' process when no job runs."""

    jobs: int
    slots_taken: int
    entries: int
    """How many jobs the data planes hold."""
    files: int
    threads: int
    tasks: int
    """How many tasks of the event loop have not ended."""
    resident_kib: int

    def leaks(self, before: Census) -> dict[str, tuple[int, int]]:
        """The resources that have grown, by name, with both counts. Memory is left out, since the allocator keeps
        some."""
        now, then = dataclasses.asdict(self), dataclasses.asdict(before)
        return {name: (then[name], now[name]) for name in now if name != "resident_kib" and now[name] > then[name]}


@dataclass(frozen=True)
class AdmissionResult:
    rounds: int
    jobs: int
    workers: int
    seconds: float
    join_ms_median: float
    join_ms_p99: float
    join_ms_max: float
    before: Census
    after: Census
    leaks: dict[str, tuple[int, int]]


# The switch's side.


def _switches(jobs_max: int, leaves: int) -> list[SoftwareSwitch]:
    """One switch; with `leaves`, a spine and so many leaves below it."""
    from wiresum.switch.software_switch import SoftwareSwitch
    from wiresum_lab.loopback_tree import loopback_tree

    sizes: dict[str, Any] = {"slots": jobs_max * SLOTS_OF_JOB, "lanes_max": LANES, "jobs_max": jobs_max}
    return loopback_tree(NETWORK, leaves, **sizes) if leaves else [SoftwareSwitch(port=0, **sizes)]


def _serve(pipe: Connection, jobs_max: int, leaves: int) -> None:
    from wiresum.controller import JoinServer
    from wiresum.controller.security import Security

    devices = _switches(jobs_max, leaves)
    # All workers share one address here, and therefore one limit of requests.
    security = Security(requests_burst=REQUESTS_MAX)
    server = JoinServer(devices, security=security)
    pipe.send(server.start("127.0.0.1", 0))
    while pipe.recv() == "census":
        gc.collect()
        report = server.report()
        pipe.send(
            Census(
                jobs=len(report.jobs),
                slots_taken=sum(switch.slots_total - switch.slots_free for switch in report.switches),
                entries=sum(device.stats().jobs_now for device in devices),
                files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
                threads=threading.active_count(),
                tasks=sum(isinstance(found, asyncio.Task) and not found.done() for found in gc.get_objects()),
                resident_kib=resident_kib(),
            )
        )
    server.stop()
    security.close()
    for device in devices:
        device.close()


@contextmanager
def _switch(jobs_max: int, leaves: int) -> Iterator[tuple[int, Connection]]:
    """Runs the switch in a process. Gives its control port and the pipe to that process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, jobs_max, leaves), daemon=True)
    process.start()
    theirs.close()
    try:
        yield _received(ours), ours
        ours.send("stop")
        process.join(PATIENCE_S)
    finally:
        process.kill()
        process.join()


def _received(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise click.ClickException(f"the switch did not answer in {PATIENCE_S:.0f} s")
    return pipe.recv()


# The workers' side.


class Worker:
    """The client of one rank, in each job in turn."""

    def __init__(self, port: int, rank: int, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self._stub: Any = join_pb2_grpc.JoinServiceStub(self.channel)
        self._rank, self._address = rank, address

    async def join(self, job_name: str, workers: int, index: int) -> tuple[messages.JoinReply, float]:
        """Joins a job. Returns the grant, and the seconds until it came."""
        request = join_request(
            job_name=job_name,
            rank=self._rank,
            world_size=workers,
            endpoint=messages.Endpoint(address=self._address, port=10_000 + (workers * index + self._rank) % 50_000),
            threads_max=1,
            lanes_max=LANES,
            slots=SLOTS_OF_JOB,
            timeout_ms=int(1000 * PATIENCE_S),
            attempt=f"{job_name}:{self._rank}",
        )
        started_at = time.perf_counter()
        call = self._stub.Join(request, timeout=PATIENCE_S)
        async for event in call:
            if event.HasField("granted"):
                return event.granted, time.perf_counter() - started_at
        raise click.ClickException(f"{job_name}, rank {self._rank}: the service said nothing more, and granted nothing")

    async def attend(self, reply: messages.JoinReply) -> Attendance:
        """Starts heartbeats. Returns when the service has answered the first one."""
        call = self._stub.Attend()
        beat = messages.Heartbeat(member=member_of(reply), round_newest=1)
        await call.write(beat)
        await call.read()
        return Attendance(call, asyncio.create_task(_go_on_beating(call, beat, reply.heartbeat_lost_ms / 4000)))

    async def leave(self, reply: messages.JoinReply, attendance: Attendance) -> None:
        try:
            await self._stub.Leave(messages.LeaveRequest(member=member_of(reply)), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # the job has ended: others left long before
                raise
        attendance.beating.cancel()
        attendance.call.cancel()


@dataclass(frozen=True)
class Attendance:
    call: Any
    beating: asyncio.Task[None]


async def _go_on_beating(call: Any, beat: messages.Heartbeat, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await call.write(beat)


async def _round(ranks: list[Worker], number: int, jobs: int) -> list[float]:
    """Runs all jobs of a round. Returns the seconds that each worker waited for its grant."""
    waited: list[float] = []
    members: list[list[tuple[Worker, messages.JoinReply, Attendance]]] = []
    for index in range(jobs):
        name = f"round-{number}-job-{index}"
        answers = await asyncio.gather(*(rank.join(name, len(ranks), index) for rank in ranks))
        waited += [seconds for _, seconds in answers]
        replies = [reply for reply, _ in answers]
        attendances = await asyncio.gather(*(rank.attend(reply) for rank, reply in zip(ranks, replies, strict=True)))
        members.append(list(zip(ranks, replies, attendances, strict=True)))
    for job in members:
        await asyncio.gather(*(rank.leave(reply, attendance) for rank, reply, attendance in job))
    return waited


async def _census(pipe: Connection, before: Census | None = None) -> Census:
    """Counts resources as soon as no job is left and nothing has grown, or after PATIENCE_S."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        pipe.send("census")
        census: Census = await asyncio.to_thread(_received, pipe)
        has_gone = census.jobs == census.entries == 0 and not (before and census.leaks(before))
        if has_gone or time.monotonic() > give_up_at:
            return census
        await asyncio.sleep(0.02)


async def _run(port: int, pipe: Connection, jobs: int, workers: int, leaves: int, seconds: float) -> AdmissionResult:
    hosts = [host_of(NETWORK, rank * leaves // workers) if leaves else "127.0.0.1" for rank in range(workers)]
    ranks = [Worker(port, rank, host) for rank, host in enumerate(hosts)]
    for number in range(WARM_ROUNDS):
        await _round(ranks, number, jobs)
        before = await _census(pipe)
    waited: list[float] = []
    started_at = time.monotonic()
    rounds, after = 0, before
    while rounds == 0 or time.monotonic() < started_at + seconds:
        waited += await _round(ranks, WARM_ROUNDS + rounds, jobs)
        after = await _census(pipe, before)
        rounds += 1
    for rank in ranks:
        await rank.channel.close()
    in_order = sorted(1000 * second for second in waited)
    return AdmissionResult(
        rounds=rounds,
        jobs=rounds * jobs,
        workers=workers,
        seconds=time.monotonic() - started_at,
        join_ms_median=statistics.median(in_order),
        join_ms_p99=in_order[len(in_order) * 99 // 100],
        join_ms_max=in_order[-1],
        before=before,
        after=after,
        leaks=after.leaks(before),
    )


@click.command(help=__doc__)
@click.option("--seconds", default=600.0, type=click.FloatRange(min=0), show_default=True, help="How long.")
@click.option("--jobs", default=64, type=click.IntRange(1, 512), show_default=True, help="Jobs that run at a time.")
@click.option(
    "--workers", default=8, type=click.IntRange(1, JOB_WORKERS_MAX), show_default=True, help="Workers of each."
)
@click.option("--leaves", default=0, type=click.IntRange(0, 32), help="Switches below another.  [default: one switch]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def main(seconds: float, jobs: int, workers: int, leaves: int, as_json: bool) -> None:
    with _switch(jobs, leaves) as (port, pipe):
        outcome = asyncio.run(_run(port, pipe, jobs, workers, leaves, seconds))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(outcome), indent=2))
    else:
        kept = outcome.after.resident_kib - outcome.before.resident_kib
        click.echo(
            f"{outcome.jobs} jobs of {workers} workers, {jobs} at a time, in {outcome.seconds:.0f} s: join median "
            f"{outcome.join_ms_median:.1f} ms, p99 {outcome.join_ms_p99:.1f} ms, longest {outcome.join_ms_max:.1f} ms; "
            f"memory {kept:+d} KiB; leaked: {outcome.leaks or 'nothing'}"
        )
    sys.exit(1 if outcome.leaks else 0)


if __name__ == "__main__":
    main()
