"""The calls of operators (operator.proto). Runs in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from wiresum import join
from wiresum.controller.jobs import report
from wiresum.controller.jobs.job import Cause
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.report import Counted
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.caller import caller
from wiresum.controller.service.answering import found, granted
from wiresum.controller.service.effects import Effects
from wiresum.join import operator_pb2_grpc

T = TypeVar("T")


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(
        self,
        jobs: Jobs,
        effects: Effects,
        refusals: Mapping[str, int],
        clock: Callable[[], float],
        audit: AuditLog,
    ) -> None:
        """`refusals`: counts by reason, which go on growing."""
        self._jobs, self._effects, self._refusals, self._clock = jobs, effects, refusals, clock
        self._audit = audit
        self._started_at = clock()

    async def GetReport(self, request: join.GetReportRequest, context: Any) -> join.Report:  # noqa: N802
        counters = await self._counters()
        return await found(context, self._effects, lambda: self._report(counters))

    async def ListEnded(self, request: join.ListEndedRequest, context: Any) -> join.EndedJobs:  # noqa: N802
        history, seen = self._jobs.history, caller().tenants_seen
        return await found(
            context,
            self._effects,
            lambda: history.page(seen, request.job_name, count_max=request.count_max, page=request.page),
        )

    async def CreateJob(self, request: join.CreateJobRequest, context: Any) -> join.CreateJobReply:  # noqa: N802
        token = await self._granted(context, lambda: self._jobs.create(request, self._clock()))
        return join.CreateJobReply(job_token=token)

    async def EndJob(self, request: join.EndJobRequest, context: Any) -> join.EndJobReply:  # noqa: N802
        await self._granted(context, lambda: self._jobs.end(request.job_name, request.reason, self._clock()))
        return join.EndJobReply()

    async def Drain(self, request: join.DrainRequest, context: Any) -> join.DrainReply:  # noqa: N802
        jobs = await self._granted(context, lambda: self._jobs.drain(request.switch_name, resume=request.resume))
        return join.DrainReply(jobs=jobs)

    async def DiscardRecord(  # noqa: N802
        self, request: join.DiscardRecordRequest, context: Any
    ) -> join.DiscardRecordReply:
        records = await self._granted(context, lambda: self._jobs.set_aside.remove(request.job_name))
        return join.DiscardRecordReply(records=records)

    async def _granted(self, context: Any, action: Callable[[], T]) -> T:
        return await granted(context, self._effects, action, on_disk=True)

    async def report(self) -> join.Report:
        """Returns a report for the process itself, not for a caller. Raises `RuntimeError` if this service must not say
        what runs."""
        counters = await self._counters()
        if why := await self._effects.why_silent():
            raise RuntimeError(why)
        return self._report(counters)

    async def _counters(self) -> Counted:
        """Counters of the switches that answer."""
        switches = list(self._jobs.cluster.switches.values())  # the switches may change while this waits
        counted = await asyncio.gather(
            *(self._effects.counters(switch.name, list(switch.numbered)) for switch in switches)
        )
        return {switch.name: said for switch, said in zip(switches, counted, strict=True) if said is not None}

    def _report(self, counters: Counted) -> join.Report:
        now = self._clock()
        answer = report.report(self._jobs, counters, now)
        answer.service.age_seconds = now - self._started_at
        answer.service.refusals.update(self._refusals)
        answer.service.trouble = self._effects.trouble
        answer.service.past = self._jobs.past
        answer.service.audit.CopyFrom(self._audit.report())
        answer.service.moves.update({cause.value: self._jobs.moving.count[cause] for cause in Cause})
        return answer
