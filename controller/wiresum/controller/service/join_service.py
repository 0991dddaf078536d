"""What workers call (join.proto): gRPC around `Jobs`. Runs in one event loop.

Nearly every call here waits: an Attend stream for as long as the worker is a member, a Join until the last worker has
come. As coroutines of one loop they need no threads, and `Jobs` needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from wiresum import join
from wiresum.controller.jobs import report
from wiresum.controller.jobs.job import Asker, Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.refusal import Refusal, check_join, data_address
from wiresum.controller.security.caller import caller
from wiresum.controller.service.answering import found, granted, refuse
from wiresum.controller.service.effects import Effects
from wiresum.controller.service.mailbox import AttendMailbox
from wiresum.controller.service.served_jobs import ServedJobs, prove
from wiresum.join import join_pb2_grpc

log = logging.getLogger(__name__)


class JoinService(join_pb2_grpc.JoinServiceServicer):
    def __init__(
        self, jobs: Jobs, effects: Effects, clock: Callable[[], float], served: ServedJobs | None = None
    ) -> None:
        """`served`: the only jobs that this service serves; None: all jobs."""
        self._jobs, self._effects, self._clock, self._served = jobs, effects, clock, served

    async def Join(self, request: join.JoinRequest, context: Any) -> None:  # noqa: N802
        try:
            check_join(request)  # first, so that all that is compared, or quoted in errors, is bounded
            caller().check_may_join(request.job_name, request.tenant, data_address(request.endpoint))
            request.tenant = caller().tenant(request.tenant)
            if self._served is not None:
                self._served.check(request)
            worker = self._jobs.ask(request, self._clock(), _asker())
        except Refusal as refusal:
            with contextlib.suppress(Refusal):  # a stranger's troubles are nobody's here
                tenant = caller().tenant(request.tenant)
                self._jobs.note_refused(request.job_name, request.rank, _asker(), tenant, refusal.text)
            await refuse(context, self._effects, refusal)
        context.note_begun()
        # While workers of a thousand jobs wait for others, their requests take memory: the job has what it needs.
        context.keep(_short(request))
        del request
        call, mailbox = worker.call, self._effects.open_join(worker)
        self._effects.carry_out()
        answered = False
        try:
            while not answered:
                event = await mailbox.next_event()
                await context.write(event)
                answered = not event.HasField("waiting")
        except Refusal as refusal:
            answered = True
            await refuse(context, self._effects, refusal)
        finally:
            self._effects.close_join(worker, mailbox)
            if not answered and not self._effects.halted:
                self._jobs.hung_up(worker, call, self._clock())
                self._effects.carry_out()

    async def Attend(self, requests: object, context: Any) -> None:  # noqa: N802
        try:
            first = await context.read()  # the interceptor bounds this wait
            if first is grpc.aio.EOF:
                raise Refusal("INVALID_ARGUMENT", "an Attend stream must begin with a heartbeat")
            worker = self._jobs.attend(first.member, self._clock(), _asker())
        except Refusal as refusal:
            await refuse(context, self._effects, refusal)
        mailbox = self._effects.open_stream(worker)
        stream = worker.stream
        self._hear(worker, mailbox, first)
        member = join.Member(job=worker.job.lease.number, worker=worker.number, switch_name=worker.switch_name)
        context.keep(join.Heartbeat(member=member))
        del first
        reader = asyncio.create_task(self._read(worker, mailbox, context))
        try:
            await self._write(worker, mailbox, context)
        finally:
            reader.cancel()
            self._effects.close_stream(worker, mailbox)
            if not self._effects.halted:
                self._jobs.broken(worker, stream, self._clock())
                self._effects.carry_out()

    async def Leave(self, request: join.LeaveRequest, context: Any) -> join.LeaveReply:  # noqa: N802
        await granted(context, self._effects, lambda: self._jobs.leave(request, self._clock()))
        return join.LeaveReply()

    async def Abort(self, request: join.AbortRequest, context: Any) -> join.AbortReply:  # noqa: N802
        await granted(context, self._effects, lambda: self._jobs.abort(request, self._clock()))
        return join.AbortReply()

    async def Diagnose(self, request: join.Member, context: Any) -> join.Diagnosis:  # noqa: N802
        job = await found(context, self._effects, lambda: self._jobs.find(request).job)
        names, number = list(job.lease.nodes), job.lease.number  # the job may move meanwhile
        answers = await asyncio.gather(*(self._effects.counters(name, [number]) for name in names))
        counted = {name: answer[1][number] for name, answer in zip(names, answers, strict=True) if answer is not None}
        return report.diagnosis(job, counted, self._clock(), self._jobs.moving)

    async def Prove(self, request: join.Challenge, context: Any) -> join.Proof:  # noqa: N802
        return join.Proof(mac=await found(context, self._effects, lambda: prove(self._served, request)))

    # Streams.

    def _hear(self, worker: Worker, mailbox: AttendMailbox, heartbeat: join.Heartbeat) -> None:
        halted = heartbeat.halted if heartbeat.HasField("halted") else None
        tensor_newest = heartbeat.tensor_newest if heartbeat.HasField("tensor_newest") else None
        self._jobs.beat(worker, heartbeat.round_newest, self._clock(), halted, tensor_newest, heartbeat.sums_wrong)
        mailbox.pulse(self._jobs.moving.lost(worker.job))
        self._effects.carry_out()

    async def _read(self, worker: Worker, mailbox: AttendMailbox, context: Any) -> None:
        """Reads heartbeats until the worker closes its side, or is gone."""
        try:
            while (heartbeat := await context.read()) is not grpc.aio.EOF and not mailbox.closed:
                self._hear(worker, mailbox, heartbeat)
                del heartbeat  # not held until the next one comes
        except Exception as error:
            log.debug("the stream of %s broke: %s", worker, error)
        finally:
            mailbox.close()

    async def _write(self, worker: Worker, mailbox: AttendMailbox, context: Any) -> None:
        """Sends what comes into the mailbox, until the worker has been told its end or does not read for too long."""
        try:
            while (event := await mailbox.next_event()) is not None:
                await asyncio.wait_for(context.write(event), self._jobs.limits.heartbeat_lost_ms / 1000)
                if event.HasField("ended"):
                    self._jobs.told(worker, self._clock())
                    return
        except asyncio.TimeoutError:
            log.info("%s does not read its stream", worker)


def _short(request: join.JoinRequest) -> join.JoinRequest:
    """The part of a request that the audit log needs."""
    return join.JoinRequest(
        job_name=request.job_name,
        rank=request.rank,
        world_size=request.world_size,
        tenant=request.tenant,
        endpoint=request.endpoint,
    )


def _asker() -> Asker:
    of_this_call = caller()
    return Asker(
        str(of_this_call),
        of_this_call.address,
        of_this_call.serial,
        of_this_call.name,
        own_account=of_this_call.has_own_account,
        expires_at=of_this_call.expires_at,
    )
