"""A worker whose data has another address than its connection: the certificate must name it, and nothing on the way may
translate it. Each is said, at every rank and by the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum_lab.namespaces.star import STAR_DEVICE, Star, StarError
from wiresum_lab.processes import Program, wait_until, wiresum

INSIDE = "10.99.0.1"
RANK = """
import sys
from wiresum.agent import AgentConfig, Session, WiresumError
try:
    Session.join(AgentConfig.from_environment(), job_name="night", rank=int(sys.argv[1]), world_size=2)
except WiresumError as error:
    print("failed:", error, flush=True)
"""


@pytest.mark.nightly
def test_translated_addresses_are_said_at_every_rank_and_by_the_doctor(star: Star, tmp_path: Path) -> None:
    inside, outside = star.workers
    inside.run(["ip", "address", "add", f"{INSIDE}/32", "dev", "lo"])
    nat = "add table ip n\nadd chain ip n p { type nat hook postrouting priority 100; }\n"
    try:
        inside.run(["nft", f"{nat}add rule ip n p ip saddr {INSIDE} oifname {STAR_DEVICE} snat to {inside.address}\n"])
    except StarError as error:
        pytest.skip(f"addresses cannot be translated here: {error}")
    control = f"{star.switch.address}:43487"  # in the network of the data
    with ExitStack() as cleanup:
        command = wiresum("switch", "--control", control, "--insecure", "--bind", star.switch.address)
        cleanup.enter_context(Program(star.switch.command(command), tmp_path / "switch.log")).await_text("ready: ")
        ranks = [
            cleanup.enter_context(
                Program(
                    host.command([sys.executable, "-c", RANK, str(rank)]),
                    tmp_path / f"rank{rank}.log",
                    {"WIRESUM_SWITCH": control, "WIRESUM_INSECURE": "1", "WIRESUM_ADDRESS": address},
                )
            )
            for rank, (host, address) in enumerate([(inside, INSIDE), (outside, outside.address)])
        ]
        for rank in ranks:
            wait_until(lambda rank=rank: rank.exit_code is not None, "it has ended")  # type: ignore[misc]
            said = rank.await_text("failed: (.*)")[1]
            assert f"rank 0 ({INSIDE}, called from {inside.address}, " in said
            assert "If something on the way translates addresses (NAT), the switch takes none of its packets" in said
            why = said.rpartition(" ended the job: ")[2]  # the first to give up has told the other
            assert "rank 1 (" not in why

        asked = wiresum("doctor", "--check", "path", "--json", "--switch", control, "--insecure", "--size", "1")
        done = subprocess.run(
            inside.command([*asked, "--address", INSIDE]), capture_output=True, text=True, check=False
        )
        (finding,) = json.loads(done.stdout)["findings"]
        assert (done.returncode, finding["check"], finding["level"]) == (1, "data", "problem")
        assert "(NAT)" in finding["what"]
        assert finding["advice"].startswith("give workers and switches a way without NAT")


@pytest.mark.nightly
def test_an_address_that_the_certificate_does_not_name_is_a_problem(star: Star, tmp_path: Path) -> None:
    """The network for data is another one than that for control."""
    worker = star.workers[0]
    authority = Authority.create(tmp_path / "ca", "cluster")
    for name, role, address in (
        ("controller", "controller", star.switch.management_address),
        ("without", "worker", ""),
        ("with", "worker", worker.address),
    ):
        holder = Holder(name, Claims(frozenset({role})), tuple(filter(None, [address])))
        authority.issue(holder, tmp_path / name, 10)
    control = star.switch.control_endpoint
    command = wiresum("switch", "--control", control, "--tls", str(tmp_path / "controller"))
    command += ["--bind", star.switch.address]
    with Program(star.switch.command(command), tmp_path / "switch.log") as switch:
        switch.await_text("ready: ")
        for name, status, check in (("without", 1, "join"), ("with", 0, "sums")):
            asked = wiresum("doctor", "--check", "path", "--json", "--switch", control, "--size", "1")
            asked += ["--address", worker.address, "--tls", str(tmp_path / name)]
            done = subprocess.run(worker.command(asked), capture_output=True, text=True, check=False)
            finding = json.loads(done.stdout)["findings"][0]
            assert (done.returncode, finding["check"]) == (status, check), finding
            if status:
                assert finding["level"] == "problem"
                assert f"names no address {worker.address}, nor does the connection come from there" in finding["what"]
                assert f"issue it again with --address {worker.address}" in finding["what"]
