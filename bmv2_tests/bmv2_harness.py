"""A test harness: real bmv2 with our program in a namespace, and the test at the far ends of its links.

Theory of operation. A `Bmv2Star` gives a switch with PORTS ports. Its hosts lose their addresses, so that no kernel
answers what the switch sends. Instead, frames are sent and received through packet sockets that were opened in the
hosts' namespaces. The controller's tables name HOSTS hosts, which do not exist, spread over the ports.

wiresum.conformance.wires says how the harness knows that nothing more comes out. It sends pings for that, since
the jobs in the switch are the tests' alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from wiresum.conformance.frames import Host as FrameHost
from wiresum.conformance.frames import UdpFrame, icmp_frame
from wiresum.conformance.p4runtime import Programmed
from wiresum.conformance.scenarios import PROFILES
from wiresum.conformance.wires import Wires, open_interface
from wiresum.controller import REASONS, Endpoint, JobCounters, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.jobs.slot_pool import SlotPool
from wiresum.controller.p4runtime import STANDBY_ID, Client, Host, P4RuntimeSwitch, Pipeline, device_config
from wiresum.join.constants import SWITCH_PORT
from wiresum_lab.doubles.p4runtime_proxy import PATIENT
from wiresum_lab.doubles.workers import DATA, Packet
from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.star import STAR_DEVICE
from wiresum_lab.patience import PATIENCE_S

PORTS = 4
HOSTS = 64
WORKER_PORT = 20_000
"""The base UDP port of every worker."""
NUMBER_AT_PARENT = 5
PING_ID = 0x5749
TENSOR, CHUNK = 0x01020304, 0x05060708
"""All bytes differ, so a moved or swapped field is noticed."""

_CLONE_NEWNET = 0x40000000


class Copy(NamedTuple):
    """A RESULT that came out of the switch."""

    port: int
    address: str
    """The receiver, from the IPv4 destination."""
    thread: int
    """The receiver's thread, from the UDP destination port."""
    datagram: bytes
    frame: bytes

    @property
    def packet(self) -> Packet:
        return Packet.from_bytes(self.datagram)


@dataclass(frozen=True)
class SwitchOutput:
    """What came out for one packet, and how it was counted."""

    copies: tuple[Copy, ...]
    reasons: dict[str, int]
    """The changes of the counters of its job and of the ones for packets without a job."""

    @property
    def reason(self) -> str:
        assert sum(self.reasons.values()) == 1, f"one packet, counted as {self.reasons}"
        return next(iter(self.reasons))

    @property
    def result(self) -> Packet:
        """The RESULT that all copies carry."""
        (datagram,) = {copy.datagram for copy in self.copies}
        return Packet.from_bytes(datagram)


class Bmv2Harness:
    """The switch and its links, shared by the tests of a session."""

    def __init__(self, program: Pipeline | None = None) -> None:
        self.program = program or device_config.bmv2()
        self.hosts = [_imagined_host(number) for number in range(HOSTS)]
        self._cleanup = contextlib.ExitStack()
        self._jobs = self._elections = 0
        with contextlib.ExitStack() as attempt:
            self.star = attempt.enter_context(Bmv2Star(PORTS - 1, pipeline=self.program))
            self._wires = PingedWires(attempt.enter_context(cables(self.star)), own_of(self.star))
            self.switch, self.leases = self._loaded()
            self._cleanup = attempt.pop_all()

    def close(self) -> None:
        self.switch.close()
        self._cleanup.close()

    # Control plane.

    def load(self) -> None:
        """Reloads the program: no jobs, no entries but those of the hosts, all registers zero."""
        self.switch.close()
        self.switch, self.leases = self._loaded()

    def next_election_id(self) -> int:
        """An election id that outbids the controller before."""
        self._elections += 1
        return STANDBY_ID + self._elections

    def client(self) -> Client:
        """Another one of this switch, which programs it; the caller closes it."""
        return Client(self.star.p4runtime, self.star.device, election_id=self.next_election_id(), times=PATIENT)

    def _loaded(self) -> tuple[P4RuntimeSwitch, SlotPool]:
        with contextlib.closing(self.client()) as client:
            client.wait_ready()
            client.load(self.program)
        target = self.star.target(self.hosts)
        switch = P4RuntimeSwitch(target, election_id=self.next_election_id(), times=PATIENT)
        switch.wait_ready()
        assert switch.reconcile([]).reloaded
        return switch, SlotPool(self.program.slots)

    @contextlib.contextmanager
    def job(
        self,
        workers: int = 3,
        *,
        threads: int = 1,
        port_offset: int = 0,
        slots: int = 8,
        hosts: Sequence[Host] | None = None,
        parent: Host | None = None,
    ) -> Iterator[Job]:
        """A job on unused slots, admitted as by the join service; worker i is on host i. With a parent, the switch
        is not the root of the job's tree, and is worker `NUMBER_AT_PARENT` of the parent."""
        leases = self.leases
        lease = leases.take(slots)
        assert lease is not None, "the switch has slots"
        self._jobs += 1
        on = list(hosts or self.hosts)[:workers]
        entry = JobEntry(
            job=self._jobs % self.switch.sizes.jobs_max,
            key=0xFEED0000 + self._jobs,
            workers=workers,
            threads=threads,
            lanes=self.program.lanes,
            slot_base=lease.base,
            slots=slots,
            endpoints=tuple(Endpoint(host.address, WORKER_PORT) for host in on),
            uplink=Uplink(Endpoint(parent.address, WORKER_PORT), NUMBER_AT_PARENT) if parent else None,
            port_offset=port_offset,
        )
        self.switch.admit(entry)
        try:
            yield Job(self, entry, on, parent=parent)
        finally:
            self.switch.evict(entry.job)
            leases.give_back(lease)

    # Links.

    def exchange(self, frames: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Sends frames, each at its port, and gives all frames that come out, by port and in order."""
        return self._wires.exchange(list(frames))

    def copies(self, frames: Iterable[tuple[int, bytes]]) -> tuple[Copy, ...]:
        """Sends frames and gives the RESULTs that come out; nothing else may come out."""
        return tuple(self.as_copy(port, frame) for port, frame in self.exchange(frames))

    def own_frame(
        self, host: Host, *, src_port: int = WORKER_PORT, dst_port: int = SWITCH_PORT, payload: bytes = b""
    ) -> Ether:
        """A UDP packet from a host to the switch, which scapy can change."""
        ethernet, ip = Ether(src=host.mac, dst=self.star.mac), IP(src=host.address, dst=self.star.address)
        return ethernet / ip / UDP(sport=src_port, dport=dst_port) / payload

    def as_copy(self, port: int, frame: bytes) -> Copy:
        """Checks what holds for every packet of the switch: lengths, both checksums, that one is there, and its MAC."""
        read = UdpFrame.unpack(frame)
        assert read.has_checksum, f"port {port}: a frame without a UDP checksum, {frame.hex()}"
        assert read.source == FrameHost(self.mac, IPv4Address(self.star.address)), f"port {port}: from {read.source}"
        return Copy(port, str(read.target.address), read.target_port - WORKER_PORT, read.payload, frame)

    @property
    def mac(self) -> bytes:
        """The switch's."""
        return bytes.fromhex(self.star.mac.replace(":", ""))


@dataclass(frozen=True)
class Job:
    """An admitted job, which makes the packets of its workers and sends them."""

    harness: Bmv2Harness
    entry: JobEntry
    hosts: Sequence[Host]
    first: int = 1
    """The first round."""
    parent: Host | None = None

    def packet(
        self, worker: int = 0, after: int = 0, *, slot: int = 0, words: tuple[int, ...] = (), **numbers: int
    ) -> Packet:
        """A packet of round `first + after` in slot `slot` of the lease; DATA of ones unless other fields are given."""
        number = (self.first + after) % (1 << 32)
        made = Packet(job=self.entry.job, key=self.entry.key, worker=worker, round=number, tensor=TENSOR, chunk=CHUNK)
        made = replace(made, cell=2 * slot + number % 2, **numbers)  # type: ignore[arg-type]
        return replace(made, words=words or self.words(1)) if made.kind == DATA else made

    def words(self, *values: int) -> tuple[int, ...]:
        """These words, repeated to fill a payload."""
        repeats = self.entry.lanes // len(values) + 1
        return (values * repeats)[: self.entry.lanes]

    def frame(self, packet: Packet, *, worker: int | None = None, thread: int = 0) -> Ether:
        """The frame of a packet, sent by its own worker or by another one; scapy can change it."""
        host = self.hosts[packet.worker if worker is None else worker]
        ports = {"src_port": WORKER_PORT + thread, "dst_port": SWITCH_PORT + self.entry.port_offset + thread}
        return self.harness.own_frame(host, **ports, payload=packet.to_bytes())

    def send(self, packet: Packet, *, worker: int | None = None, thread: int = 0) -> SwitchOutput:
        sender = packet.worker if worker is None else worker
        return self.send_frame(self.hosts[sender].port, self.frame(packet, worker=worker, thread=thread))

    def send_frame(self, port: int, frame: Ether) -> SwitchOutput:
        before = self._counted()
        copies = self.harness.copies([(port, bytes(frame))])
        after = self._counted()
        return SwitchOutput(copies, {reason: after[reason] - n for reason, n in before.items() if after[reason] != n})

    def counters(self) -> JobCounters:
        return self.harness.switch.counters(self.entry.job)

    def _counted(self) -> Counter[str]:
        own, stray = self.counters(), self.harness.switch.stray()
        return Counter({reason: own.packets[reason] + stray.packets[reason] for reason in REASONS})


def _imagined_host(number: int) -> Host:
    return Host(f"host{number}", f"10.111.1.{number + 1}", f"02:00:0a:6f:01:{number + 1:02x}", number % PORTS)


class PingedWires(Wires):
    """Wires whose fences are pings to the switch."""

    def send_fence(self, port: int, thread: int) -> tuple[int, int]:
        self.sent = self.sent + 1 & 0xFFFF
        asker = FrameHost(bytes.fromhex(f"0200000000{port:02x}"), IPv4Address("10.111.9.9"))
        self.send(port, icmp_frame(8, asker, self.own, struct.pack("!HH", PING_ID, self.sent)))
        return port, self.sent

    def fence_in(self, port: int, content: bytes) -> tuple[int, int] | None:
        is_answer = (
            content[23:24] == b"\x01" and content[34:36] == b"\0\0" and content[38:40] == PING_ID.to_bytes(2, "big")
        )
        return (port, int.from_bytes(content[40:42], "big")) if is_answer else None

    def counts(self, port: int, content: bytes) -> bool:
        return True


def own_of(star: Bmv2Star) -> FrameHost:
    return FrameHost(bytes.fromhex(star.mac.replace(":", "")), IPv4Address(star.address))


@contextlib.contextmanager
def cables(star: Bmv2Star) -> Iterator[dict[int, socket.socket]]:
    """Packet sockets at the far ends of all links; the hosts' kernels no longer answer."""
    with contextlib.ExitStack() as cleanup:
        made = {}
        for port, end in enumerate([*star.workers, star.control_host]):
            end.run(["ip", "address", "flush", "dev", STAR_DEVICE])
            with inside(end.namespace):
                made[port] = cleanup.enter_context(open_interface(STAR_DEVICE))
        yield made


@contextlib.contextmanager
def programmed_bmv2(program: Pipeline | None = None) -> Iterator[Programmed]:
    """bmv2 as the conformance suite sees a switch. If a program is given, the fences are pings: it may answer nothing
    else."""
    kind = PingedWires if program else Wires
    program = program or device_config.bmv2()
    with Bmv2Star(PORTS - 1, pipeline=program) as star, cables(star) as sockets:
        client = Client(star.p4runtime, star.device, election_id=STANDBY_ID + 1, times=PATIENT)
        client.wait_ready()
        wires = kind(sockets, own_of(star), fence_s_max=PATIENCE_S)
        with contextlib.closing(Programmed(client, program, wires, frozenset(PROFILES))) as switch:
            yield switch


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Moves this thread into a network namespace; sockets that are opened meanwhile stay there."""
    with Path("/proc/thread-self/ns/net").open() as home, Path("/run/netns", namespace).open() as there:
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot change the network namespace (setns)")
