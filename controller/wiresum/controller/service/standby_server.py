"""The service of a standby: operators get a report, workers hear that another controller serves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn

import grpc.aio

from wiresum import join
from wiresum.controller.jobs.report import about_switch, software_version
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum.controller.security import Security
from wiresum.controller.service.server_thread import OPTIONS, ServerThread
from wiresum.join import join_pb2_grpc, operator_pb2_grpc

CALLS_MAX = 1024
STOP_GRACE_S = 0.1
STOP_S_MAX = 5.0


class StandbyServer(ServerThread):
    """The switches and the security stay the caller's."""

    def __init__(self, switches: Sequence[P4RuntimeSwitch], security: Security) -> None:
        super().__init__("wiresum-standby")
        self._switches, self._security = switches, security
        self._started_at = time.monotonic()

    def stop(self) -> None:
        """Idempotent. The port is free again when it returns."""
        self._end(STOP_S_MAX)

    def report(self) -> join.Report:
        """From any thread. It knows of no jobs: they are the active controller's."""
        answer = join.Report()
        answer.service.role = "standby"
        answer.service.software_version = software_version()
        answer.service.age_seconds = time.monotonic() - self._started_at
        answer.service.refusals.update(self._security.refusals)
        answer.switches.extend(map(_switch, self._switches))
        return answer

    @contextlib.asynccontextmanager
    async def _serving(self, listen: str) -> AsyncIterator[int]:
        server = grpc.aio.server(
            options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX, interceptors=[self._security.interceptor]
        )
        join_pb2_grpc.add_JoinServiceServicer_to_server(_NoJoins(), server)
        operator_pb2_grpc.add_OperatorServiceServicer_to_server(_Reports(self), server)
        async with self._security.listening(server, listen) as port:
            await server.start()
            yield port
            await server.stop(STOP_GRACE_S)


async def _turn_away(self: object, request: object, context: Any) -> NoReturn:
    """As one that cannot be reached, and not as a refusal, so that the caller tries the next endpoint."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"{join.STANDS_BY}: another controller serves")
    raise AssertionError("abort raises")


class _NoJoins(join_pb2_grpc.JoinServiceServicer):
    Join = Attend = Leave = Abort = Diagnose = _turn_away


class _Reports(operator_pb2_grpc.OperatorServiceServicer):
    ListEnded = CreateJob = EndJob = Drain = _turn_away

    def __init__(self, server: StandbyServer) -> None:
        self._server = server

    async def GetReport(self, request: join.GetReportRequest, context: Any) -> join.Report:  # noqa: N802
        return self._server.report()


def _switch(switch: P4RuntimeSwitch) -> join.SwitchReport:
    """A switch that another controller programs is in order."""
    reached = switch.outranked or not switch.trouble
    return about_switch(switch, "standby" if reached else "unreachable", "" if reached else switch.trouble)
