"""Interpreted Tofinos with the entries that the controller would write: a configuration becomes nodes, jobs get their
trees, and the entries of each node are in the tables of its switch.

Links lose packets, and workers send questions, in steps.
"""

from __future__ import annotations

import functools
import random
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import finsy as fy

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_network import erase, write
from wiresum import join as messages
from wiresum.conformance.frames import Host, UdpFrame
from wiresum.controller import config
from wiresum.controller.driver import Endpoint, JobEntry, SwitchSizes
from wiresum.controller.jobs import cluster
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.outputs import Admit, Evict, Output
from wiresum.controller.p4runtime import Target, desired, targets_of
from wiresum.controller.switches import SwitchConfig
from wiresum.join.constants import HEADER_BYTES, SWITCH_PORT, Header, Kind
from wiresum_lab.doubles.controller import JobsHarness, member
from wiresum_lab.doubles.p4runtime_proxy import write_tofino_program

TENSOR, CHUNK = 7, 11
LANES = 64
WAY_MAX = 1000
"""Bound on the packets that follow from one."""


class SwitchPort(NamedTuple):
    switch: str
    port: int


class Sender:
    """A worker as in section 4 of docs/protocol.md, with one slot: it completes one round after the other."""

    def __init__(self, granted: Worker, network: Cluster, words: Sequence[int]) -> None:
        """`words`: its contribution to each round, the same in all lanes."""
        self.job, self.key, self.number = granted.job.lease.number, granted.job.lease.key, granted.number
        self.host, self.place, self.gateway = network.at(granted.endpoint.address)
        self.port = granted.endpoint.port
        self.switch_port = SWITCH_PORT + granted.job.lease.port_offset
        self._words = words
        self.sums: list[int] = []
        """The results so far, by round."""
        self._asking = False

    def is_done(self) -> bool:
        return len(self.sums) == len(self._words)

    def next_packet(self) -> bytes:
        """The packet that it sends after a timeout."""
        frame = self.packet(Kind.QUESTION if self._asking else Kind.DATA)
        self._asking = True
        return frame

    def packet(self, kind: int) -> bytes:
        round_number = 1 + len(self.sums)
        payload = struct.pack("!I", self._words[len(self.sums)]) * LANES if kind == Kind.DATA else b""
        header = Header(
            kind=kind,
            job=self.job,
            key=self.key,
            worker=self.number,
            exponent=1 + self.number,
            cell=round_number & 1,
            round=round_number,
            tensor=TENSOR,
            chunk=CHUNK,
        )
        datagram = header.pack() + payload
        return UdpFrame(self.host, self.gateway, self.port, self.switch_port, datagram).pack()

    def receive(self, datagram: bytes) -> bytes | None:
        """Handles an answer; gives the packet that it sends at once, if any."""
        header = Header.unpack(datagram)
        assert (header.job, header.key, header.tensor, header.chunk) == (self.job, self.key, TENSOR, CHUNK)
        if self.is_done() or header.round != 1 + len(self.sums):
            return None  # of a completed round
        if header.kind == Kind.MISSING:
            return self.packet(Kind.DATA)
        assert header.kind == Kind.RESULT
        (word, *others) = struct.unpack(f"!{LANES}I", datagram[HEADER_BYTES:])
        assert set(others) == {word}, "a result has words of two rounds"
        self.sums.append(word)
        self._asking = False
        return None


class Cluster:
    def __init__(self, text: str, switches: Mapping[str, Switch], folder: Path) -> None:
        """`text`: the [[switch]] tables; `program` and `p4info` are added. `switches`: by name."""
        if not (folder / "pipe").exists():
            write_tofino_program(folder)
        path = folder / "cluster.toml"
        program = f'kind = "tofino"\nprogram = "{folder}"\np4info = "{folder / "info.txtpb"}"'
        path.write_text(text.replace('kind = "tofino"', program))
        configured = config.load(path).switches
        self._switches = dict(switches)
        self.targets = {target.name: target for target in targets_of(configured)}
        self._switch_of = {target.name: target.part_of or target.name for target in self.targets.values()}
        self._configured = {switch.name: switch for switch in configured}
        self._links = dict(self._joined(configured))
        self._unplugged: dict[SwitchPort, SwitchPort] = {}
        self._held: dict[str, dict[tuple[str, str], desired.Entity]] = {name: {} for name in switches}
        for switch in switches.values():
            switch.restart()
        for target in self.targets.values():
            if target.is_first:
                self._install(target, desired.of_configuration(target))
        self.configured = self.entries()
        self.harness = JobsHarness(switches=[node_of(target) for target in self.targets.values()])
        self._carried_out = 0
        """The number of the harness's outputs that were carried out."""
        self._admitted: dict[tuple[str, int], JobEntry] = {}
        """Entries of jobs by node and job number."""

    @staticmethod
    def _joined(configured: Iterable[SwitchConfig]) -> Iterable[tuple[SwitchPort, SwitchPort]]:
        """The port at the other end of a link, or None."""
        for switch in configured:
            for one, other in switch.cables:
                yield SwitchPort(switch.name, one), SwitchPort(switch.name, other)
                yield SwitchPort(switch.name, other), SwitchPort(switch.name, one)
            if switch.parent:
                assert switch.parent_port is not None
                assert switch.port_at_parent is not None
                below, above = (
                    SwitchPort(switch.name, switch.parent_port),
                    SwitchPort(switch.parent, switch.port_at_parent),
                )
                yield from ((below, above), (above, below))

    # Jobs.

    def start(self, name: str, addresses: Sequence[str], words: Sequence[Sequence[int]]) -> list[Sender]:
        """`words`: by worker and round."""
        asked = []
        for rank, address in enumerate(addresses):
            endpoint = messages.Endpoint(address=address, port=20000)
            asked.append(
                self.harness.ask(
                    job_name=name, rank=rank, world_size=len(addresses), endpoint=endpoint, threads_max=1, slots=16
                )
            )
        assert asked[0].job.lease.nodes, f"{name} was refused"
        for worker in asked:
            self.harness.jobs.attend(member(worker), self.harness.now)
        self._carry_out()
        return [Sender(worker, self, own) for worker, own in zip(asked, words, strict=True)]

    def end(self, name: str) -> None:
        self.harness.jobs.end(name, "", self.harness.now)
        self.harness.settle()
        self._carry_out()

    def tree(self, name: str) -> dict[str, str]:
        """The parent of each node of a job, the root first."""
        (job,) = (job for job in self.harness.jobs.all() if job.name == name)
        return {node.branch.switch_name: node.branch.parent for node in job.lease.nodes.values()}

    def entry(self, name: str, node: str) -> JobEntry:
        """A node's entry of a job."""
        (job,) = (job for job in self.harness.jobs.all() if job.name == name)
        entry = job.lease.nodes[node].entry
        assert entry is not None
        return entry

    def entries(self) -> dict[str, int]:
        """The number of entries in each switch."""
        return {name: len(held) for name, held in self._held.items()}

    def _carry_out(self) -> None:
        outputs: list[Output] = self.harness.done[self._carried_out :]
        self._carried_out = len(self.harness.done)
        for output in outputs:
            if isinstance(output, Admit):
                self.admit(output.switch_name, output.entry)
            elif isinstance(output, Evict):
                self.evict(output.switch_name, output.number)

    # Tables.

    def admit(self, node: str, entry: JobEntry) -> None:
        self._install(self.targets[node], desired.of_job(self.targets[node], entry))
        self._admitted[node, entry.job] = entry

    def evict(self, node: str, job: int) -> None:
        self._remove(self.targets[node], desired.of_job(self.targets[node], self._admitted.pop((node, job))))

    def _install(self, target: Target, entities: Iterable[desired.Entity]) -> None:
        switch, held = self._switches[self._switch_of[target.name]], self._held[self._switch_of[target.name]]
        for entity in entities:
            place = _place(entity)
            assert place not in held, f"{target.name} writes over {held[place]}"
            held[place] = entity
            write(switch, entity)

    def _remove(self, target: Target, entities: Iterable[desired.Entity]) -> None:
        switch, held = self._switches[self._switch_of[target.name]], self._held[self._switch_of[target.name]]
        for entity in entities:
            del held[_place(entity)]
            erase(switch, entity)

    # Packets.

    def at(self, address: str) -> tuple[Host, SwitchPort, Host]:
        """The host with this address, its port, and the switch there."""
        for name, switch in self._configured.items():
            for host in switch.hosts:
                if host.address == address:
                    return _host(host.mac, address), SwitchPort(name, host.port), _host(switch.mac, switch.address)
        raise AssertionError(f"there is no host {address}")

    def unplug(self) -> None:
        """Disconnects all cables and links; packets to them are lost."""
        self._unplugged, self._links = self._links, {}

    def plug_in(self) -> None:
        self._links = self._unplugged

    def send(self, place: SwitchPort, frame: bytes, lost: random.Random, loss: float) -> list[tuple[SwitchPort, bytes]]:
        """Sends a frame; gives the frames that arrive at hosts, if each link loses this fraction of its packets."""
        arriving = deque([(place, frame)] if lost.random() >= loss else [])
        arrived: list[tuple[SwitchPort, bytes]] = []
        for _ in range(WAY_MAX):
            if not arriving:
                return arrived
            place, frame = arriving.popleft()
            for copy in self._switches[place.switch].receive(place.port, frame):
                there = SwitchPort(place.switch, copy.port)
                if lost.random() < loss:
                    continue
                if there in self._links:
                    arriving.append((self._links[there], copy.frame))
                else:
                    arrived.append((there, copy.frame))
        raise AssertionError(f"what follows from one packet is more than {WAY_MAX}")

    def run(self, senders: Sequence[Sender], *, loss: float = 0.0, seed: int = 0, steps_max: int = 400) -> int:
        """Runs until all workers have the sums of all their rounds; gives the number of steps."""
        drawn = random.Random(seed)
        for step in range(steps_max):
            waiting = [sender for sender in senders if not sender.is_done()]
            if not waiting:
                return step
            drawn.shuffle(waiting)
            for sender in waiting:
                if not sender.is_done():
                    self._exchange(sender, sender.next_packet(), senders, drawn, loss)
        raise AssertionError(f"after {steps_max} steps there are {[len(sender.sums) for sender in senders]} sums")

    def _exchange(
        self, sender: Sender, frame: bytes, senders: Sequence[Sender], drawn: random.Random, loss: float
    ) -> None:
        sent = deque([(sender.place, frame)])
        while sent:
            for place, arrived in self.send(*sent.popleft(), drawn, loss):
                datagram = UdpFrame.unpack(arrived)
                (to,) = (
                    other
                    for other in senders
                    if (other.host, other.place, other.port) == (datagram.target, place, datagram.target_port)
                    and other.job == datagram.payload[2] << 8 | datagram.payload[3]
                )
                if answer := to.receive(datagram.payload):
                    sent.append((to.place, answer))


def node_of(target: Target) -> cluster.Switch:
    sizes = SwitchSizes(target.pipeline.slots, target.pipeline.lanes, target.jobs_max, tables=desired.room(target))
    parent = target.parent.name if target.parent else ""
    endpoint = Endpoint(target.address, target.port)
    return cluster.Switch(
        target.name,
        target.kind,
        sizes,
        endpoint,
        target.reaches,
        parent=parent,
        part_of=target.part_of,
        needs=functools.partial(desired.needs, target),
    )


def _host(mac: str, address: str) -> Host:
    return Host(bytes.fromhex(mac.replace(":", "")), IPv4Address(address))


def _place(entity: desired.Entity) -> tuple[str, str]:
    """The identity of an entry in its table."""
    if isinstance(entity, fy.P4MulticastGroupEntry):
        return "group", str(entity.multicast_group_id)
    return entity.table_id, str(sorted((entity.match or {}).items()))
