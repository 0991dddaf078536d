"""Interfaces of this machine as the far ends of a switch's ports: frames go in and come out through packet sockets.

Theory of operation. No timer decides that nothing comes out. A switch takes the frames of a port in order, and sends to
each port in order. So each port has a *fence*: a job of one worker there, whose packets are answered at once. A fence
that was sent behind a frame and is answered shows that the frame has been handled; a second one, sent when all first
ones are answered, comes behind everything that the frames of other ports caused. A switch whose threads share the UDP
ports keeps the order within each alone, so a fence goes to the ports that the frames go to.

Frames that are neither the switch's nor any imaginary host's are other traffic on these links, and are ignored. ARP
requests for the imaginary hosts are answered: a switch that is a process on a host needs answers.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address

from wiresum.conformance import frames
from wiresum.conformance.network import HOSTS_MAX, host
from wiresum.conformance.switch import RESULTS, PlacedJob, Switch, SwitchError
from wiresum.controller.driver import Endpoint, JobEntry
from wiresum.join.constants import SWITCH_PORT, THREADS_MAX, Header, Kind

RECEIVE_BYTES = 16 << 20
FRAME_BYTES_MAX = 65_536
FENCE_S_MAX = 5.0
"""The longest wait for the answer to a fence."""
_FENCE_JOBS, _FENCE_KEY, _FENCE_PORT = 900, 0xFE4CE001, 19_000
# Constants of packet(7) and socket(7).
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING, _SO_RCVBUFFORCE = 263, 8, 23, 33
_AUXDATA, _STATUS_VLAN_VALID = struct.Struct("=IIIHHHH"), 0x10
_ETH_P_ALL = 3
_ARP_REQUEST, _ARP_REPLY = 1, 2


def open_interface(interface: str) -> socket.socket:
    """Opens a packet socket at an interface. Raises `OSError`."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.bind((interface, 0))
    made.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
    return made


class Wires:
    """The far ends of a switch's ports."""

    def __init__(
        self, sockets: Mapping[int, socket.socket], own: frames.Host, *, fence_s_max: float = FENCE_S_MAX
    ) -> None:
        """`sockets`: by the switch's port. `own`: the switch's addresses."""
        self.own, self.ports = own, tuple(sorted(sockets))
        self._sockets, self._fence_s_max = dict(sockets), fence_s_max
        self._poll = select.poll()
        self._by_descriptor = {made.fileno(): port for port, made in sockets.items()}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._fences: dict[int, PlacedJob] = {}
        self._hosts: dict[IPv4Address, tuple[int, frames.Host]] = {}
        """The imaginary hosts, and their ports."""
        self.sent = 0
        """The number of the last fence."""
        self.counted: Counter[str] = Counter()
        """The switch's counts of fences."""
        self._begun: set[tuple[int, int]] = set()
        """Ports and threads whose fence has been sent since the switch was loaded."""

    def close(self) -> None:
        for made in self._sockets.values():
            made.close()

    def send(self, port: int, content: bytes) -> None:
        self._sockets[port].send(content)

    @property
    def fence_slots(self) -> int:
        """The slots of all fences."""
        return THREADS_MAX * len(self.ports)

    def fences(self, switch: Switch) -> list[PlacedJob]:
        """Returns the jobs that must be admitted to a switch without other jobs, in its first slots."""
        self._hosts = {}
        self._begun.clear()
        for number in range(HOSTS_MAX):
            there = host(switch, number)
            ends = frames.Host(bytes.fromhex(there.mac.replace(":", "")), IPv4Address(there.address))
            self._hosts[ends.address] = (there.port, ends)
        for index, port in enumerate(self.ports):
            there = host(switch, index)
            entry = JobEntry(
                job=_FENCE_JOBS + index,
                key=_FENCE_KEY + index,
                workers=1,
                threads=THREADS_MAX,
                lanes=switch.lanes,
                slot_base=THREADS_MAX * index,
                slots=THREADS_MAX,
                endpoints=(Endpoint(there.address, _FENCE_PORT),),
            )
            self._fences[port] = PlacedJob(entry, (there,))
        return list(self._fences.values())

    def is_fence(self, job: PlacedJob) -> bool:
        return job in self._fences.values()

    def exchange(self, sent: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Sends frames, each at its port, and returns all that come out. Raises `SwitchError` if a fence is not
        answered."""
        for port, content in sent:
            self.send(port, content)
        threads = {_thread_of(content) for _, content in sent} or {0}
        return [came for _ in range(2) for came in self._until_fenced(threads)]

    def _until_fenced(self, threads: set[int]) -> list[tuple[int, bytes]]:
        waiting = set()
        for port in self.ports:
            for thread in threads:
                waiting.add(self.send_fence(port, thread))
        came: list[tuple[int, bytes]] = []
        while waiting:
            ready = self._poll.poll(1000 * self._fence_s_max)
            if not ready:
                raise SwitchError(self._silence(waiting))
            for descriptor, _ in ready:
                port = self._by_descriptor[descriptor]
                content = _receive(self._sockets[port])
                if (number := self.fence_in(port, content)) in waiting:
                    waiting.remove(number)
                elif number is None and self.counts(port, content):
                    came.append((port, content))
        return came

    def send_fence(self, port: int, thread: int) -> tuple[int, int]:
        entry, there = self._fences[port].entry, self._fences[port].hosts[0]
        self.counted.update(["resent"] if (port, thread) in self._begun else ["admitted", RESULTS])
        self._begun.add((port, thread))
        self.sent += 1
        number = self.sent & 0xFFFFFFFF
        header = Header(kind=Kind.DATA, job=entry.job, key=entry.key, cell=2 * thread + 1, round=1, chunk=number)
        _, ends = self._hosts[IPv4Address(there.address)]
        datagram = header.pack() + bytes(4 * entry.lanes)
        ports = (_FENCE_PORT + thread, SWITCH_PORT + thread)
        self.send(port, frames.UdpFrame(ends, self.own, *ports, datagram).pack())
        return port, number

    def fence_in(self, port: int, content: bytes) -> tuple[int, int] | None:
        """Returns the fence that a frame answers; None: the frame is no answer to one."""
        with contextlib.suppress(ValueError, struct.error):
            frame, _ = frames.UdpFrame.split(content)
            header = Header.unpack(frame.payload)
            if header.kind == Kind.RESULT and header.key == self._fences[port].entry.key:
                return port, header.chunk
        return None

    def counts(self, port: int, content: bytes) -> bool:
        source = content[6:12]
        if source == self.own.mac:
            return not self._is_of_a_host(port, content)
        return any(source == ends.mac for _, ends in self._hosts.values())

    def _is_of_a_host(self, port: int, content: bytes) -> bool:
        """Returns whether a frame is by the kernel of a switch that is a host. Answers an ARP request for an imaginary
        host."""
        unreachable = content[12:14] == b"\x08\x00" and content[23:24] == b"\x01" and content[34:35] == b"\x03"
        if content[12:14] == b"\x86\xdd" or unreachable:
            return True
        if content[12:14] != b"\x08\x06" or content[20:22] != _ARP_REQUEST.to_bytes(2, "big"):
            return False
        at, asked = self._hosts.get(IPv4Address(content[38:42]), (None, None))
        if asked is not None and at == port:
            self.send(port, frames.arp_frame(_ARP_REPLY, asked, self.own, to=self.own.mac))
        return True

    def _silence(self, waiting: set[tuple[int, int]]) -> str:
        silent = ", ".join(str(port) for port in sorted({port for port, _ in waiting}))
        return (
            f"the switch has not answered for {self._fence_s_max:.0f} s at port {silent}: each port has a job of one "
            f"worker, whose DATA must be answered by RESULT at once, also when it is sent again"
        )


def _thread_of(content: bytes) -> int:
    """Returns the thread whose port of the switch a frame goes to; 0 for other frames."""
    port = int.from_bytes(content[36:38], "big") if content[12:14] == b"\x08\x00" else SWITCH_PORT
    return port - SWITCH_PORT if 0 <= port - SWITCH_PORT < THREADS_MAX else 0


def _receive(cable: socket.socket) -> bytes:
    """Receives a frame as it was on the link: the kernel removes a VLAN tag and gives it separately (packet(7))."""
    frame, beside, _, _ = cable.recvmsg(FRAME_BYTES_MAX, socket.CMSG_SPACE(_AUXDATA.size))
    for level, kind, data in beside:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, tag, ethertype = _AUXDATA.unpack_from(data)
            if status & _STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", ethertype, tag) + frame[12:]
    return frame
