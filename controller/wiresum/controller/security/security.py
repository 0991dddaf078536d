"""The security of a service: how it listens, who may call what, and what it writes down about that."""

from __future__ import annotations

from collections import Counter
from typing import Any

from wiresum.controller.config import SecurityConfig
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.interceptor import Interceptor
from wiresum.controller.security.names import OPERATOR, ROLES, WORKER
from wiresum.controller.security.revocation import Revocations
from wiresum.join import MESSAGE_BYTES_MAX, credentials

SERVED = {
    "wiresum.join.v1.JoinService": frozenset({WORKER}),
    "wiresum.join.v1.OperatorService": frozenset({OPERATOR}),
    "wiresum.join.v1.OperatorService/ListEnded": frozenset({OPERATOR, WORKER}),  # who sees his own alone
    "grpc.health.v1.Health": frozenset(ROLES),
}
"""Who may call what, by role."""

RECEIVE_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
"""gRPC cuts off what is larger. What is between this and MESSAGE_BYTES_MAX is answered with a reason, and counted."""

CONNECTION_OPTIONS = (
    # A connection without a TLS handshake, or without HTTP/2, ends after this time; it would be two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Of all peers together: gRPC for Python has no bound for each. docs/security.md has what to put in front.
    ("grpc.max_allowed_incoming_connections", 8192),
    # Calls at a time on one connection, reset ones that are still on their way out among them. A worker has two.
    ("grpc.max_concurrent_streams", 100),
)
"""Of whoever may connect, before it is known who that is."""

OPTIONS = (
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    # Workers that wait ask whether the connection still is, every ten seconds; more often counts as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
"""For the gRPC server."""


class Security:
    """Of one service. Plaintext, unless the configuration names a TLS directory, and then only on loopback unless
    it is asked for by name."""

    def __init__(self, config: SecurityConfig | None = None) -> None:
        """Raises `OSError` if the audit log cannot be opened, `CredentialsError` if the list of revoked certificates
        cannot be used."""
        self._config = config or SecurityConfig()
        self.revocations = Revocations(self._config.tls)
        self._audit = AuditLog(self._config.audit)
        self.interceptor = Interceptor(
            SERVED,
            self._audit,
            is_revoked=self.revocations.has,
            requests_per_second=self._config.requests_per_second,
            requests_burst=self._config.requests_burst,
        )

    @property
    def refusals(self) -> Counter[str]:
        """Calls that were refused, by reason."""
        return self.interceptor.refusals

    def listen(self, server: Any, address: str) -> int:
        """Makes the server listen at host:port, and returns the TCP port. Raises `CredentialsError` or `OSError`."""
        return credentials.add_port(server, address, tls=self._config.tls, insecure=self._config.insecure)

    def close(self) -> None:
        self._audit.close()
