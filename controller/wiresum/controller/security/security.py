"""The security of a service: how it listens, who may call what, and the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from wiresum.controller.config import SecurityConfig
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.front import CONNECTIONS_MAX, Front
from wiresum.controller.security.interceptor import Interceptor
from wiresum.controller.security.names import OPERATOR, ROLES, WORKER
from wiresum.controller.security.revocation import Revocations
from wiresum.join import POSITIONS_BYTES_MAX

SERVED = {
    "wiresum.join.v1.JoinService": frozenset({WORKER}),
    "wiresum.join.v1.OperatorService": frozenset({OPERATOR}),
    "wiresum.join.v1.OperatorService/ListEnded": frozenset({OPERATOR, WORKER}),  # a worker sees only its tenants'
    "grpc.health.v1.Health": frozenset(ROLES),
}
"""For each service, or method that differs, the roles that may call it."""

RECEIVE_BYTES_MAX = 2 * POSITIONS_BYTES_MAX
"""The largest message that gRPC accepts. Smaller messages that are still too large are refused with a reason, and
counted."""

CONNECTION_OPTIONS = (
    # Bounds the handshakes of TLS and HTTP/2; the default is two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # More than front.py lets in, since gRPC also counts connections that have just ended, and refuses without a reason.
    ("grpc.max_allowed_incoming_connections", 2 * CONNECTIONS_MAX),
    # Streams of one connection, with reset ones that have not ended. A worker has two.
    ("grpc.max_concurrent_streams", 100),
)
"""Options that apply to connections before their caller is known."""

OPTIONS: tuple[tuple[str, int], ...] = (
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    # Waiting workers ask every ten seconds whether the connection still stands; more frequent pings count as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
"""Options of the gRPC server."""


class Security:
    """The security of one service. Without a TLS directory the service is plaintext, and on loopback only unless
    `insecure`."""

    def __init__(
        self,
        config: SecurityConfig | None = None,
        listener: socket.socket | None = None,
        served: Mapping[str, frozenset[str]] = SERVED,
        **calls: Any,
    ) -> None:
        """`listener`: as for `Front`. `served`, `calls`: roles and bounds, as for `Interceptor`. Raises
        `CredentialsError` for a list of revoked certificates that cannot be used."""
        self._config = config or SecurityConfig()
        self.revocations = Revocations(self._config.tls)
        self.audit = AuditLog(self._config.audit)
        self.refusals: Counter[str] = Counter()
        """Calls and connections that were refused, by reason: the reasons of `Interceptor`, and connections."""
        self.front = Front(self.refusals, listener=listener)
        self.interceptor = Interceptor(
            served, self.audit, self.front, self.refusals, is_revoked=self.revocations.has, **calls
        )

    @contextlib.asynccontextmanager
    async def listening(
        self, server: Any, address: str, tell_revoked: Callable[[], None] = lambda: None
    ) -> AsyncIterator[int]:
        """Listens at host:port, from before `server` starts until after it has stopped; gives the TCP port.
        `tell_revoked`: called when certificates may have been revoked, soon before their holders' calls and connections
        end. Raises `CredentialsError` or `OSError`."""
        async with self.front.listening(server, address, tls=self._config.tls, insecure=self._config.insecure) as port:
            watching = asyncio.create_task(self.revocations.watch(tell_revoked, self._end_revoked))
            try:
                yield port
            finally:
                watching.cancel()

    def _end_revoked(self) -> None:
        self.interceptor.end_revoked()
        self.front.end_revoked(self.revocations.has)

    def close(self) -> None:
        self.audit.close()
