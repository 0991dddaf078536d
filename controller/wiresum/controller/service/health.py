"""gRPC's health service (grpc.health.v1), for probes and load balancers.

    ""                              the service answers, and has not been told to stop
    wiresum.join.v1.JoinService     a job could begin now: a switch takes jobs, and the state can be written

A load balancer should ask for the first: workers of running jobs need their service also while no job can begin.
"""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from wiresum.join import JOIN_SERVICE

_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Used from one event loop."""

    def __init__(self, server: Any) -> None:
        """`server`: gRPC's, to which it adds itself."""
        self._servicer = health.aio.HealthServicer()
        self._shown: bool | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def show(self, *, can_begin: bool) -> None:
        """`can_begin`: could a job begin now?"""
        if can_begin != self._shown:
            self._shown = can_begin
            await self._servicer.set(JOIN_SERVICE, _SERVING if can_begin else _NOT_SERVING)

    async def end(self) -> None:
        """The service stops: from now on it is not healthy."""
        await self._servicer.enter_graceful_shutdown()
