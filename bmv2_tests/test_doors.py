"""What listens after the commands of docs/bmv2.md, and who can come in. The page says that only two doors are open, and
that a stranger can do nothing at either."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY
from wiresum_lab.namespaces.star import Host, Star
from wiresum_lab.pages import blocks, commands
from wiresum_lab.processes import Program, wait_until

PAGE, SECTION = REPOSITORY / "docs/bmv2.md", "Run it on interfaces of your own"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
THRIFT = """
import sys
from thriftpy2.thrift import TException
from thriftpy2.transport import TTransportException
from wiresum_lab.namespaces.bmv2_registers import register_writer
try:
    with register_writer(sys.argv[1]) as write:
        write("sums", 33, 1)
except TTransportException:
    print("closed")
except TException:
    print("answered")  # it has no program yet, and so no such register
"""


def writes_a_register(host: Host, address: str, *as_whom: str) -> bool:
    """Does bmv2's Thrift server take the call?"""
    said = host.run([*as_whom, sys.executable, "-c", THRIFT, address]).strip()
    assert said in ("closed", "answered")
    return said == "answered"


@pytest.fixture
def star(bmv2: None) -> Iterator[Star]:
    """The switch's machine has the interfaces that the page names; the worker is a stranger on its network."""
    pytest.importorskip("thriftpy2")
    with Star(1) as star:
        for number in range(3):
            star.switch.run(["ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", f"end{number}"])
            star.switch.run(["ip", "link", "set", f"veth{number}", "up"])
        yield star


def test_the_commands_of_the_page_open_the_doors_that_it_lists_and_no_stranger_comes_in(
    star: Star, tmp_path: Path
) -> None:
    typed = [line for block in blocks(PAGE) if block.section == SECTION for line in commands(block)]
    (rules,) = (line for line in typed if line.startswith("nft "))
    (start,) = (line for line in typed if line.startswith("simple_switch_grpc "))
    assert typed.index(rules) < typed.index(start), "no door is open for a moment"
    switch, (stranger,) = star.switch, star.workers
    # In a /tmp of its own: bmv2 may name a file there after its device id, which is 0 here.
    alone = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /tmp; exec {start}"]
    with Program(switch.command(alone), tmp_path / "bmv2.log"):
        wait_until(lambda: writes_a_register(switch, "127.0.0.1"), "it runs")
        assert writes_a_register(stranger, switch.address), "without the rules the door is open: the test sees it"
        loaded = subprocess.run(
            switch.command(rules.split()), cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        if "not supported" in loaded.stderr:
            pytest.skip("needs nf_tables in the kernel")
        assert loaded.returncode == 0, loaded.stderr
        for address in (switch.address, switch.management_address):
            assert not writes_a_register(stranger, address)
            assert not writes_a_register(switch, address, *NOBODY)
        assert not writes_a_register(switch, "127.0.0.1", *NOBODY)
        assert writes_a_register(switch, "127.0.0.1"), "for simple_switch_CLI, by root"
        listening = switch.run(
            ["ss", "--no-header", "--listening", "--tcp", "--udp", "--unix", "--processes", "--numeric"]
        )
        doors = {line.split()[4] for line in listening.splitlines() if "simple_switch" in line}
    assert {re.sub(r"\[::ffff:(.*)\]", r"\1", door) for door in doors} == {"127.0.0.1:9559", "0.0.0.0:9090"}
