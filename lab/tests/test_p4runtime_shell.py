"""p4runtime-shell, an independent client, and our driver at one switch see each other's entries."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.p4runtime import Host, P4RuntimeSwitch, Target
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.p4runtime_shell import ShellError, clean_environment, python_of
from wiresum_lab.patience import PATIENCE_S

SCRIPT = """
import json, sys
import p4runtime_sh.shell as sh
address, device, election_id, stray = sys.argv[1:]
sh.setup(int(device), address, (int(election_id), 0), verbose=False)
number = lambda value: int.from_bytes(value, "big")
if stray:
    entry = sh.TableEntry("own")(action="own_address")
    entry.match["address"], entry.match["destination"] = stray, "02:00:00:00:00:77"
    entry.action["mac"] = "02:00:00:00:00:77"
    entry.insert()
admit = [
    {match.name: number(entry.match[match.name].exact.value) for match in entry.match._fields.values()}
    for entry in sh.TableEntry("admit").read()
]
groups = [[[r.egress_port, r.instance] for r in g.replicas] for g in sh.MulticastGroupEntry(8).read()]
print(json.dumps({"admit": admit, "groups": groups, "own": len(list(sh.TableEntry("own").read()))}))
sh.teardown()
"""
HOSTS = (Host("a", "10.0.0.10", "02:00:0a:00:00:0a", 1), Host("b", "10.0.0.11", "02:00:0a:00:00:0b", 2))
JOB = JobEntry(
    job=7,
    key=0xFEED0007,
    workers=2,
    threads=1,
    lanes=64,
    slot_base=0,
    slots=8,
    endpoints=tuple(Endpoint(host.address, 5000) for host in HOSTS),
)


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return python_of()
    except ShellError as error:
        pytest.skip(f"no independent client: {error}")


@pytest.fixture
def target() -> Iterator[Target]:
    with programmed_switch(3, slots=64, lanes_max=64) as switch:
        yield replace(switch.target, kind="bmv2", address="10.0.0.1", mac="02:00:0a:00:00:01", hosts=HOSTS)


def ask(python: Path, target: Target, *, election_id: int, stray: str = "") -> dict[str, object]:
    command = [str(python), "-c", SCRIPT, target.p4runtime, str(target.device), str(election_id), stray]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_an_independent_client_and_our_driver_see_each_others_entries(python: Path, target: Target) -> None:
    with contextlib.closing(P4RuntimeSwitch(target, election_id=2)) as switch:
        switch.wait_ready()
        switch.reconcile([])
        switch.admit(JOB)
        answer = ask(python, target, election_id=0)
        keys = ("ingress_port", "source", "source_port", "thread", "job", "key", "worker")
        sources = [(int(IPv4Address(endpoint.address)), endpoint.port) for endpoint in JOB.endpoints]
        expected = [dict(zip(keys, (1 + i, *sources[i], 0, 7, JOB.key, i), strict=True)) for i in range(2)]
        assert sorted(answer["admit"], key=lambda entry: entry["worker"]) == expected  # type: ignore[call-overload]
        assert [sorted(group) for group in answer["groups"]] == [[[1, 0], [2, 1]]]  # type: ignore[attr-defined]
        assert switch.trouble == ""
        assert ask(python, target, election_id=100, stray="10.0.0.99")["own"] == 4, (
            "two for the address, the record of keys, and the shell's entry"
        )
    with contextlib.closing(P4RuntimeSwitch(target, election_id=101)) as switch:
        switch.wait_ready()
        changes = switch.reconcile([JOB]).changes
        assert changes == (
            "- own address 10.0.0.99, destination 02:00:00:00:00:77: own_address(mac 02:00:00:00:00:77)",
        )
