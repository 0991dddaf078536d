"""A test harness: real bmv2 with our program in a namespace, and the test at the far ends of its links.

Theory of operation. A `Bmv2Star` gives a switch with PORTS ports. Its hosts lose their addresses, so that no kernel
answers what the switch sends. Instead, frames are sent and received through packet sockets that were opened in the
hosts' namespaces. The controller's tables name HOSTS hosts, which do not exist, spread over the ports.

The harness does not wait to see that nothing comes out. bmv2 takes the frames of each port in order through one
pipeline, and sends the frames to each port in order. So two pings to the switch, sent one after the other at every
port, show that all earlier frames have been handled and that their results have arrived. (The answer to the first ping
at a port shows that the frames sent at that port have been through the pipeline. The answer to the second one comes
behind everything that the frames of other ports caused.)
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

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether

from bmv2_tests.frames import Host as FrameHost
from bmv2_tests.frames import UdpFrame
from wiresum.controller import REASONS, Endpoint, JobCounters, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.jobs.slot_pool import SlotPool
from wiresum.controller.p4runtime import STANDBY_ID, Client, Host, P4RuntimeSwitch, Pipeline, device_config
from wiresum.join.constants import SWITCH_PORT
from wiresum_lab.doubles.p4runtime_proxy import PATIENT
from wiresum_lab.doubles.workers import DATA, Packet
from wiresum_lab.namespaces.bmv2_star import Bmv2Star
from wiresum_lab.namespaces.star import STAR_DEVICE
from wiresum_lab.namespaces.star import Host as StarHost
from wiresum_lab.patience import PATIENCE_S

PORTS = 4
HOSTS = 64
WORKER_PORT = 20_000
"""The base UDP port of every worker."""
NUMBER_AT_PARENT = 5
RECEIVE_BYTES = 16 << 20
FRAME_BYTES_MAX = 65_536
PING_ID = 0x5749
TENSOR, CHUNK = 0x01020304, 0x05060708
"""All bytes differ, so a moved or swapped field is noticed."""

_CLONE_NEWNET = 0x40000000
# Constants of packet(7) and socket(7).
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING, _SO_RCVBUFFORCE = 263, 8, 23, 33
_AUXDATA, _STATUS_VLAN_VALID = struct.Struct("=IIIHHHH"), 0x10
_ETH_P_ALL = 3


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
        self._pings = self._jobs = self._elections = 0
        with contextlib.ExitStack() as attempt:
            self.star = attempt.enter_context(Bmv2Star(PORTS - 1, pipeline=self.program))
            ends = [*self.star.workers, self.star.control_host]
            self._sockets = [attempt.enter_context(_cable(host)) for host in ends]
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
        for port, frame in frames:
            self._sockets[port].send(frame)
        came = [(port, frame) for port, frames_of in enumerate(self._ping_everywhere()) for frame in frames_of]
        return came + [(port, frame) for port, frames_of in enumerate(self._ping_everywhere()) for frame in frames_of]

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

    def _ping_everywhere(self) -> list[list[bytes]]:
        """Pings at every port, and gives what arrived at each before the answer."""
        self._pings += 1
        sequence = self._pings & 0xFFFF
        for port in range(PORTS):
            self._sockets[port].send(self._ping(port, sequence))
        return [self._until_answer(port, sequence) for port in range(PORTS)]

    def _ping(self, port: int, sequence: int) -> bytes:
        ethernet, ip = Ether(src=f"02:00:00:00:00:{port:02x}", dst=self.star.mac), IP(src="10.111.9.9")
        ip.dst = self.star.address
        return bytes(ethernet / ip / ICMP(id=PING_ID, seq=sequence))

    def _until_answer(self, port: int, sequence: int) -> list[bytes]:
        came: list[bytes] = []
        answer = b"\0\0" + PING_ID.to_bytes(2, "big") + sequence.to_bytes(2, "big")
        while True:
            frame = _receive(self._sockets[port])
            if frame[23:24] == b"\x01" and frame[34:36] + frame[38:42] == answer:
                return came
            came.append(frame)


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


def _cable(host: StarHost) -> socket.socket:
    """A packet socket at the far end of a host's link; the host's kernel no longer answers."""
    host.run(["ip", "address", "flush", "dev", STAR_DEVICE])
    with inside(host.namespace):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.bind((STAR_DEVICE, 0))
    made.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    made.settimeout(PATIENCE_S)
    return made


def _receive(cable: socket.socket) -> bytes:
    """A frame as it was on the link: the kernel removes a VLAN tag and gives it separately (packet(7))."""
    frame, beside, _, _ = cable.recvmsg(FRAME_BYTES_MAX, socket.CMSG_SPACE(_AUXDATA.size))
    for level, kind, data in beside:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, tag, ethertype = _AUXDATA.unpack_from(data)
            if status & _STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", ethertype, tag) + frame[12:]
    return frame


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
