"""The gRPC server of a standby: operators get a report, workers hear that another controller serves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from wiresum import join
from wiresum.controller.jobs.report import about_service, about_switch
from wiresum.controller.p4runtime import P4RuntimeSwitch
from wiresum.controller.security import Security
from wiresum.controller.service.server_thread import OPTIONS, ServerThread
from wiresum.join import join_pb2, operator_pb2

SERVICES = tuple(
    service
    for definitions in (join_pb2, operator_pb2, health_pb2)
    for service in definitions.DESCRIPTOR.services_by_name.values()
)
"""The services of an active controller. Health checks are turned away too, so that a load balancer does not choose a
standby."""
ANSWERED = "wiresum.join.v1.OperatorService/GetReport"
STOP_GRACE_S = 0.1
STOP_S_MAX = 5.0


class StandbyServer(ServerThread):
    """A standby's server. The switches and the security belong to the caller."""

    def __init__(
        self,
        switches: Sequence[P4RuntimeSwitch],
        security: Security,
        active_silent_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`active_silent_s`: for how long the active controller has shown no life; None: no controller serves. Called
        from any thread."""
        super().__init__("wiresum-standby")
        self._switches, self._security, self._active_silent_s = switches, security, active_silent_s
        self._started_at = time.monotonic()

    def stop(self) -> None:
        """Ends the server. Idempotent. The port is free again on return."""
        self._end(STOP_S_MAX)

    def report(self) -> join.Report:
        """Returns a report without jobs, which only the active controller knows. May be called from any thread."""
        answer = join.Report(service=about_service("standby"))
        answer.service.age_seconds = time.monotonic() - self._started_at
        if (silent_s := self._active_silent_s()) is not None:
            answer.service.active_silent_seconds = silent_s
        answer.service.refusals.update(self._security.refusals)
        answer.switches.extend(map(_switch, self._switches))
        return answer

    @contextlib.asynccontextmanager
    async def _serving(self, listen: str) -> AsyncIterator[int]:
        server = grpc.aio.server(options=OPTIONS, interceptors=[self._security.interceptor])
        server.add_generic_rpc_handlers(_handlers(self.report))
        async with self._security.listening(server, listen) as port:
            await server.start()
            yield port
            await server.stop(STOP_GRACE_S)


def _handlers(report: Callable[[], join.Report]) -> list[grpc.GenericRpcHandler]:
    """Handlers of all calls that the active controller answers, by the definitions of its services: each call is
    answered here too, or turned away."""

    async def answer(_request: object, context: Any) -> None:
        await context.write(report())

    def handler(method: str) -> grpc.RpcMethodHandler:
        # On the wire all kinds of methods are the same; the interceptor has checked the caller and the first message.
        return grpc.stream_stream_rpc_method_handler(
            answer if method == ANSWERED else _turn_away,
            response_serializer=lambda message: message.SerializeToString(),
        )

    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {method.name: handler(f"{service.full_name}/{method.name}") for method in service.methods},
        )
        for service in SERVICES
    ]


async def _turn_away(_request: object, context: Any) -> NoReturn:
    """Aborts the call as if this controller were unreachable, not with a refusal, so that the caller tries the next
    endpoint."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"{join.STANDS_BY}: it serves once no other controller does")
    raise AssertionError("abort raises")


def _switch(switch: P4RuntimeSwitch) -> join.SwitchReport:
    """Reports a switch. A switch that another controller programs is in order."""
    reached = switch.outranked or not switch.trouble
    return about_switch(switch, "standby" if reached else "unreachable", "" if reached else switch.trouble)
