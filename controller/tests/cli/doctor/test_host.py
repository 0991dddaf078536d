from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from wiresum.cli.doctor import host
from wiresum.cli.doctor.finding import Level
from wiresum.cli.doctor.host import Drops, HostFacts
from wiresum.join.constants import SOCKET_BUFFER_BYTES

FIT = HostFacts(
    cores=8,
    quota_cores=None,
    governors={"performance": 8},
    receive_buffer_bytes=SOCKET_BUFFER_BYTES,
    send_buffer_bytes=SOCKET_BUFFER_BYTES,
    gso=True,
    gro=True,
    address="10.0.0.2",
    interface="eth0",
    mtu=1500,
    speed_mbit=25000,
)


def levels(facts: HostFacts) -> dict[str, Level]:
    return {finding.check: finding.level for finding in host.findings(facts)}


def test_a_fit_host_has_no_warning_or_problem() -> None:
    assert set(levels(FIT).values()) == {Level.OK}
    (mtu,) = (finding for finding in host.findings(FIT) if finding.check == "mtu")
    assert "10.0.0.2 (eth0, 25000 Mbit/s)" in mtu.what
    assert "360 numbers" in mtu.what


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        (replace(FIT, cores=1), "cores", Level.WARNING),
        (replace(FIT, quota_cores=1.5), "cores", Level.WARNING),
        (replace(FIT, governors={"powersave": 6, "performance": 2}), "governor", Level.NOTE),
        (replace(FIT, receive_buffer_bytes=212992), "buffers", Level.WARNING),
        (replace(FIT, send_buffer_bytes=212992), "buffers", Level.WARNING),
        (replace(FIT, gro=False), "offload", Level.WARNING),
        (replace(FIT, mtu=1400), "mtu", Level.WARNING),
    ],
)
def test_each_fault_is_found_alone_with_reason_and_advice(facts: HostFacts, check: str, level: Level) -> None:
    amiss = [finding for finding in host.findings(facts) if finding.level is not Level.OK]
    assert [(finding.check, finding.level) for finding in amiss] == [(check, level)]
    assert amiss[0].why
    assert amiss[0].advice


def test_the_real_host_can_be_examined() -> None:
    facts = host.gather("127.0.0.1")
    assert (facts.address, facts.interface) == ("127.0.0.1", "lo")
    assert facts.mtu >= 1500
    assert facts.cores >= 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as usual:
        assert facts.receive_buffer_bytes >= usual.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def test_a_local_address_that_no_interface_has_is_an_error() -> None:
    with pytest.raises(OSError, match=r"203\.0\.113\.1"):
        host.gather("127.0.0.1", address="203.0.113.1")


def test_kernel_files_are_parsed(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n")
    write("sys/class/net/lo/speed", "-1\n")
    write("sys/class/net/lo/statistics/rx_dropped", "3\n")
    write("sys/class/net/lo/statistics/rx_missed_errors", "4\n")
    write("proc/net/snmp", "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 100 2 9\nUdpLite: X\n")
    facts = host.gather("127.0.0.1", root=tmp_path)
    assert (facts.quota_cores, facts.governors, facts.speed_mbit) == (1.5, {"powersave": 2}, None)
    assert host.drops("lo", root=tmp_path) == Drops(no_buffer=9, at_interface=7)


def test_missing_kernel_files_give_unknown_values(tmp_path: Path) -> None:
    facts = host.gather("127.0.0.1", root=tmp_path)
    assert (facts.quota_cores, facts.governors, facts.speed_mbit) == (None, {}, None)
    assert host.drops("lo", root=tmp_path) == Drops(0, 0)


@pytest.mark.parametrize(
    ("driver", "left", "doubted"),
    [
        ("veth", ("tx", "tso"), True),
        ("veth", ("gso",), False),
        ("mlx5_core", ("tx", "tso", "gso"), False),
        ("", (), False),
    ],
)
def test_frames_are_doubted_that_a_veth_leaves_unfinished(
    driver: str, left: tuple[str, ...], doubted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "driver_of", lambda interface: driver)
    monkeypatch.setattr(host, "left_to_card", lambda interface: left)
    said = host.doubt_about_frames("eth7")
    assert ("ethtool -K eth7 tx off" in said) == bool(said) == doubted


def test_the_interface_towards_a_service_is_found() -> None:
    assert host.interface_towards("127.0.0.1:43487") == "lo"
    assert host.interface_towards("no-such-host.invalid:43487") == ""
