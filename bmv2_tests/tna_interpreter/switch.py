"""A switch that runs the program: ports, the two pipelines, and what is between them.

Between ingress and egress the traffic manager sends a packet to a port, or a copy to each member of a multicast group.
Port numbers contain the pipe. Each pipe has its own registers; entries and groups are shared by all pipes. A pipe's
recirculation port leads back to its ingress. Two other ports may be connected by a cable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bmv2_tests.tna_interpreter.externs import Clock, PacketIn, PacketOut
from bmv2_tests.tna_interpreter.program import Block, Program, runs_short
from bmv2_tests.tna_interpreter.syntax import parse, preprocess
from bmv2_tests.tna_interpreter.values import (
    UNDEFINED,
    HardwareError,
    P4Error,
    Record,
    RecordType,
    UndefinedError,
    fresh,
    zero,
)

RECIRCULATION_PORT = {1: 68, 2: 6}
"""The port within its pipe, by generation of Tofino."""
PASSES_MAX = {1: 2, 2: 1}
"""The most passes of a packet through the ingress; more would use more bandwidth than docs/tofino.md promises."""
PORTS_IN_PIPE = 128
PARSER_ERROR_PARTIAL_HEADER = 2
CROSSINGS_MAX = 8
"""How often a packet and its copies may cross cables."""


TOLD_BY_THE_PROGRAM = (
    "ingress_intrinsic_metadata_for_deparser_t",
    "ingress_intrinsic_metadata_for_tm_t",
    "egress_intrinsic_metadata_for_deparser_t",
    "egress_intrinsic_metadata_for_output_port_t",
)
"""Metadata by which the program controls output. None of it is initialised: the compiler shares the containers of
these fields, whose bits remain in them. A port or a group that was not written is none."""


@dataclass(frozen=True)
class Copy:
    """A packet on its way to a port."""

    port: int
    frame: bytes
    replica: int = 0
    """The replica id of a multicast copy."""
    queue: int = 0
    """The queue of the port."""


class Pipe:
    """Parser, control and deparser of one direction."""

    def __init__(self, program: Program, blocks: Sequence[str], clock: Clock) -> None:
        self._parser, self._control, self._deparser = (program.instantiate(block) for block in blocks)
        self._clock = clock

    def run(self, content: bytes) -> tuple[dict[str, Record], bytes]:
        """Runs one pass. Gives the architecture's metadata as the control left it, by type, and the packet."""
        self._clock.passes += 1
        packet_in, packet_out = PacketIn(content), PacketOut()
        records: dict[str, Record] = {}
        self._bind(self._parser, records, packet_in)
        error = PARSER_ERROR_PARTIAL_HEADER if runs_short(self._parser) else 0
        self._bind(self._control, records, None)
        for name, record in records.items():
            if name.endswith("_from_parser_t"):
                record.fields["parser_err"] = error
        self._control.run()
        self._bind(self._deparser, records, packet_out)
        self._deparser.run()
        return records, packet_out.content + packet_in.rest()

    @staticmethod
    def _bind(block: Block, records: dict[str, Record], packet: PacketIn | PacketOut | None) -> None:
        """Sets the parameters of a block; all blocks of a pass share one record of each type."""
        for parameter in block.parameters:
            if isinstance(parameter.type, RecordType):
                name = parameter.type.name
                if name not in records:
                    unwritten = parameter.direction == "out" or name in TOLD_BY_THE_PROGRAM
                    records[name] = fresh(parameter.type) if unwritten else zero(parameter.type)
                parameter.cell.value = records[name]
            else:
                parameter.cell.value = packet


class Switch:
    """A Tofino with the program loaded. A controller uses `insert` and `groups`."""

    def __init__(self, main: Path, *, generation: int = 1) -> None:
        if generation not in RECIRCULATION_PORT:
            raise ValueError(f"generation must be 1 or 2, not {generation}")
        clock = Clock()
        self.program = Program(parse(preprocess(main, generation)), clock, generation)
        if len(self.program.pipeline) != 6:
            raise P4Error("a pipeline has a parser, a control and a deparser for each direction")
        self._ingress = Pipe(self.program, self.program.pipeline[:3], clock)
        self._egress = Pipe(self.program, self.program.pipeline[3:], clock)
        self._recirculation_port = RECIRCULATION_PORT[generation]
        self._passes_max = PASSES_MAX[generation]
        self._clock = clock
        self.groups: dict[int, list[tuple[int, int]]] = {}
        """Multicast groups: port and replica of each member."""
        self.cables: dict[int, int] = {}
        """The port that each connected port leads to."""
        self.recirculated = 0

    def restart(self) -> None:
        """Acts like loading the program: zero registers and counters, and no entries but the program's own."""
        for register in self.program.registers.values():
            register.clear()
        for counter in self.program.counters.values():
            counter.counts.clear()
        for table in self.program.tables.values():
            table.clear()
        self.groups.clear()
        self.cables.clear()
        self.recirculated = 0

    def fresh(self, slots: int) -> int:
        """Restarts; gives the first of so many unused slots."""
        self.restart()
        return 0

    def insert(self, table: str, matches: Mapping[str, int], action: str, parameters: Mapping[str, int]) -> None:
        self.program.tables[table].insert(matches, action, parameters)

    def delete(self, table: str, matches: Mapping[str, int]) -> None:
        self.program.tables[table].delete(matches)

    def replicate(self, group: int, members: Sequence[tuple[int, int]]) -> None:
        """Makes one copy for each pair of port and replica; an empty list removes the group."""
        if members:
            self.groups[group] = list(members)
        else:
            del self.groups[group]

    def count(self, counter: str, indices: Sequence[int]) -> list[int]:
        """Packets since the program was loaded."""
        return [self.program.counters[counter].counts[index] for index in indices]

    def late(self) -> list[Copy]:
        """Packets that leave later than `receive`: none."""
        return []

    def receive(self, port: int, frame: bytes, expected: int = 0) -> list[Copy]:
        """Sends a frame; gives the copies that leave. Nothing has to be waited for, so `expected` is ignored."""
        sent: list[Copy] = []
        arriving = [Copy(port, frame)]
        for _ in range(CROSSINGS_MAX):
            leaving = [leaves for copy in arriving for leaves in self._pass(copy)]
            arriving = [Copy(self.cables[copy.port], copy.frame) for copy in leaving if copy.port in self.cables]
            sent += [copy for copy in leaving if copy.port not in self.cables]
            if not arriving:
                return sent
        raise HardwareError(f"what comes of a packet crosses cables more than {CROSSINGS_MAX} times")

    def _pass(self, arriving: Copy) -> list[Copy]:
        """All copies of a packet, with as many recirculations as it takes."""
        sent: list[Copy] = []
        looping = [arriving]
        for _ in range(self._passes_max):
            leaving = [leaves for copy in looping for leaves in self.one_pass(copy.port, copy.frame)]
            looping = [copy for copy in leaving if self._recirculates(copy.port)]
            sent += [copy for copy in leaving if not self._recirculates(copy.port)]
            self.recirculated += len(looping)
            if not looping:
                return sent
        raise HardwareError(f"a packet passes through the ingress more than {self._passes_max} times")

    def _recirculates(self, port: int) -> bool:
        return port % PORTS_IN_PIPE == self._recirculation_port

    def one_pass(self, port: int, frame: bytes) -> Iterator[Copy]:
        self._clock.pipe = port // PORTS_IN_PIPE
        intrinsic = zero(self.program.type("ingress_intrinsic_metadata_t"))
        intrinsic.fields["ingress_port"] = port
        records, content = self._ingress.run(_on_wire(intrinsic) + bytes(self._port_metadata_bytes()) + frame)
        to_manager = records["ingress_intrinsic_metadata_for_tm_t"].fields
        if _bit(records["ingress_intrinsic_metadata_for_deparser_t"], "drop_ctl"):
            return
        group = to_manager["mcast_grp_a"]
        queue = _number(records["ingress_intrinsic_metadata_for_tm_t"], "qid") if "qid" in to_manager else 0
        members = [] if group is UNDEFINED else self.groups.get(group, [])
        copies = [Copy(member, content, replica, queue) for member, replica in members]
        if to_manager["ucast_egress_port"] is not UNDEFINED:
            copies.append(Copy(to_manager["ucast_egress_port"], content, queue=queue))
        past_egress = _bit(records["ingress_intrinsic_metadata_for_tm_t"], "bypass_egress")
        for copy in copies:
            yield from [copy] if past_egress else self._leave(copy)

    def _port_metadata_bytes(self) -> int:
        return self.program.constant("PORT_METADATA_SIZE") // 8

    def _leave(self, copy: Copy) -> Iterator[Copy]:
        intrinsic = zero(self.program.type("egress_intrinsic_metadata_t"))
        intrinsic.fields["egress_port"] = copy.port
        intrinsic.fields["egress_rid"] = copy.replica
        records, content = self._egress.run(_on_wire(intrinsic) + copy.frame)
        if not _bit(records["egress_intrinsic_metadata_for_deparser_t"], "drop_ctl"):
            yield replace(copy, frame=content)


def _on_wire(intrinsic: Record) -> bytes:
    packet = PacketOut()
    intrinsic.valid = True
    packet.emit(intrinsic)
    return packet.content


def _bit(record: Record, name: str) -> int:
    """The lowest bit of a metadata field."""
    return _number(record, name) & 1


def _number(record: Record, name: str) -> int:
    """A metadata field that the program must have written."""
    value = record.fields[name]
    if value is UNDEFINED:
        raise UndefinedError(f"{name} was never written: it may hold another field's bits")
    return int(value)
