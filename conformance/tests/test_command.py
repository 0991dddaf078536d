"""The command as a vendor types it: with the software switch over P4Runtime, and by a script, on hosts of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bmv2_tests.bmv2_harness import inside
from wiresum.conformance.checks import all_checks, chosen
from wiresum.conformance.command import conformance
from wiresum.conformance.scenarios import PROFILES
from wiresum.controller import DriverError, Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.join.constants import P4RUNTIME_PORT
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.namespaces.star import STAR_DEVICE, Star, StarError, check_prerequisites
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, wiresum

OF_A_HOST = ",".join(PROFILES.keys() - {"frames", "network"})
"""What a switch implements that is a process behind sockets."""
HOOK = """#!{python}
import json, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({place!r})
    there.sendall(json.dumps([sys.argv[1], json.load(sys.stdin)]).encode() + b"\\n")
    said = there.makefile().read()
if said.startswith("refused"):
    sys.exit(said)
print(said)
"""


@pytest.fixture(scope="module")
def star() -> Iterator[Star]:
    """A switch's machine that reaches the suite's imaginary hosts, and the suite's machine."""
    try:
        check_prerequisites()
    except StarError as error:
        pytest.skip(str(error))
    with Star(1) as star:
        star.switch.run(["ip", "route", "add", "10.111.0.0/16", "dev", STAR_DEVICE])
        for host in (star.switch, *star.workers):
            host.run(["ethtool", "-K", STAR_DEVICE, "tx", "off"])
        yield star


def run(star: Star, *arguments: str) -> subprocess.CompletedProcess[str]:
    (link,) = json.loads(star.switch.run(["ip", "-j", "link", "show", "dev", STAR_DEVICE]))
    place = ["--ports", f"0={STAR_DEVICE}", "--address", star.switch.address, "--mac", link["address"]]
    waits = ["--wait-s", str(PATIENCE_S)]
    command = wiresum("conformance", *place, *waits, "--profile", OF_A_HOST, *arguments)
    return subprocess.run(
        star.workers[0].command(command), capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )


def test_the_software_switch_follows_the_protocol(star: Star, tmp_path: Path) -> None:
    at, report = f"{star.switch.management_address}:{P4RUNTIME_PORT}", tmp_path / "report.xml"
    options = ("--p4runtime", at, "--insecure", "--bind", star.switch.address, "--lanes", "64", "--threads", "2")
    with Program(wiresum("switch", *options), tmp_path / "log", at=star.switch.popen) as switch:
        switch.await_text("ready")
        done = run(star, "--p4runtime", at, "--kind", "software", "--seed", "5", "--junit", str(report))
        assert done.returncode == 0, done.stdout + done.stderr
        cases = ElementTree.parse(report).getroot().findall("testcase")
        assert len(cases) == len(chosen(all_checks(seeds=[5]), [*OF_A_HOST.split(","), "required"]))
        assert "R3.13" in {rule.get("value") for case in cases for rule in case.iter("property")}


class Vendor:
    """A switch without P4Runtime, as a script sees it: a server at a Unix socket."""

    def __init__(self, star: Star, folder: Path) -> None:
        self.place = str(folder / "vendor.socket")
        with inside(star.switch.namespace):
            self.switch = SoftwareSwitch(bind=star.switch.address, threads=1, lanes_max=64, slots=4096)
        self._server = socket.create_server(self.place, family=socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.script = folder / "hook"
        self.script.write_text(HOOK.format(python=sys.executable, place=self.place))
        self.script.chmod(0o755)
        self.takes_parents = True

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.place)
        self._thread.join()
        self._server.close()
        self.switch.close()

    def _serve(self) -> None:
        while True:
            caller, _ = self._server.accept()
            with caller, caller.makefile("rw") as lines:
                line = lines.readline()
                if not line:
                    return
                try:
                    lines.write(self._do(*json.loads(line)))
                except DriverError as error:
                    lines.write(f"refused: {error}")

    def _do(self, verb: str, about: dict[str, Any]) -> str:
        if verb == "load":
            self.switch.reset()
        elif verb == "admit":
            job = about["job"] if self.takes_parents else about["job"] | {"parent": None}
            self.switch.admit(entry(job))
        elif verb == "evict":
            self.switch.evict(about["job"])
        elif verb == "count":
            stats = self.switch.stats()
            return json.dumps(stats.packets | {"results": stats.results})
        return ""


def entry(job: dict[str, Any]) -> JobEntry:
    """The job of a script's document."""
    threads, parent = job["threads"], job["parent"]
    return JobEntry(
        job=job["job"],
        key=job["key"],
        workers=len(job["workers"]),
        threads=len(threads),
        lanes=job["lanes"],
        slot_base=job["cell_base"] // 2,
        slots=threads[-1]["cells"][1] // 2,
        endpoints=tuple(Endpoint(worker["address"], worker["udp_port"]) for worker in job["workers"]),
        uplink=Uplink(Endpoint(parent["address"], parent["udp_port"]), parent["number_at_parent"]) if parent else None,
        port_offset=threads[0]["thread"],
    )


@pytest.fixture
def vendor(star: Star, tmp_path: Path) -> Iterator[Vendor]:
    with closing(Vendor(star, tmp_path)) as vendor:
        yield vendor


def test_a_script_programs_a_switch_without_p4runtime(star: Star, vendor: Vendor) -> None:
    chosen = [word for name in ("parents/*", "jobs/*", "frames/*", "sequences/*") for word in ("--only", name)]
    done = run(star, "--hook", str(vendor.script), "--packets", "100", *chosen)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_switch_that_breaks_a_rule_fails_with_its_number(star: Star, vendor: Vendor) -> None:
    """The vendor's switch takes itself for the root of every tree."""
    vendor.takes_parents = False
    done = run(star, "--hook", str(vendor.script), "--only", "R8.4")
    assert done.returncode == 1, done.stdout + done.stderr
    by_rule = {line.split()[0]: line for line in done.stdout.split("\n\n")[0].splitlines()}
    assert "FAILS  " in by_rule["R8.4"] and "parents/" in by_rule["R8.4"]
    assert "holds" in by_rule["R3.18"]


def test_the_list_names_rules_and_profiles() -> None:
    listed = CliRunner().invoke(conformance, ["--list", "--only", "R3.13"])
    assert listed.exit_code == 0
    assert any(line.startswith("sums/") for line in listed.output.splitlines())
    few = CliRunner().invoke(conformance, ["--list", "--profile", "required"]).output
    assert len(few.splitlines()) == len(chosen(all_checks(seeds=[1, 2, 3]), ["required"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either --p4runtime or --hook"),
        (["--only", "R99"], "no check of these profiles is called R99"),
        (["--profile", "wings"], "there is no wings"),
        (["--p4runtime", "127.0.0.1:1", "--ports", "eth1"], "--ports says 1=eth1,2=eth2"),
        (["--p4runtime", "127.0.0.1:1", "--ports", "1=there_is_none"], "there_is_none"),
        (["--p4runtime", "127.0.0.1:1", "--address", "ten", "--ports", "1=lo"], "--address or --mac"),
    ],
)
def test_what_cannot_run_ends_with_2_and_says_why(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(conformance, arguments)
    assert result.exit_code == 2
    assert said in result.output
