"""A star of network namespaces: one switch, N workers, links with the rate and the loss of your choice.

    with Star(workers=4, link=Link(rate_mbit=100, loss=0.01)) as star:
        star.switch.popen(["wiresum", "switch", "--bind", star.switch.address])
        ranks = [worker.popen(command) for worker in star.workers]

Theory of operation. Each worker, the switch and a manager is a network namespace. Two networks join them:

    worker 0 --- star0 ---+                        worker 0 --- manage0 ---+
    worker 1 --- star0 ---+-- bridge `star0`       worker 1 --- manage0 ---+-- bridge `manage0`
       ...                |   in the switch           ...                  |   in the manager
                                                   switch   --- manage0 ---+

Measurements use the star (10.111.0.0/24); `links.py` explains how its links are shaped, and how large packets may be.
The bridge lets workers talk to each other, as ring all-reduce needs, and a software switch listens on the bridge's own
address. Software switches on hosts like the workers', with links like theirs, run in the star's `aggregators`:
namespaces that are connected like the workers'. With `racks` the workers are connected to so many namespaces with a
bridge each, and these to the switch, over links like all others: two layers of switches. The management network
(10.112.0.0/24) is never shaped: rendezvous, control and launchers use it and take nothing from the star. Its packets
are as large as the star's, since a worker of Wiresum takes the MTU of its route to the join service.

Addresses and neighbours are fixed, IPv6 is off and the bridges learn nothing by flooding, so only the experiment sends
on the star. Interfaces are created inside the namespaces, so the host's own network does not change.

Names contain the owner's process number and start time. Before a star is built, stars whose owners are gone are
removed, with the processes still inside; `popen` asks the kernel to kill its children with their owner.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiresum.join.constants import AGGREGATORS_MAX, CONTROL_PORT, SWITCH_WORKERS_MAX
from wiresum_lab.namespaces.links import DETOUR_DEVICE, MTU_BYTES, Link, detour_commands, tc_commands, train_packets
from wiresum_lab.processes import POLL_S, STOP_S_MAX, here

RACKS_MAX = 8
STAR_DEVICE = "star0"
UPLINK_DEVICE = "uplink0"
# A rack's bridge sends a multicast to the members of its group, and not up to other racks. It needs IGMP 3, since
# members of version 2 stay silent when they hear another member's report, and the bridge would miss them. Until the
# time for responses is over, in 1/100 s, the bridge floods.
_SNOOPING = ("mcast_igmp_version 3 mcast_query_response_interval 10", "mcast_querier 1 mcast_snooping 1")
STAR_NETWORK = "10.111.0.0/24"
MANAGEMENT_DEVICE = "manage0"
MANAGEMENT_NETWORK = "10.112.0.0/24"
# Linux gives a new device this limit.
SEGMENTS_UNLIMITED = 65535
_NAME = re.compile(r"^wiresum-(\d+)-(\d+)-\d+-\w+$")
_stars_built = itertools.count()


class StarError(RuntimeError):
    """A star cannot be built here; the text has the reason and the remedy."""


@dataclass(frozen=True)
class Host:
    """A namespace of the star, and its addresses."""

    namespace: str
    address: str
    management_address: str

    @property
    def control_endpoint(self) -> str:
        """The endpoint at which a switch or controller in this namespace serves joins."""
        return f"{self.management_address}:{CONTROL_PORT}"

    def variables(self, control: str) -> dict[str, str]:
        """Environment variables for a Wiresum worker in this namespace that joins at `control`."""
        return {"WIRESUM_SWITCH": control, "WIRESUM_INSECURE": "1", "WIRESUM_ADDRESS": self.address}

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv]

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in this namespace, in a session of its own. It dies with the thread that started it.
        `options` are for `subprocess.Popen`."""
        return here(self.command(argv), **{"stdin": subprocess.DEVNULL, "text": True, **options})

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """Runs a command to its end in this namespace and returns its output. StarError if it fails."""
        return _run(self.command(argv), timeout_s=timeout_s)

    def process_ids(self) -> list[int]:
        return _process_ids(self.namespace)


class Star:
    """The namespaces and links of a star, from construction to `close`."""

    def __init__(
        self,
        workers: int,
        link: Link | None = None,
        *,
        aggregators: int = 0,
        racks: int = 0,
        kill_after_s: float = STOP_S_MAX,
    ) -> None:
        """`close` kills processes of the star that have not ended `kill_after_s` after SIGTERM."""
        if not 1 <= workers <= SWITCH_WORKERS_MAX:
            raise ValueError(f"a star has 1 to {SWITCH_WORKERS_MAX} workers, not {workers}")
        if not 0 <= aggregators <= AGGREGATORS_MAX:
            raise ValueError(f"a star has 0 to {AGGREGATORS_MAX} aggregators, not {aggregators}")
        if not 0 <= racks <= min(RACKS_MAX, workers):
            raise ValueError(f"{workers} workers are in 0 to {min(RACKS_MAX, workers)} racks, not {racks}")
        check_prerequisites()
        sweep_stale_stars()
        prefix = f"wiresum-{os.getpid()}-{_start_time(os.getpid())}-{next(_stars_built)}"
        self.manager = Host(f"{prefix}-manager", "", "10.112.0.1")
        self.switch = Host(f"{prefix}-switch", "10.111.0.1", "10.112.0.2")
        self.workers = [Host(f"{prefix}-worker{i}", f"10.111.0.{10 + i}", f"10.112.0.{10 + i}") for i in range(workers)]
        self.aggregators = [
            Host(f"{prefix}-aggregator{i}", f"10.111.0.{50 + i}", f"10.112.0.{50 + i}") for i in range(aggregators)
        ]
        self.racks = [Host(f"{prefix}-rack{i}", f"10.111.0.{60 + i}", f"10.112.0.{60 + i}") for i in range(racks)]
        # Links are unshaped until `reshape`, but have their MTU from the beginning.
        self.link = Link(mtu=link.mtu if link else MTU_BYTES)
        self._closed, self._kill_after_s = False, kill_after_s
        self.netem = False
        atexit.register(self.close)
        try:
            self._build()
            self.reshape(link or self.link)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Star:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> list[Host]:
        return [self.manager, self.switch, *self.racks, *self.leaves]

    @property
    def leaves(self) -> list[Host]:
        """The hosts that have one link."""
        return [*self.workers, *self.aggregators]

    def rack_of(self, worker: int) -> Host:
        """The switch to which a worker is connected."""
        return self.racks[worker * len(self.racks) // len(self.workers)] if self.racks else self.switch

    def links(self) -> list[tuple[tuple[Host, str], tuple[Host, str]]]:
        """The two ends of every link, each as (namespace, device), the upper end last."""
        above = [self.rack_of(i) for i in range(len(self.workers))] + [self.switch] * len(self.aggregators)
        links = [((leaf, STAR_DEVICE), (above[i], f"port{i}")) for i, leaf in enumerate(self.leaves)]
        return links + [((rack, UPLINK_DEVICE), (self.switch, f"rack{i}")) for i, rack in enumerate(self.racks)]

    def ports(self) -> list[tuple[Host, str]]:
        """Both ends of every link: (namespace, device)."""
        return [end for link in self.links() for end in link]

    def reshape(self, link: Link) -> None:
        """Makes every link like `link`, from the next packet on. Existing connections keep their segment sizes.

        ValueError for another MTU, since programs that know the old MTU could send packets that are too large.
        """
        if link.mtu != self.link.mtu:
            raise ValueError(f"this star has an MTU of {self.link.mtu}; build a new one for an MTU of {link.mtu}")
        commands = {host.namespace: [] for host in self.hosts}  # type: dict[str, list[str]]
        for host, device in self.ports():
            lines = commands[host.namespace]
            if self.link.rate_mbit is not None or (self.link.impaired and self.netem):
                lines.append(f"qdisc del dev {device} root")
            if self.link.impaired and not self.netem:
                lines.append(f"qdisc del dev {device} clsact")
            lines += tc_commands(link, device, netem=self.netem)
            _set_offloads(host, device, on=link.keeps_offloads)
            segments = SEGMENTS_UNLIMITED if link.keeps_offloads else train_packets(link, netem=self.netem)
            _run(["ip", "-n", host.namespace, "link", "set", "dev", device, "gso_max_segs", str(segments)])
        for namespace, lines in commands.items():
            if lines:
                _run(["tc", "-n", namespace, "-batch", "-"], stdin="\n".join(lines))
        self.link = link

    def close(self) -> None:
        """Kills the processes in the namespaces and removes them. Idempotent, and not interruptible."""
        if self._closed:
            return
        self._closed = True
        with _signals_held():
            _remove([host.namespace for host in self.hosts], self._kill_after_s)
        atexit.unregister(self.close)

    def _build(self) -> None:
        lines = [f"netns add {host.namespace}" for host in self.hosts]
        lines += [_veth(*below, *above, self.link.mtu) for below, above in self.links()]
        for i, host in enumerate(self._managed()):
            lines.append(_veth(host, MANAGEMENT_DEVICE, self.manager, f"port{i}", self.link.mtu))
        _run(["ip", "-batch", "-"], stdin="\n".join(lines))
        self.netem = _has_netem(self.switch)
        for host in self.hosts:
            _run(["ip", "-n", host.namespace, "-batch", "-"], stdin="\n".join(self._host_lines(host)))
        for host in (self.switch, *self.racks, self.manager):
            # The host's firewall must not see bridged packets.
            hook = "/proc/sys/net/bridge/bridge-nf-call-iptables"
            host.run(["sh", "-c", f"! test -e {hook} || echo 0 > {hook}"])
        if not self.netem:
            for host in self._managed():
                _run(["tc", "-n", host.namespace, "-batch", "-"], stdin="\n".join(detour_commands(self.link)))

    def _managed(self) -> list[Host]:
        return [self.switch, *self.racks, *self.leaves]

    def _host_lines(self, host: Host) -> list[str]:
        lines = ["link set lo up"]
        if host.address and not self.netem:
            lines.append(f"link add name {DETOUR_DEVICE} mtu {self.link.mtu} type ifb")
            lines.append(f"link set dev {DETOUR_DEVICE} addrgenmode none up")
        if host in (self.switch, *self.racks):
            lines += _bridge_lines(STAR_DEVICE, [device for at, device in self.ports() if at is host], self.link.mtu)
        if host in self.racks:
            lines += [f"link set dev {STAR_DEVICE} type bridge {settings}" for settings in _SNOOPING]
            lines += [f"link set dev {UPLINK_DEVICE} type bridge_slave mcast_router 0"]
        if host is self.manager:
            lines += _bridge_lines(MANAGEMENT_DEVICE, [f"port{i}" for i in range(len(self._managed()))], self.link.mtu)
        devices = {MANAGEMENT_DEVICE: host.management_address} | ({STAR_DEVICE: host.address} if host.address else {})
        for device, address in devices.items():
            lines.append(f"link set dev {device} address {_mac(address)} addrgenmode none up")
            lines.append(f"address add {address}/24 broadcast + dev {device}")
        for other in self.hosts:
            if other is host:
                continue
            lines.append(_neighbour(other.management_address, MANAGEMENT_DEVICE))
            if host.address and other.address:
                lines.append(_neighbour(other.address, STAR_DEVICE))
        return lines


def check_prerequisites() -> None:
    """Raises a StarError that names a missing tool or permission, if a star cannot be built."""
    if os.geteuid() != 0:
        raise StarError("network namespaces need root: run this as root (for instance with sudo)")
    packages = {"ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "setpriv": "util-linux"}
    missing = sorted({package for tool, package in packages.items() if shutil.which(tool) is None})
    if missing:
        raise StarError(f"a tool is missing: install {' and '.join(missing)} (apt install {' '.join(missing)})")
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise StarError(f"`ip netns` does not work here: {probe.stderr.strip()}. A container needs --privileged.")


def sweep_stale_stars() -> list[str]:
    """Removes the namespaces of stars whose owner is gone, with their processes. Returns the names of the
    namespaces."""
    stale = [name for name in _namespaces() if (match := _NAME.match(name)) and not _owner_lives(match)]
    if stale:
        _remove(stale)
    return stale


@contextlib.contextmanager
def termination_as_exit() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP leave by SystemExit, so that stars are removed on the way out."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _veth(host: Host, device: str, peer: Host, peer_device: str, mtu: int) -> str:
    ends = f"name {device} netns {host.namespace} mtu {mtu}", f"name {peer_device} netns {peer.namespace} mtu {mtu}"
    return f"link add {ends[0]} type veth peer {ends[1]}"


def _bridge_lines(bridge: str, ports: Sequence[str], mtu: int) -> list[str]:
    lines = [f"link add name {bridge} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"]
    return lines + [f"link set dev {port} master {bridge} addrgenmode none up" for port in ports]


def mac_of(address: str) -> bytes:
    """The MAC address, which is fixed, of the host with this IP address."""
    return bytes([2, 0, *map(int, address.split("."))])


def _mac(address: str) -> str:
    return mac_of(address).hex(":")


def _neighbour(address: str, device: str) -> str:
    return f"neighbour add {address} lladdr {_mac(address)} dev {device} nud permanent"


def _set_offloads(host: Host, device: str, *, on: bool) -> None:
    word = "on" if on else "off"
    features = ["gso", word, "tso", word, "tx-udp-segmentation", word]
    # A veth begins with GRO off; GRO on would change how the veth receives.
    host.run(["ethtool", "-K", device, *features, *([] if on else ["gro", "off"])])


def _has_netem(host: Host) -> bool:
    command = ["tc", "-n", host.namespace, "qdisc"]
    probe = subprocess.run([*command, "add", "dev", "lo", "root", "netem"], capture_output=True, check=False)
    if probe.returncode == 0:
        _run([*command, "del", "dev", "lo", "root"])
    return probe.returncode == 0


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]


def _process_ids(namespace: str) -> list[int]:
    probe = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(word) for word in probe.stdout.split()] if probe.returncode == 0 else []


def _remove(namespaces: Sequence[str], kill_after_s: float = STOP_S_MAX) -> None:
    """Ends the processes in the namespaces, by SIGTERM and then by SIGKILL, and deletes the namespaces."""
    for number, patience_s in ((signal.SIGTERM, kill_after_s), (signal.SIGKILL, STOP_S_MAX)):
        give_up_at = time.monotonic() + patience_s
        remaining = [pid for namespace in namespaces for pid in _process_ids(namespace)]
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while remaining and time.monotonic() < give_up_at:
            remaining = [pid for pid in remaining if _runs(pid)]
            time.sleep(POLL_S)
    existing = set(_namespaces())
    for namespace in namespaces:
        if namespace in existing:
            _run(["ip", "netns", "del", namespace])


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second, the command's name, may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _start_time(pid: int) -> int:
    return int(_stat_fields(pid)[19])


def _runs(pid: int) -> bool:
    try:
        return _stat_fields(pid)[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _owner_lives(name: re.Match[str]) -> bool:
    pid, start_time = int(name[1]), int(name[2])
    try:
        return _runs(pid) and _start_time(pid) == start_time
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Blocks SIGINT, SIGTERM and SIGHUP in the block."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _run(argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = 60.0) -> str:
    result = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s, start_new_session=True
    )
    if result.returncode != 0:
        lines = "" if stdin is None else f"\nwith:\n{stdin}"
        raise StarError(f"`{' '.join(argv)}` failed: {(result.stderr or result.stdout).strip()}{lines}")
    return result.stdout
