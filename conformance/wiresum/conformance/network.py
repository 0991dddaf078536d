"""Imaginary hosts at the ports of a switch under test, and their frames."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from wiresum.conformance import frames
from wiresum.conformance.scenarios import SCENARIO_SLOTS_MAX, Job, Member
from wiresum.conformance.switch import PlacedJob, Switch
from wiresum.controller.driver import Endpoint, JobEntry, Uplink
from wiresum.controller.switches import Host
from wiresum.join.constants import PARENT, SWITCH_PORT, THREADS_MAX

HOSTS_MAX = 64
"""The number of imaginary hosts; host n is at port n, counted around."""
FIRST_WORKER_PORT = 20_000
_HOSTS_NET, _STRANGER = 0x0100, 0x0808
"""The last two bytes of the first host's address, less one, and of an address that no host has."""


def host(switch: Switch, number: int) -> Host:
    """Returns an imaginary host. Its address is in the /16 of the switch's own."""
    address = _near(switch, _HOSTS_NET + 1 + number)
    mac = f"02:00:00:00:{number >> 8:02x}:{number & 0xFF:02x}"
    return Host(f"host{number}", str(address), mac, switch.ports[number % len(switch.ports)])


def hosts(switch: Switch) -> list[Host]:
    return [host(switch, number) for number in range(HOSTS_MAX)]


def stranger(switch: Switch) -> frames.Host:
    """Returns a host whose address no job has."""
    return frames.Host(bytes.fromhex("02000000fffd"), _near(switch, _STRANGER))


def _near(switch: Switch, last_two_bytes: int) -> IPv4Address:
    return IPv4Address(int(switch.own.address) & 0xFFFF0000 | last_two_bytes)


class Network:
    """The hosts of a run's members: each gets the next host, in the order in which the jobs are admitted. A job that
    reuses a number has its members in the same places."""

    def __init__(self, switch: Switch, slots: int = SCENARIO_SLOTS_MAX) -> None:
        """`slots`: room for all leases."""
        self.switch = switch
        self._first_slot = switch.fresh(slots)
        self._places: dict[Member, tuple[int, int]] = {}
        """The number of the member's host, and of the member."""
        self._placed: dict[Job, PlacedJob] = {}

    def place(self, member: Member, at: Member | None = None) -> None:
        """Gives a member the next host, or the same as another's."""
        number = len(self._places)
        self._places.setdefault(member, (number if at is None else self._places[at][0], number))

    def configured(self, member: Member) -> Host:
        return host(self.switch, self._places[member][0])

    def port(self, member: Member) -> int:
        return self.configured(member).port

    def host(self, member: Member) -> frames.Host:
        there = self.configured(member)
        return frames.Host(bytes.fromhex(there.mac.replace(":", "")), IPv4Address(there.address))

    def base_port(self, member: Member) -> int:
        """Returns the first of a member's UDP ports; there is one for each thread. Members on one host have different
        ones."""
        return FIRST_WORKER_PORT + THREADS_MAX * self._places[member][1]

    def offset_of(self, member: Member) -> int:
        """Returns the port offset of the member's job."""
        return next(job.port_offset for job in self._placed if job.number == member.job)

    def admit(self, job: Job) -> PlacedJob:
        parent = None if job.parent is None else Member(job.number, PARENT)
        for member in (*job.members, *([parent] if parent else [])):
            self.place(member)
        entry = JobEntry(
            job=job.number,
            key=job.key,
            workers=job.workers,
            threads=job.threads,
            lanes=job.lanes,
            slot_base=self._first_slot + job.slot_base,
            slots=job.slots,
            endpoints=tuple(self._endpoint(member) for member in job.members),
            uplink=None if parent is None or job.parent is None else Uplink(self._endpoint(parent), job.parent),
            port_offset=job.port_offset,
        )
        above = self.configured(parent) if parent else None
        placed = self._placed[job] = PlacedJob(entry, tuple(self.configured(member) for member in job.members), above)
        self.switch.admit(placed)
        return placed

    def evict(self, job: Job) -> None:
        self.switch.evict(self._placed.pop(job))

    def _endpoint(self, member: Member) -> Endpoint:
        return Endpoint(str(self.host(member).address), self.base_port(member))

    def frame(self, sender: frames.Host, source_port: int, datagram: bytes, *, thread: int = 0) -> frames.UdpFrame:
        return frames.UdpFrame(sender, self.switch.own, source_port, SWITCH_PORT + thread, datagram)

    def own_frame(self, member: Member, datagram: bytes, *, thread: int = 0, ecn: int = 0) -> frames.UdpFrame:
        """Makes a frame from a member's thread to the same thread of the switch."""
        frame = self.frame(self.host(member), self.base_port(member) + thread, datagram, thread=thread)
        return replace(frame, ecn=ecn)
