"""Against the interfaces that this machine has, as `ip` shows them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from wiresum.agent.interfaces import mtu_of


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs `ip` of iproute2")
def test_the_mtu_of_every_address_is_that_of_its_interface() -> None:
    shown = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, text=True, check=True).stdout
    addresses = {info["local"]: device["mtu"] for device in json.loads(shown) for info in device["addr_info"]}
    assert addresses, "there is at least the loopback interface"
    assert {address: mtu_of(address) for address in addresses} == addresses


def test_an_address_that_no_interface_lists_has_none() -> None:
    assert mtu_of("127.0.0.2") is None
    assert mtu_of("192.0.2.77") is None
