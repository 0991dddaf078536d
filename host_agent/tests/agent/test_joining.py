"""What a worker that cannot reach its service is told to do."""

from __future__ import annotations

import pytest

from wiresum.agent import joining
from wiresum.agent.config import AgentConfig

SILENT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.2:43487: tcp handshaker shutdown"
"""gRPC says so where nothing answers to a TCP connection."""
TIMED_OUT = "last error: UNKNOWN: ipv4:10.0.0.2:43487: Failed to connect to remote host: connect() timed out"
WRONG_AUTHORITY = "Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED"


class UnavailableError(Exception):
    def details(self) -> str:
        return str(self)


@pytest.mark.parametrize("said", [SILENT, TIMED_OUT])
@pytest.mark.parametrize("tls", ["", "/etc/wiresum/worker"])
def test_a_silent_network_is_not_blamed_on_certificates(said: str, tls: str) -> None:
    advice = joining._advice(UnavailableError(said), AgentConfig(switch="10.0.0.2:43487", tls=tls))
    assert advice.startswith("start one there with `wiresum switch`")
    assert "ca.crt" not in advice
    assert "WIRESUM_TLS" not in advice


def test_a_service_that_hangs_up_may_ask_for_certificates() -> None:
    advice = joining._advice(UnavailableError("Socket closed"), AgentConfig(switch="10.0.0.2:43487"))
    assert "hangs up without WIRESUM_TLS" in advice


def test_a_certificate_that_does_not_fit_is_named() -> None:
    config = AgentConfig(switch="10.0.0.2:43487", tls="/etc/wiresum/worker")
    advice = joining._advice(UnavailableError(WRONG_AUTHORITY), config)
    assert "must be of the authority in /etc/wiresum/worker/ca.crt" in advice
