"""A Tofino that runs the program, with workers at its ports and the entries of a controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Protocol, cast

import finsy as fy

from bmv2_tests.frames import Host, UdpFrame
from bmv2_tests.installed import entities_of, entry_of
from bmv2_tests.tna_interpreter.switch import Copy
from bmv2_tests.vectors import SCENARIO_SLOTS_MAX, Job, Member
from wiresum.controller import Endpoint, switches
from wiresum.controller.p4runtime import desired, own
from wiresum.controller.p4runtime.count import COLUMNS
from wiresum.join.constants import PARENT, STRAY_ROW, SWITCH_PORT, SWITCH_WORKERS_MAX

MAIN = Path(__file__).resolve().parents[1] / "p4src" / "tna" / "main.p4"
SWITCH = Host(bytes.fromhex("02000000fffe"), IPv4Address("10.0.0.1"))
STRANGER = Host(bytes.fromhex("02000000fffd"), IPv4Address("10.9.9.9"))

PASSES_AGAIN = {1: 1, 2: 0}
"""How often a packet with the words of a sum recirculates, by generation of Tofino: once in a round, in each pipe."""

_FIRST_PORT, _PORTS = 8, 55
"""External ports of a pipe, on either generation. The model's tracer uses one more."""


class TofinoSwitch(Protocol):
    """The interpreter, or the vendor's model."""

    def fresh(self, slots: int) -> int: ...
    def insert(self, table: str, matches: Mapping[str, int], action: str, parameters: Mapping[str, int]) -> None: ...
    def delete(self, table: str, matches: Mapping[str, int]) -> None: ...
    def replicate(self, group: int, members: Sequence[tuple[int, int]]) -> None: ...
    def receive(self, port: int, frame: bytes, expected: int = 0) -> list[Copy]: ...
    def late(self) -> list[Copy]: ...
    def count(self, counter: str, indices: Sequence[int]) -> list[int]: ...


class TofinoNetwork:
    """Workers get port, address and MAC in the order in which their jobs are admitted. A job that reuses a number
    has its workers in the same places."""

    def __init__(self, switch: TofinoSwitch, slots: int = SCENARIO_SLOTS_MAX) -> None:
        """`slots`: room for all leases."""
        self.switch = switch
        self._first_slot = switch.fresh(slots)
        self._members: dict[Member, int] = {}
        self._rows: dict[int, int] = {}
        self._entities: dict[Job, list[desired.Entity]] = {}
        for entry in own.entries(str(SWITCH.address), _mac(SWITCH)):
            write(switch, entry)

    def port(self, member: Member) -> int:
        return _FIRST_PORT + self._members[member] % _PORTS

    def host(self, member: Member) -> Host:
        number = self._members[member]
        return Host(bytes.fromhex("02000000") + number.to_bytes(2, "big"), IPv4Address("10.1.0.0") + number)

    def base_port(self, member: Member) -> int:
        """The first of a worker's UDP ports; there is one for each thread."""
        return 20000 + 16 * self._members[member]

    def admit(self, job: Job) -> None:
        row = self._rows[job.number] = len(self._rows) + 1
        parent = None if job.parent is None else Member(job.number, PARENT)
        for member in (*job.members, *([parent] if parent else [])):
            self._members.setdefault(member, len(self._members))
        above = self._configured(parent) if parent else None
        hosts = [self._configured(member) for member in job.members]
        entry = entry_of(job, self._endpoint, self._first_slot)
        self._entities[job] = entities_of(entry, row, hosts, above)
        for entity in self._entities[job]:
            write(self.switch, entity)

    def _endpoint(self, member: Member) -> Endpoint:
        return Endpoint(str(self.host(member).address), self.base_port(member))

    def _configured(self, member: Member) -> switches.Host:
        host = self.host(member)
        return switches.Host(name=str(member), address=str(host.address), mac=_mac(host), port=self.port(member))

    def evict(self, job: Job) -> None:
        """Removes a job; its counters are kept."""
        for entity in self._entities.pop(job):
            erase(self.switch, entity)

    def frame(self, sender: Host, source_port: int, datagram: bytes, *, thread: int = 0, ecn: int = 0) -> UdpFrame:
        return UdpFrame(sender, SWITCH, source_port, SWITCH_PORT + thread, datagram, ecn=ecn)

    def own_frame(self, member: Member, datagram: bytes, *, ecn: int = 0) -> UdpFrame:
        """A datagram of a worker's first thread to the switch."""
        return self.frame(self.host(member), self.base_port(member), datagram, ecn=ecn)

    def send(self, port: int, frame: bytes, expected: int = 0) -> list[Copy]:
        """Sends a frame; gives the copies that come out. A slow switch waits for as many copies as expected."""
        return self.switch.receive(port, frame, expected)

    def packets(self) -> Counter[str]:
        """Packets to the switch by reason, of all jobs and without a job."""
        rows = [STRAY_ROW, *self._rows.values()]
        indices = [row * len(COLUMNS) + column for row in rows for column in range(len(COLUMNS))]
        counted: Counter[str] = Counter()
        for index, packets in zip(indices, self.switch.count("packets", indices), strict=True):
            counted[COLUMNS[index % len(COLUMNS)]] += packets
        return +counted

    def packets_of(self, job: int, reason: str) -> int:
        return self._count("packets", self._rows[job] * len(COLUMNS) + COLUMNS.index(reason))

    def contributions(self, member: Member) -> int:
        return self._count("contributions", self._rows[member.job] * SWITCH_WORKERS_MAX + member.worker)

    def results(self, job: int) -> int:
        return self._count("results", self._rows[job])

    def _count(self, counter: str, index: int) -> int:
        (packets,) = self.switch.count(counter, [index])
        return packets


def write(switch: TofinoSwitch, entity: desired.Entity) -> None:
    """Writes an entity as the controller would through a server."""
    if isinstance(entity, fy.P4MulticastGroupEntry):
        pairs = cast("Sequence[tuple[int, int]]", entity.replicas)  # port and instance, as `deliver` makes them
        switch.replicate(entity.multicast_group_id, pairs)
    else:
        action = entity.action
        assert isinstance(action, fy.P4TableAction) and entity.match is not None
        switch.insert(entity.table_id, _numbers(entity.match), action.name, _numbers(action.args))


def erase(switch: TofinoSwitch, entity: desired.Entity) -> None:
    if isinstance(entity, fy.P4MulticastGroupEntry):
        switch.replicate(entity.multicast_group_id, [])
    else:
        assert entity.match is not None
        switch.delete(entity.table_id, _numbers(entity.match))


def _mac(host: Host) -> str:
    return host.mac.hex(":")


def _numbers(values: Mapping[str, Any]) -> dict[str, int]:
    """Converts addresses, which the controller writes as text, to the numbers in the chip."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return int(value.replace(":", ""), 16) if ":" in value else int(IPv4Address(value))
