"""The doctor opens the transport that a worker is to use for a moment, and reports what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.agent import AgentConfig
from wiresum.cli.doctor import transport
from wiresum.cli.doctor.finding import Finding, Level, ok


def finding(config: AgentConfig, address: str = "127.0.0.1", root: Path = Path("/")) -> Finding:
    (only,) = transport.findings(config, address, root)
    assert only.check == "transport"
    return only


def test_sockets_are_available_everywhere() -> None:
    assert finding(AgentConfig()) == ok("transport", "packets go by udp")


def test_an_address_of_another_host_is_a_problem() -> None:
    found = finding(AgentConfig(), "203.0.113.1")
    assert found.level is Level.PROBLEM
    assert "203.0.113.1" in found.what


@pytest.mark.parametrize("transport", ["xdp", "xdp:lo"])
def test_an_unavailable_transport_is_reported_with_reason_and_advice(transport: str) -> None:
    """AF_XDP cannot be opened on this interface, with or without support for it in the build."""
    found = finding(AgentConfig(transport=transport))
    assert found.level is Level.PROBLEM
    assert "AF_XDP" in found.what or "wiresum_xdp" in found.what
    assert "WIRESUM_TRANSPORT=udp" in found.advice
