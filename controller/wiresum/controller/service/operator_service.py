"""What operators call (operator.proto). Runs in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from wiresum import join
from wiresum.controller.jobs import report
from wiresum.controller.jobs.job import Cause
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.security.caller import caller
from wiresum.controller.service.answering import granted
from wiresum.controller.service.effects import Effects
from wiresum.join import operator_pb2_grpc


class OperatorService(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self, jobs: Jobs, effects: Effects, refusals: Mapping[str, int], clock: Callable[[], float]) -> None:
        """`refusals`: by reason; it goes on counting."""
        self._jobs, self._effects, self._refusals, self._clock = jobs, effects, refusals, clock
        self._started_at = clock()

    async def GetReport(self, request: join.GetReportRequest, context: Any) -> join.Report:  # noqa: N802
        return await self.report()

    async def ListEnded(self, request: join.ListEndedRequest, context: Any) -> join.EndedJobs:  # noqa: N802
        found = self._jobs.history.find(caller().tenants_seen, request.job_name, request.count_max)
        return join.EndedJobs(jobs=found)

    async def CreateJob(self, request: join.CreateJobRequest, context: Any) -> join.CreateJobReply:  # noqa: N802
        token = await granted(context, self._effects, lambda: self._jobs.create(request, self._clock()))
        return join.CreateJobReply(job_token=token)

    async def EndJob(self, request: join.EndJobRequest, context: Any) -> join.EndJobReply:  # noqa: N802
        await granted(context, self._effects, lambda: self._jobs.end(request.job_name, request.reason, self._clock()))
        return join.EndJobReply()

    async def Drain(self, request: join.DrainRequest, context: Any) -> join.DrainReply:  # noqa: N802
        jobs = await granted(
            context, self._effects, lambda: self._jobs.drain(request.switch_name, resume=request.resume)
        )
        return join.DrainReply(jobs=jobs)

    async def report(self) -> join.Report:
        switches = list(self._jobs.cluster.switches.values())  # others may come meanwhile
        counted = await asyncio.gather(
            *(self._effects.counters(switch.name, list(switch.numbered)) for switch in switches)
        )
        counters = {switch.name: found for switch, found in zip(switches, counted, strict=True) if found is not None}
        now = self._clock()
        answer = report.report(self._jobs, counters, now)
        answer.service.age_seconds = now - self._started_at
        answer.service.refusals.update(self._refusals)
        answer.service.trouble = self._effects.trouble
        answer.service.past = self._jobs.past
        answer.service.moves.update({cause.value: self._jobs.moving.count[cause] for cause in Cause})
        return answer
