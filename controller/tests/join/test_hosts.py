from __future__ import annotations

import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wiresum.agent import AgentConfig
from wiresum.agent.way_out import way_out
from wiresum.controller import config, controlling
from wiresum.join import hosts
from wiresum.switch import command as switch_command
from wiresum.switch.command import switch

NAMES = {
    "debian": ["127.0.1.1"],
    "both": ["127.0.1.1", "192.0.2.7"],
    "both6": ["::1", "127.0.1.1", "2001:db8::7"],
    "here6": ["::1"],
    "localhost": ["127.0.0.1"],
}
"""As /etc/hosts or a DNS may have them."""
ONLY_HERE = "which others cannot reach: say the address"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.getaddrinfo

    def look_up(host: str | None, port: object, family: int = 0, *more: Any, **named: Any) -> list[Any]:
        if host not in NAMES:
            return original(host, port, family, *more, **named)  # type: ignore[arg-type]
        families = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in NAMES[host]}
        found = [(of, 1, 6, "", (at, port or 0)) for at, of in families.items() if family in (0, of)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(hosts, "_warned", set())


def test_addresses_that_others_reach_come_first() -> None:
    assert hosts.addresses_of("both", socket.AF_INET) == ["192.0.2.7", "127.0.1.1"]
    assert hosts.addresses_of("both6") == ["2001:db8::7", "::1", "127.0.1.1"]
    assert hosts.addresses_of("", socket.AF_INET) == ["0.0.0.0"]
    with pytest.raises(OSError, match="part of the name"):
        hosts.addresses_of("a..b")


@pytest.mark.parametrize("host", ["debian", "here6"])
def test_a_name_by_which_only_this_host_reaches_it_is_told(host: str) -> None:
    assert f"{host!r} is {NAMES[host][0]} on this host, {ONLY_HERE}" in hosts.why_only_here(host)


@pytest.mark.parametrize(
    "host",
    ["both", "both6", "localhost", "localhost.localdomain", "127.0.1.1", "::1", "0.0.0.0", "[::1]", ""],
)
def test_other_names_and_whoever_asks_for_loopback_are_not(host: str) -> None:
    assert hosts.why_only_here(host) == ""


def test_a_name_is_shown_with_its_addresses() -> None:
    shown = [hosts.shown(host) for host in ("debian", "127.0.0.1", f"{uuid.uuid4().hex}.invalid")]
    assert shown[:2] == ["debian (127.0.1.1)", "127.0.0.1"]
    assert shown[2].endswith(".invalid")


CONFIG = """
[controller]
listen = "{listen}:0"
metrics = "{metrics}:0"
[security]
insecure = true
[[switch]]
name = "leaf"
kind = "software"
p4runtime = "127.0.0.1:1"
address = "127.0.0.1"
"""


@pytest.mark.parametrize("option", ["--control", "--p4runtime", "--metrics"])
def test_a_switch_warns_of_such_a_name_and_listens_where_others_come(option: str) -> None:
    refused = CliRunner().invoke(switch, [option, "debian:0", "--bind", "192.0.2.1", "--port", "0"])
    assert "no such address" in refused.output, "the option is read, and the switch cannot start"
    assert f"{option}: 'debian' is 127.0.1.1 on this host, {ONLY_HERE}" in refused.output
    assert switch_command._endpoint(option, "both:5") == ("192.0.2.7", 5)


@pytest.mark.parametrize(("listen", "metrics_at"), [("debian", "127.0.0.1"), ("127.0.0.1", "debian")])
def test_a_controller_warns_of_such_a_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, listen: str, metrics_at: str
) -> None:
    (tmp_path / "cluster.toml").write_text(CONFIG.format(listen=listen, metrics=metrics_at))
    controlling.check_listening(config.load(tmp_path / "cluster.toml"))
    (said,) = caplog.messages
    assert said.startswith("listen: 'debian'" if listen == "debian" else "metrics: 'debian'")
    assert ONLY_HERE in said


def test_a_worker_warns_once_of_such_a_name(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert way_out(AgentConfig(switch="debian:1"))[0].startswith("127.")
    (said,) = caplog.messages
    assert said.startswith("WIRESUM_SWITCH, without WIRESUM_ADDRESS: 'debian' is 127.0.1.1")
    assert way_out(AgentConfig(switch="debian:1", address="127.0.0.1"))[0] == "127.0.0.1"
    assert len(caplog.messages) == 1
