"""A training on two hosts, whose workers share a stream on each, over the switch program: on bmv2, and on a Tofino as
it is interpreted. Needs root and PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bmv2_tests.test_tofino_pipes import host
from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.star import STAR_DEVICE, Host, Star, mac_of
from wiresum_lab.namespaces.training import Training
from wiresum_lab.processes import Program

REPOSITORY = Path(__file__).resolve().parents[1]
ELEMENTS = 500
"""Few, since the interpreter takes a millisecond for each packet."""

TOFINO = """\
[[switch]]
name = "rack"
kind = "tofino"
p4runtime = "127.0.0.1:9559"
address = "{address}"
mac = "{mac}"
"""
PORTS = (8, 9)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def train(hosts: Sequence[Host], control: str, folder: Path) -> None:
    """With two workers on each host."""
    training = Training([host for host in hosts for _ in range(2)], control, folder, elements=ELEMENTS)
    training.goes_on()
    reports = training.end(3)
    assert [reports[rank]["sharing"] for rank in range(3)] == [[0, 1], [0, 1], [2, 3]]


def test_workers_of_a_host_share_a_stream_over_bmv2(bmv2: None, tmp_path: Path) -> None:
    with Bmv2Star(2) as star, star.controller() as control:
        train(star.workers, control, tmp_path)


def test_workers_of_a_host_share_a_stream_over_a_tofino(namespaces: None, tmp_path: Path) -> None:
    with Star(2) as star:
        for end, device in star.ports():
            end.run(["ethtool", "-K", device, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])
        star.switch.run(["ip", "link", "del", STAR_DEVICE])
        text = TOFINO.format(address=star.switch.address, mac=mac_of(star.switch.address).hex(":"))
        config = tmp_path / "switch.toml"
        hosts = zip(star.workers, PORTS, strict=True)
        config.write_text(text + "".join(host(at.namespace, at.address, port) for at, port in hosts))
        command = [sys.executable, "-m", "bmv2_tests.tofino_service", str(config), star.switch.control_endpoint]
        command += [f"{port}=port{number}" for number, port in enumerate(PORTS)]
        at = functools.partial(star.switch.popen, cwd=REPOSITORY)
        with Program(command, tmp_path / "switch.log", at=at) as switch:
            switch.await_text("ready: ")
            train(star.workers, star.switch.control_endpoint, tmp_path)
