"""A training on two hosts, whose workers share a stream on each. Needs root and PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, STAR_DEVICE, Star
from wiresum_lab.namespaces.training import Training
from wiresum_lab.namespaces.transports import TRANSPORTS, missing, spec, start_switch
from wiresum_lab.processes import Program, wiresum

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("killed", [4, 6])
def test_it_survives_what_it_can_and_names_what_it_cannot(killed: int, tmp_path: Path) -> None:
    """It goes on while a worker is stopped for a while, and when its switch is killed; it ends with a name when a
    worker is. Rank 4 sums for its host, 6 does not."""
    with Star(2, Link(rate_mbit=100)) as star:
        switch = start_switch(star, "udp", tmp_path / "switch.log")
        hosts = [host for host in star.workers for _ in range(4)]
        training = Training(hosts, star.switch.control_endpoint, tmp_path)
        training.goes_on()
        for stopped in (0, 5):
            training.stop_for_a_while(stopped)
            training.goes_on()
        switch.kill()
        training.goes_on()
        reports = training.end(killed)
    assert [reports[rank]["sharing"] for rank in range(4)] == 4 * [[0, 1, 2, 3]]
    assert all(star.workers[0].address in report["service"] for report in reports.values()), "rank 0's fallback"


@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if each != "udp"])
def test_a_host_has_one_device_for_all_of_its_workers(transport: str, tmp_path: Path) -> None:
    if reason := missing(transport):
        pytest.skip(reason)
    with Star(2) as star:
        start_switch(star, transport, tmp_path / "switch.log")
        hosts = [host for host in star.workers for _ in range(2)]
        variables = {"WIRESUM_TRANSPORT": spec(transport)}
        training = Training(hosts, star.switch.control_endpoint, tmp_path, variables)
        training.goes_on()
        reports = training.end(3)
    assert [reports[rank]["sharing"] for rank in range(3)] == [[0, 1], [0, 1], [2, 3]]
    assert [reports[rank]["transport"].split()[0] for rank in range(3)] == [transport, "shared", transport]


def test_links_with_a_switch_each_carry_a_part_of_the_stream(tmp_path: Path) -> None:
    with Star(2) as star:
        switches = {STAR_DEVICE: star.switch.address, MANAGEMENT_DEVICE: star.manager.management_address}
        for at, address in zip((star.switch, star.manager), switches.values(), strict=True):
            command = wiresum("switch", "--bind", address, "--control", f"{address}:{CONTROL_PORT}", "--insecure")
            Program(command, tmp_path / f"{address}.log", at=at.popen).await_text("ready: ")
        hosts = [host for host in star.workers for _ in range(2)]
        training = Training(hosts, "+".join(switches.values()), tmp_path, {"WIRESUM_ADDRESS": ""})
        training.goes_on()
        reports = training.end(3)
        sent = [int(hosts[0].run(["cat", f"/sys/class/net/{device}/statistics/tx_bytes"])) for device in switches]
    assert [reports[rank]["sharing"] for rank in range(3)] == [[0, 1], [0, 1], [2, 3]]
    assert min(sent) > sum(sent) / 3, sent
