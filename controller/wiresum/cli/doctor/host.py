"""Checks whether this host is fit to be a worker. Changes nothing.

The check opens a socket like the agent's to see what the kernel grants. The kernel's settings would not tell: a process
with the right to exceed their limits does so.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wiresum.agent import _native
from wiresum.agent.interfaces import driver_of, left_to_card, name_of
from wiresum.cli.doctor.finding import Finding, note, ok, warning
from wiresum.join import hosts
from wiresum.join.constants import SOCKET_BUFFER_BYTES
from wiresum.join.lanes import lanes_of_mtu

CORES_LEAST = 2
"""One core for the computation, one for the packets."""
USUAL_MTU = 1500

# From linux/udp.h and asm/socket.h; Python has no names for them.
_UDP_SEGMENT, _UDP_GRO = 103, 104
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32


@dataclass(frozen=True)
class HostFacts:
    cores: int
    """Cores that this process may run on."""
    quota_cores: float | None
    """How many cores the process's control group may use at once; None: all."""
    governors: Mapping[str, int]
    """Number of cores by frequency governor; empty: the kernel shows none, as in virtual machines."""
    receive_buffer_bytes: int
    send_buffer_bytes: int
    gso: bool
    gro: bool
    address: str
    """This host's address for data."""
    interface: str
    mtu: int
    """The MTU of the path to the switch, as far as this host knows it."""
    speed_mbit: int | None


@dataclass(frozen=True)
class Drops:
    """Datagrams that were lost on this host since it was started."""

    no_buffer: int
    """Datagrams that were lost because a socket's buffer was full."""
    at_interface: int


def gather(control_address: str, address: str = "", root: Path = Path("/")) -> HostFacts:
    """Collects facts about this host. Without `address`, its address is the one that routes to the switch. Raises
    `OSError` if there is no route to the switch."""
    try:
        address = address or _native.source_address(control_address)
        mtu = _native.path_mtu(address, control_address)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    # The loopback interface has many addresses that the kernel does not list.
    interface = name_of(address) or ("lo" if address.startswith("127.") else "?")
    receive, send, gso, gro = _try_socket()
    return HostFacts(
        cores=len(os.sched_getaffinity(0)),
        quota_cores=_quota_cores(root),
        governors=_governors(root),
        receive_buffer_bytes=receive,
        send_buffer_bytes=send,
        gso=gso,
        gro=gro,
        address=address,
        interface=interface,
        mtu=mtu,
        speed_mbit=_speed_mbit(root, interface),
    )


def drops(interface: str, root: Path = Path("/")) -> Drops:
    counters = root / "sys/class/net" / interface / "statistics"
    return Drops(
        no_buffer=_udp_counters(root).get("RcvbufErrors", 0),
        at_interface=sum(_number(counters / name) or 0 for name in ("rx_dropped", "rx_missed_errors")),
    )


def doubt_about_frames(interface: str) -> str:
    """Says why frames that leave by this interface may arrive with wrong checksums, and what to do; empty if there is
    no such doubt."""
    left = left_to_card(interface) if driver_of(interface) == "veth" else ()
    if "tx" not in left:
        return ""
    return (
        f"{interface} is a veth that leaves work to a network card ({', '.join(left)}). If a bmv2 is on the way, it "
        f"forwards such frames with wrong checksums, and who receives them drops them: at both ends of each of its "
        f"veths, ethtool -K {interface} tx off tso off gso off gro off"
    )


def interface_towards(target: str) -> str:
    """The interface that routes to `target`, host:port. Empty if there is no route, or the kernel names no
    interface."""
    try:
        address = hosts.addresses_of(target.rpartition(":")[0], socket.AF_INET)[0]
        return name_of(_native.source_address(address)) or ""
    except (OSError, RuntimeError):
        return ""


def findings(facts: HostFacts, transport: str = "udp") -> Iterator[Finding]:
    """Checks sockets only if packets pass through the kernel's sockets, and routes only if the kernel has the
    address."""
    yield _cores(facts)
    if facts.governors and set(facts.governors) != {"performance"}:
        yield _governor(facts.governors)
    if transport == "udp":
        yield _buffers(facts)
        yield _offload(facts)
    if transport != "dpdk":
        yield _mtu(facts)


def _cores(facts: HostFacts) -> Finding:
    usable = min(facts.cores, facts.quota_cores or facts.cores)
    limited = "" if usable == facts.cores else f", and its control group may use {usable:g} of them at a time"
    what = f"this process may run on {facts.cores} cores{limited} (SIMD: {_native.instruction_set()})"
    if usable >= CORES_LEAST:
        return ok("cores", what)
    return warning(
        "cores",
        what,
        "the computation and the thread that moves packets take turns, so packets are late and are sent again",
        "give this process two cores or more (taskset, the container's CPU limit), or set WIRESUM_THREADS=1",
    )


def _governor(governors: Mapping[str, int]) -> Finding:
    said = ", ".join(f"{name} on {count}" for name, count in sorted(governors.items()))
    return note(
        "governor",
        f"frequency governors of the cores: {said}",
        "a core that has slowed down answers the next burst of packets late",
        "for the best latency: cpupower frequency-set -g performance",
    )


def _buffers(facts: HostFacts) -> Finding:
    smallest = min(facts.receive_buffer_bytes, facts.send_buffer_bytes)
    what = (
        f"a socket gets {_kib(facts.receive_buffer_bytes)} to receive and {_kib(facts.send_buffer_bytes)} to send; "
        f"{_kib(SOCKET_BUFFER_BYTES)} are asked for"
    )
    if smallest >= SOCKET_BUFFER_BYTES:
        return ok("buffers", what)
    return warning(
        "buffers",
        what,
        "datagrams that come while the thread is not on a core are lost when the buffer is full, and are sent again",
        f"as root: sysctl -w net.core.rmem_max={SOCKET_BUFFER_BYTES} net.core.wmem_max={SOCKET_BUFFER_BYTES}, and the "
        "same in a file in /etc/sysctl.d",
    )


def _offload(facts: HostFacts) -> Finding:
    if facts.gso and facts.gro:
        return ok("offload", "the kernel cuts and joins bursts of datagrams (UDP GSO and GRO)")
    missing = " and ".join(name for name, there in (("GSO", facts.gso), ("GRO", facts.gro)) if not there)
    return warning(
        "offload",
        f"this kernel has no UDP {missing}",
        "every datagram takes its own way through the kernel, which costs up to several times the processor time",
        "Linux 5.0 or newer has both",
    )


def _mtu(facts: HostFacts) -> Finding:
    speed = f", {facts.speed_mbit} Mbit/s" if facts.speed_mbit else ""
    what = (
        f"data goes out at {facts.address} ({facts.interface}{speed}), in IP packets of up to {facts.mtu} bytes: "
        f"{lanes_of_mtu(facts.mtu)} numbers each"
    )
    if facts.mtu >= USUAL_MTU:
        return ok("mtu", what)
    return warning(
        "mtu",
        what,
        "all workers of a job use the smallest packets that any of them can; each packet costs the same time",
        f"if the network carries {USUAL_MTU} bytes: ip link set {facts.interface} mtu {USUAL_MTU}. If it does not, "
        "nothing is wrong",
    )


def _try_socket() -> tuple[int, int, bool, bool]:
    """Bytes that the kernel gives to receive and to send, and whether the kernel has GSO and GRO."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        sizes = []
        for forced, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            if not _set(trial, socket.SOL_SOCKET, forced, SOCKET_BUFFER_BYTES):
                _set(trial, socket.SOL_SOCKET, plain, SOCKET_BUFFER_BYTES)
            sizes.append(trial.getsockopt(socket.SOL_SOCKET, plain) // 2)  # the kernel says twice what it gives
        gso = _set(trial, socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
        gro = _set(trial, socket.IPPROTO_UDP, _UDP_GRO, 1)
    return sizes[0], sizes[1], gso, gro


def _set(trial: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        trial.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _quota_cores(root: Path) -> float | None:
    """Cores that the control group allows, from control groups of version 2, as a container sees its own; None: no
    limit is known."""
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _governors(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        name = path.read_text().strip()
        found[name] = found.get(name, 0) + 1
    return found


def _speed_mbit(root: Path, interface: str) -> int | None:
    speed = _number(root / "sys/class/net" / interface / "speed")
    return speed if speed is not None and speed > 0 else None


def _udp_counters(root: Path) -> dict[str, int]:
    try:
        names, values = (
            line.split()[1:] for line in (root / "proc/net/snmp").read_text().splitlines() if line.startswith("Udp:")
        )
    except (OSError, ValueError):
        return {}
    return dict(zip(names, map(int, values), strict=False))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _kib(size: int) -> str:
    return f"{size >> 10} KiB"
