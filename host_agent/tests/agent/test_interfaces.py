from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from wiresum.agent import interfaces

SHOW = "from wiresum.agent import interfaces as i; print(i.driver_of('near'), *i.left_to_card('near'))"
NEEDED = ("ip", "unshare", "ethtool")


def in_a_namespace_with_a_veth(command: str) -> str:
    """What is printed there after `command`."""
    made = "ip link add near type veth peer name far && ip link set near up && ip link set far up"
    script = f'{made} && {command} && {sys.executable} -c "{SHOW}"'
    done = subprocess.run(["unshare", "-n", "sh", "-ec", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, NEEDED)), reason=f"needs root and {NEEDED}")
def test_a_veth_leaves_checksums_and_cutting_to_a_card_until_it_is_told_not_to() -> None:
    assert in_a_namespace_with_a_veth("true") == "veth tx tso gso"
    assert in_a_namespace_with_a_veth("ethtool -K near tx off tso off gso off >/dev/null 2>&1") == "veth"


def test_an_interface_that_is_not_there_leaves_nothing() -> None:
    assert interfaces.driver_of("no-such-one") == ""
    assert interfaces.left_to_card("no-such-one") == ()
