"""The files of controller/deploy agree with the code: units, container file, dashboard and examples."""

from __future__ import annotations

import configparser
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wiresum.controller import config
from wiresum.controller.service.join_server import TICK_S_MAX
from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT
from wiresum_lab.pages import blocks
from wiresum_lab.patience import PATIENCE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
REPOSITORY = DEPLOY.parents[1]
UNITS = sorted(DEPLOY.glob("*.service"))
EXAMPLES = {"cluster-software.toml": "software", "cluster-bmv2.toml": "bmv2", "cluster-tofino.toml": "tofino"}


def read_unit(path: Path) -> configparser.ConfigParser:
    class Multi(dict[str, Any]):
        """Collects the lines of a key that is repeated."""

        def __setitem__(self, key: str, value: Any) -> None:
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    unit = configparser.ConfigParser(strict=False, interpolation=None, dict_type=Multi, delimiters=["="])
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    return unit


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_a_configuration_of_its_kind(example: str) -> None:
    loaded = config.load(DEPLOY / example)
    assert [switch.kind for switch in loaded.switches] == [EXAMPLES[example]]


def test_every_example_is_tested() -> None:
    assert {path.name for path in DEPLOY.glob("*.toml")} == set(EXAMPLES)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_our_command_with_restrictions_and_restarts_it_without_limit(unit: Path) -> None:
    service = read_unit(unit)["Service"]
    assert service["ExecStart"].split()[0] == "/opt/wiresum/bin/wiresum"
    assert service["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in service
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 2 * TICK_S_MAX, "a short delay does not trigger the watchdog"
    assert read_unit(unit)["Unit"]["StartLimitIntervalSec"] == "0", "systemd never gives up"
    assert (service["CapabilityBoundingSet"], service["NoNewPrivileges"]) == ("", "yes")


def test_the_controllers_unit_runs_it_as_standby() -> None:
    """Without --standby a deposed controller would exit with status 3, be restarted and depose the other one again."""
    assert " --standby" in read_unit(DEPLOY / "wiresum-controller.service")["Service"]["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit_and_rates_it_as_restricted(unit: Path) -> None:
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    complaints = [line for line in verified.stderr.splitlines() if "/opt/wiresum/bin/wiresum is not exec" not in line]
    assert complaints == []
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
    assert exposure is not None, judged.stderr
    assert float(exposure[1]) < 2.0


def test_the_dashboard_shows_only_processes_of_our_services() -> None:
    """Prometheus has process metrics of nearly everything that it scrapes."""
    asked = expressions(json.loads((DEPLOY / "grafana-dashboard.json").read_text()))
    foreign = [expression for expression in asked if re.search(r"\bprocess_\w+", expression)]
    assert len(foreign) >= 3
    assert all(expression.endswith(" and on (job, instance) wiresum_up") for expression in foreign)


def test_the_dashboard_shows_every_metric_of_trouble_with_a_job() -> None:
    text = " ".join(expressions(json.loads((DEPLOY / "grafana-dashboard.json").read_text())))
    for name in ("resent", "stale", "out_of_lease", "contributions_behind", "heartbeat_age", "queue_position"):
        assert name in text


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_container_file_copies_existing_files_and_installs_existing_extras() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()]
    assert all((REPOSITORY / name).exists() for name in copied)
    project = (REPOSITORY / "pyproject.toml").read_text()
    in_the_wheel = project.partition("[tool.scikit-build.wheel.packages]")[2].partition("\n\n")[0]
    assert {"pyproject.toml", "CMakeLists.txt", *re.findall(r'= "(\w+)/', in_the_wheel)} <= set(copied)
    extras = set(re.findall(r"\[(\w+)\]'", text))
    assert extras
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    assert re.search(r"^ENTRYPOINT \[\"wiresum\"\]$", text, re.MULTILINE)


CONNECT = """
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
listener = socket.create_server((host, port), backlog=512, family=family)
held, refused = [], 0
for _ in range(90):
    connection = socket.socket(family)
    connection.settimeout(5)
    try:
        connection.connect((host, port))
        held.append(connection)
    except OSError:
        refused += 1
print(len(held), refused)
"""


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Names of network namespaces of its own."""
    if not (shutil.which("ip") and shutil.which("nft")):
        pytest.skip("needs `ip` of iproute2, and `nft` of nftables")
    names = [f"wiresum-{uuid.uuid4().hex[:8]}" for _ in range(count)]
    with contextlib.ExitStack() as cleanup:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("needs root, for a network namespace")
            cleanup.callback(subprocess.run, ["ip", "netns", "delete", name], check=True)
            ip(name, "link set lo up")
        yield names


def ip(name: str, command: str) -> None:
    subprocess.run(["ip", "-n", name, *command.split()], check=True)


def load(name: str, rules: str) -> None:
    loaded = subprocess.run(
        ["ip", "netns", "exec", name, "nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False
    )
    if "not supported" in loaded.stderr:
        pytest.skip("needs nf_tables in the kernel")
    assert loaded.returncode == 0, loaded.stderr


def run_in(name: str, program: str, *arguments: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_rule_on_the_page_limits_the_connections_of_an_address() -> None:
    (rules,) = (block for block in blocks(REPOSITORY / "docs/cluster.md") if block.language == "nft")
    for host, port in itertools.product(("127.0.0.1", "::1"), (CONTROL_PORT, P4RUNTIME_PORT)):
        with namespaces(1) as (name,):
            load(name, rules.text)
            said = run_in(name, CONNECT, host, str(port))
            assert said.split() == ["64", "26"], (host, port, said)


@pytest.mark.parametrize("rules", sorted(path.name for path in DEPLOY.glob("nftables*.conf")))
def test_rules_for_the_firewall_can_be_loaded_again(rules: str) -> None:
    with namespaces(1) as (name,):
        command = ["ip", "netns", "exec", name, "nft", "list", "ruleset"]
        listed = []
        for _ in range(2):
            load(name, (DEPLOY / rules).read_text())
            listed.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert listed[0] == listed[1] != ""


STATEFUL = """
table inet mine {
  chain input {
    type filter hook input priority filter; policy drop;
    iif lo accept
    ct state established,related accept
    udp dport { 43488-43503, 40000 } accept
  }
  chain output {
    type filter hook output priority filter; policy accept;
    ct state new counter
  }
}
"""
"""As an operator may have it; 40000 is another program's."""

SWITCH = """
import selectors, socket
selector = selectors.DefaultSelector()
for port in (43488, 43503, 40000, 50000):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("", port))
    selector.register(one, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        content, peer = key.fileobj.recvfrom(100)
        key.fileobj.sendto(content, peer)
"""

ASK = """
import socket, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
answered, held = 0, []  # each has a port of its own
for _ in range(count):
    held.append(one := socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    one.settimeout(20.0 if count > 1 else 1.0)
    one.connect((address, port))
    one.send(b"x")
    try:
        answered += one.recv(100) == b"x"
    except TimeoutError:
        pass
print(answered)
"""

TRACKED = Path("/proc/sys/net/netfilter/nf_conntrack_count")


def test_data_of_a_switch_takes_no_room_in_the_kernels_table_of_connections() -> None:
    """Also where an operator's rules drop what is of no connection, and those of others go on as before."""
    if not TRACKED.exists():
        pytest.skip("needs nf_conntrack in the kernel")
    with namespaces(2) as (host, far), contextlib.ExitStack() as cleanup:
        ip(host, f"link add wire type veth peer name wire netns {far}")
        for name, address in ((host, "10.9.0.1/24"), (far, "10.9.0.2/24")):
            ip(name, f"address add {address} dev wire")
            ip(name, "link set wire up")
        load(host, STATEFUL)
        load(host, (DEPLOY / "nftables-data.conf").read_text())
        command = ["ip", "netns", "exec", host, sys.executable, "-c", SWITCH]
        switch = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        cleanup.callback(switch.kill)
        assert switch.stdout is not None
        assert switch.stdout.readline() == "ready\n"

        def tracked() -> int:
            return int(run_in(host, f"print(open({str(TRACKED)!r}).read())"))

        for asker, port in ((far, 43488), (far, 43503), (host, 43488)):
            assert run_in(asker, ASK, "10.9.0.1", str(port), "50") == "50\n"
        assert tracked() == 0
        assert run_in(far, ASK, "10.9.0.1", "50000", "1") == "0\n", "another port is dropped as before"
        assert run_in(far, ASK, "10.9.0.1", "40000", "50") == "50\n"
        assert tracked() == 50, "the packets of others are tracked as before"
