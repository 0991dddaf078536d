"""No page, example or script starts a switch with a door that is open to strangers. Who can come in where bmv2 runs is
tried in bmv2_tests/test_doors.py; `bf_switchd` can only be read."""

from __future__ import annotations

import re
from pathlib import Path

from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT
from wiresum_lab import REPOSITORY

TYPED = {".md", ".toml", ".conf", ".sh", ".yml", ".yaml", ".service", ""}


def lines(tracked: list[Path], program: str) -> list[tuple[str, str, str]]:
    """Where it is started in what people type or install: the file, the line before, and the line."""
    found = []
    for path in tracked:
        if path.suffix in TYPED and path.is_file():
            text = re.sub(r"\\\n\s*", "", path.read_text(errors="replace")).splitlines()
            starts = re.compile(rf"^[#\s]*(sudo )?(\S*/)?{program} -")
            name = str(path.relative_to(REPOSITORY))
            found += [
                (name, before, line) for before, line in zip(["", *text], text, strict=False) if starts.match(line)
            ]
    return found


def test_bf_switchd_is_always_told_to_listen_on_its_own_host_alone(tracked: list[Path]) -> None:
    started = lines(tracked, "bf_switchd")
    assert started, "docs/tofino_deploy.md starts it"
    for path, _, line in started:
        assert "--server-listen-local-only" in line, f"{path}: {line}"
        assert "--p4rt-server 127.0.0.1:" in line, f"{path}: {line}: its P4Runtime server has no TLS"


def test_bmv2_is_never_started_before_the_rules_that_close_its_thrift_port(tracked: list[Path]) -> None:
    started = lines(tracked, "simple_switch_grpc")
    assert {path for path, _, _ in started} >= {"docs/bmv2.md", "controller/deploy/cluster-bmv2.toml"}
    for path, before, line in started:
        assert "nft -f controller/deploy/nftables-bmv2.conf" in before, f"{path}: {line}"
        assert "--thrift-port" not in line, f"{path}: {line}: the rules are for bmv2's own"
        assert "--grpc-server-addr 127.0.0.1:" in line or "--grpc-server-ssl" in line, f"{path}: {line}"


def test_the_firewalls_rules_are_for_the_ports_that_the_page_lists() -> None:
    listed = (REPOSITORY / "docs/security.md").read_text().partition("## What listens\n")[2].partition("\n## ")[0]
    deploy = REPOSITORY / "controller/deploy"
    ours = {
        port for row in re.findall(r"^\| `wiresum .*", listed, re.MULTILINE) for port in re.findall(r"TCP (\d+)", row)
    }
    limited = re.findall(r"tcp dport { (.*) } ct state new", (REPOSITORY / "docs/cluster.md").read_text())
    assert {tuple(sorted(each.split(", "))) for each in limited} == {tuple(sorted(ours))}
    assert ours == {str(CONTROL_PORT), str(P4RUNTIME_PORT)}
    (thrift,) = re.findall(r"TCP (\d+) \(Thrift\)", listed)
    rules = re.findall(r"^ *(?!#).*tcp dport (\d+)", (deploy / "nftables-bmv2.conf").read_text(), re.MULTILINE)
    assert rules == [thrift, thrift], "from others, and from other users"
