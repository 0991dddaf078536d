"""gRPC's health service (grpc.health.v1), for probes and load balancers.

    ""                              the service answers, does its work, and has not been told to stop; no other service
                                    serves in its place
    wiresum.join.v1.JoinService     jobs are taken: a switch takes jobs, the state can be written, and the
                                    service answers in time

A load balancer should ask for the first: workers of running jobs need their service also while no job can begin. The
protocol has no field for a reason, so the reason is in the trailing metadata.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from wiresum.join import JOIN_SERVICE, WHY_NOT_KEY

_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WHY_BYTES_MAX = 1024


class Health:
    """Used from one event loop, but for `why_not`."""

    def __init__(self, server: Any, why_silent: Callable[[], Awaitable[str]]) -> None:
        """Adds itself to `server`, gRPC's. `why_silent`: returns a sentence that says why the service must not answer;
        empty if it may."""
        self.why_not = ""
        """A sentence that says why no job can begin; empty if one can. May be read from any thread."""
        self._servicer = _Servicer(why_silent)
        self._shown: dict[str, bool] = {}
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def show(self, why_not: str, *, works: bool = True) -> None:
        """Sets what the health service answers. `why_not`: why no job can begin now; empty if one can. `works`: whether
        the service is of use to running jobs."""
        self.why_not = why_not
        self._servicer.whys = {JOIN_SERVICE: why_not, "": "" if works else why_not}
        for service, healthy in ((JOIN_SERVICE, not why_not), ("", works)):
            if self._shown.get(service) != healthy:
                self._shown[service] = healthy
                await self._servicer.set(service, _SERVING if healthy else _NOT_SERVING)

    async def end(self) -> None:
        """Makes the service unhealthy for good, since it stops."""
        await self._servicer.enter_graceful_shutdown()


class _Servicer(health.aio.HealthServicer):  # type: ignore[misc]
    def __init__(self, why_silent: Callable[[], Awaitable[str]]) -> None:
        super().__init__()
        self._why_silent = why_silent
        self.whys: dict[str, str] = {}

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        silent = await self._why_silent()
        if why := silent or self.whys.get(request.service):
            context.set_trailing_metadata(((WHY_NOT_KEY, why.encode()[:WHY_BYTES_MAX]),))
        if silent and request.service in self.whys:
            return health_pb2.HealthCheckResponse(status=_NOT_SERVING)
        return await super().Check(request, context)
