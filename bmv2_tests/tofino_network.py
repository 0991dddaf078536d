"""A Tofino that runs the program, as the conformance suite sees a switch, and with what more its tests ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Protocol, cast

import finsy as fy

from bmv2_tests.tna_interpreter.switch import Copy
from wiresum.conformance.frames import Host
from wiresum.conformance.network import Network, hosts
from wiresum.conformance.p4runtime import entities_of
from wiresum.conformance.scenarios import PROFILES, SCENARIO_SLOTS_MAX, Member
from wiresum.conformance.switch import RESULTS, PlacedJob
from wiresum.controller.p4runtime import desired, forward, own
from wiresum.controller.p4runtime.count import COLUMNS
from wiresum.join.constants import STRAY_ROW, SWITCH_WORKERS_MAX

MAIN = Path(__file__).resolve().parents[1] / "p4src" / "tna" / "main.p4"
SWITCH = Host(bytes.fromhex("02000000fffe"), IPv4Address("10.0.0.1"))
STRANGER = Host(bytes.fromhex("02000000fffd"), IPv4Address("10.0.8.8"))

PASSES_AGAIN = {1: 1, 2: 0}
"""How often a packet with the words of a sum recirculates, by generation of Tofino: once in a round, in each pipe."""

PORTS = range(8, 63)
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


class Tofino:
    """A `Switch` under test. It neither verifies nor computes UDP's checksum: docs/tofino.md, Checksums."""

    own, ports, lanes = SWITCH, PORTS, 64
    profiles = frozenset(PROFILES) - {"udp_checksum"}

    def __init__(self, switch: TofinoSwitch, *, forwards: bool = True) -> None:
        """`forwards`: it knows the hosts at its ports, beyond those of jobs."""
        self.switch = switch
        self.rows: dict[int, int] = {}
        """The row of counters of each job's number."""
        self._forwards = forwards
        self._entities: dict[PlacedJob, list[desired.Entity]] = {}
        self._before: Counter[str] = Counter()
        """What was in the counters' rows before their jobs came."""

    def fresh(self, slots: int) -> int:
        first = self.switch.fresh(slots)
        self.rows.clear()
        self._entities.clear()
        self._before.clear()
        for entry in own.entries(str(SWITCH.address), SWITCH.mac.hex(":")):
            write(self.switch, entry)
        if self._forwards:
            for entry in forward.entries(hosts(self)):
                write(self.switch, entry)
            write(self.switch, forward.flood_group(hosts(self)))
        return first

    def admit(self, job: PlacedJob) -> None:
        row = self.rows[job.entry.job] = len(self._entities) + 1
        self._before += self._row(row)
        self._entities[job] = entities_of(job, row)
        for entity in self._entities[job]:
            write(self.switch, entity)

    def evict(self, job: PlacedJob) -> None:
        """Removes a job; its counters are kept."""
        for entity in self._entities[job]:
            erase(self.switch, entity)

    def exchange(self, sent: Sequence[tuple[int, bytes]], expected: int = 0) -> list[tuple[int, bytes]]:
        copies = [copy for port, frame in sent for copy in self.switch.receive(port, frame, expected)]
        copies += [] if expected else self.switch.late()
        return [(copy.port, copy.frame) for copy in copies]

    def counted(self) -> Counter[str]:
        rows = range(1, len(self._entities) + 1)
        return sum((self._row(row) for row in (STRAY_ROW, *rows)), Counter()) - self._before

    def _row(self, row: int) -> Counter[str]:
        counts = self.switch.count("packets", [row * len(COLUMNS) + column for column in range(len(COLUMNS))])
        (results,) = self.switch.count(RESULTS, [row])
        counted = dict(zip(COLUMNS, counts, strict=True)) | {RESULTS: results}
        return +Counter({name: number for name, number in counted.items() if name != "other"})


class TofinoNetwork(Network):
    """Hosts at the ports of a Tofino, and what its counters say of single jobs and members."""

    def __init__(self, switch: TofinoSwitch, slots: int = SCENARIO_SLOTS_MAX) -> None:
        self.chip, self.tofino = switch, Tofino(switch, forwards=False)
        super().__init__(self.tofino, slots)

    def send(self, port: int, frame: bytes, expected: int = 0) -> list[Copy]:
        """Sends a frame; gives the copies that come out. A slow switch waits for as many copies as expected."""
        return self.chip.receive(port, frame, expected)

    def packets(self) -> Counter[str]:
        """Packets to the switch by reason, of all jobs and without a job; what is nothing of the protocol's, too."""
        rows = (STRAY_ROW, *self.tofino.rows.values())
        counts = {
            (row, name): self._count("packets", row * len(COLUMNS) + column)
            for row in rows
            for column, name in enumerate(COLUMNS)
        }
        return sum((Counter({name: count}) for (_, name), count in counts.items()), Counter())

    def packets_of(self, job: int, reason: str) -> int:
        return self._count("packets", self.tofino.rows[job] * len(COLUMNS) + COLUMNS.index(reason))

    def contributions(self, member: Member) -> int:
        return self._count("contributions", self.tofino.rows[member.job] * SWITCH_WORKERS_MAX + member.worker)

    def results(self, job: int) -> int:
        return self._count(RESULTS, self.tofino.rows[job])

    def _count(self, counter: str, index: int) -> int:
        (packets,) = self.chip.count(counter, [index])
        return packets


def write(switch: TofinoSwitch, entity: desired.Entity) -> None:
    """Writes an entity as the controller would through a server."""
    if isinstance(entity, fy.P4MulticastGroupEntry):
        pairs = cast("Sequence[tuple[int, int] | int]", entity.replicas)  # port and instance, as `deliver` makes them
        switch.replicate(entity.multicast_group_id, [pair if isinstance(pair, tuple) else (pair, 0) for pair in pairs])
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


def _numbers(values: Mapping[str, Any]) -> dict[str, int]:
    """Converts addresses, which the controller writes as text, to the numbers in the chip."""
    return {name: _number(value) for name, value in values.items()}


def _number(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return int(value.replace(":", ""), 16) if ":" in value else int(IPv4Address(value))
