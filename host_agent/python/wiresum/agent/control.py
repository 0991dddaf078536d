"""The way to the join service: gRPC, without its fork handlers, and a channel to one control endpoint at a time.

gRPC and fork(): gRPC's own handlers, where they run, stop all gRPC threads before each fork, which takes up to a second
while a stream is open, and do not bring the stream to the child anyway. A training process forks DataLoader workers,
which need no gRPC. So the handlers are turned off, unless the user has set GRPC_ENABLE_FORK_SUPPORT, and in a child a
membership is inert. A child may keep the connection open when its parent is killed; then nobody answers the service's
pings, and the service notices.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from wiresum import join as messages
from wiresum.agent.config import AgentConfig
from wiresum.agent.world import WORLD, World


def _import_grpc_without_fork_handlers() -> Any:
    """gRPC reads the variable when it starts; the variable is unset again for processes that this one starts."""
    # Otherwise gRPC logs each attempt to connect whose handshake fails, twice a second.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    unset = "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
    if unset:
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    try:
        import grpc
    finally:
        if unset:
            del os.environ["GRPC_ENABLE_FORK_SUPPORT"]
    return grpc


grpc = _import_grpc_without_fork_handlers()

from wiresum.join import join_pb2_grpc  # noqa: E402 - it imports gRPC

CONNECT_S_MAX = 3.0
RETRY_PAUSE_S = 0.2

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", messages.ANSWER_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The longest attempt to connect, by gRPC's name.
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_S_MAX)),
    # A worker that waits in Join for hours should notice when the service's host vanishes, and ask at a standby. (gRPC
    # waits for the answer to a ping for the longer of the two times, of which the second would be a minute.)
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Data goes to the switch directly, and a proxy for the web is not the way to it.
    ("grpc.enable_http_proxy", 0),
    # Each channel gets a connection of its own, so that a fresh channel means a fresh connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class Control:
    """The endpoints of the configuration, of which one is connected. Any thread may call any method."""

    def __init__(self, config: AgentConfig, world: World = WORLD) -> None:
        """Raises `CredentialsError` for unusable credentials."""
        assert "+" not in config.switch, "a control channel is one aggregator's"
        self._config, self._world = config, world
        self._lock = threading.RLock()
        self._closed = False
        self._endpoint = config.control_endpoints[0]
        self._channel = self._open(self._endpoint)

    @property
    def endpoint(self) -> str:
        """The endpoint in use, host:port."""
        return self._endpoint

    def stub(self) -> join_pb2_grpc.JoinServiceStub:
        with self._lock:
            return join_pb2_grpc.JoinServiceStub(self._channel)

    def is_ready(self, timeout_s: float) -> bool:
        """Returns whether the service could let a job begin now. False also if the service does not answer."""
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        with self._lock:
            stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=messages.JOIN_SERVICE), timeout=timeout_s)
        except (grpc.RpcError, ValueError):  # ValueError: the channel is closed
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def reconnect(self, to: str = "") -> None:
        """Connects afresh, to this endpoint; empty: to the next one, since a standby may have taken over. Raises
        `CredentialsError` if the files have become unusable: then there is no connection until the next call."""
        with self._lock:
            if self._closed:
                return
            endpoints = self._config.control_endpoints
            self._endpoint = to or endpoints[(endpoints.index(self._endpoint) + 1) % len(endpoints)]
            used = self._channel
            try:
                self._channel = self._open(self._endpoint)
            finally:
                used.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._channel.close()

    def _open(self, endpoint: str) -> Any:
        return self._world.connect(endpoint, self._config, _CHANNEL_OPTIONS)


def code_of(error: Any) -> str:
    """Returns the name of gRPC's status code; CANCELLED also for a call on a closed channel, which gRPC answers with a
    plain ValueError."""
    return str(error.code().name) if isinstance(error, grpc.RpcError) else "CANCELLED"


def details(error: Any) -> str:
    said = getattr(error, "details", None)
    return str(said() if said else error) or type(error).__name__


def is_from_service(error: Any) -> bool:
    """Tells a refusal by the service from gRPC's failure to reach the service. The status code is the same for both."""
    return any(key == messages.REFUSED_KEY for key, _ in _trailers(error))


def ask_again_after_s(error: Any) -> float | None:
    """Returns None if asking again cannot help. Asking again helps if the connection failed or broke, or if the service
    is just ending something or overloaded; the service, or gRPC in its place, says when there will be less to do."""
    for key, value in _trailers(error):
        if key == messages.RETRY_KEY:
            return max(RETRY_PAUSE_S, int(value) / 1000)
    broken = not is_from_service(error) and code_of(error) in ("CANCELLED", "INTERNAL", "RESOURCE_EXHAUSTED")
    return RETRY_PAUSE_S if broken or code_of(error) == "UNAVAILABLE" else None


def _trailers(error: Any) -> Any:
    trailing = getattr(error, "trailing_metadata", None)
    return (trailing() if trailing else None) or ()
