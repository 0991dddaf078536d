"""What answers at a standby's endpoint: operators hear that it stands by and whether it reaches its switches; workers,
that another controller serves. `StandbyServer` is the whole of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc.aio

from wiresum import join
from wiresum.controller.jobs.report import software_version
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum.controller.security import OPTIONS as SECURITY_OPTIONS
from wiresum.controller.security import Security
from wiresum.controller.service.answering import let_calls_end
from wiresum.join import join_pb2_grpc, operator_pb2_grpc

CALLS_MAX = 1024
STOP_GRACE_S = 0.1
STOP_S_MAX = 5.0
_OPTIONS = (*SECURITY_OPTIONS, ("grpc.so_reuseport", 0))


class StandbyServer:
    """In a thread of its own, from `start` to `stop`. The switches and the security stay the caller's."""

    def __init__(self, switches: Sequence[P4RuntimeSwitch], security: Security) -> None:
        self._switches, self._security = switches, security
        self._started_at = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Returns the TCP port. Raises `OSError` or `CredentialsError` if it cannot listen there."""
        bound: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(f"{host}:{port}", bound)), name="wiresum-standby", daemon=True
        )
        self._thread.start()
        return bound.result()

    def stop(self) -> None:
        """Idempotent. The port is free again when it returns."""
        if self._loop is None or self._stop is None or self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S_MAX)

    def report(self) -> join.Report:
        """From any thread. It knows of no jobs: they are the active controller's."""
        answer = join.Report()
        answer.service.role = "standby"
        answer.service.software_version = software_version()
        answer.service.age_seconds = time.monotonic() - self._started_at
        answer.service.refusals.update(self._security.refusals)
        answer.switches.extend(map(_switch, self._switches))
        return answer

    async def _run(self, listen: str, bound: concurrent.futures.Future[int]) -> None:
        try:
            server = grpc.aio.server(
                options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX, interceptors=[self._security.interceptor]
            )
            join_pb2_grpc.add_JoinServiceServicer_to_server(_NoJoins(), server)
            operator_pb2_grpc.add_OperatorServiceServicer_to_server(_Reports(self), server)
            port = self._security.listen(server, listen)
            await server.start()
        except Exception as error:
            bound.set_exception(error)
            return
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        bound.set_result(port)
        await self._stop.wait()
        await server.stop(STOP_GRACE_S)
        await let_calls_end()


async def _turn_away(context: Any) -> NoReturn:
    """As one that cannot be reached, and not as a refusal: whoever asks goes on to the next endpoint."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"{join.STANDS_BY}: another controller serves")
    raise AssertionError("abort raises")


class _NoJoins(join_pb2_grpc.JoinServiceServicer):
    async def Join(self, request: join.JoinRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def Attend(self, requests: object, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def Leave(self, request: join.LeaveRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def Abort(self, request: join.AbortRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def Diagnose(self, request: join.Member, context: Any) -> None:  # noqa: N802
        await _turn_away(context)


class _Reports(operator_pb2_grpc.OperatorServiceServicer):
    def __init__(self, server: StandbyServer) -> None:
        self._server = server

    async def GetReport(self, request: join.GetReportRequest, context: Any) -> join.Report:  # noqa: N802
        return self._server.report()

    async def ListEnded(self, request: join.ListEndedRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def CreateJob(self, request: join.CreateJobRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def EndJob(self, request: join.EndJobRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)

    async def Drain(self, request: join.DrainRequest, context: Any) -> None:  # noqa: N802
        await _turn_away(context)


def _switch(switch: P4RuntimeSwitch) -> join.SwitchReport:
    """A switch that another controller programs is as it should be."""
    reached = switch.outranked or not switch.trouble
    return join.SwitchReport(
        name=switch.name,
        kind=switch.kind,
        state="standby" if reached else "unreachable",
        trouble="" if reached else switch.trouble,
        slots_total=switch.sizes.slots,
        jobs_max=switch.sizes.jobs_max,
        lanes_max=switch.sizes.lanes_max,
        endpoint=join.Endpoint(address=switch.endpoint.address, port=switch.endpoint.port),
        parent=switch.parent,
        part_of=switch.part_of,
    )
