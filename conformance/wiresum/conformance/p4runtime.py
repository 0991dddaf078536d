"""A switch under test that is programmed over P4Runtime; frames go in and out at interfaces of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wiresum.conformance.network import hosts
from wiresum.conformance.switch import RESULTS, PlacedJob
from wiresum.conformance.wires import Wires
from wiresum.controller.p4runtime import Client, Pipeline, admit, count, deliver, desired, forward, own
from wiresum.controller.p4runtime.tables import Tables
from wiresum.join.constants import STRAY_ROW


def entities_of(job: PlacedJob, row: int) -> list[desired.Entity]:
    """Returns all entries and groups of a job, as the controller writes them. The driver derives the row of counters
    from the job's number; here it is a parameter, since scenarios use any number."""
    ports = [host.port for host in job.hosts]
    entities: list[desired.Entity] = [*deliver.entries(job.entry, job.hosts, job.parent), deliver.group(row, ports)]
    if job.parent is None:
        return [*entities, *admit.entries(job.entry, row, ports)]
    uplink = deliver.uplink_group(row, job.parent.port)
    return [*entities, uplink, *admit.entries(job.entry, row, ports, job.parent.port)]


class Programmed:
    """The switch, from construction to `close`, which leaves it with an empty program."""

    def __init__(self, client: Client, pipeline: Pipeline, wires: Wires, profiles: frozenset[str]) -> None:
        self.own, self.ports, self.lanes, self.profiles = wires.own, wires.ports, pipeline.lanes, profiles
        self.tables = Tables(client, pipeline)
        self._client, self._pipeline, self._wires = client, pipeline, wires
        self._next_slot = pipeline.slots  # the first use loads the program
        self._jobs: dict[PlacedJob, list[desired.Entity]] = {}
        self._rows = 0
        self._fences = 0

    def close(self) -> None:
        self._client.close()
        self._wires.close()

    def load(self) -> None:
        """Loads the program: no jobs, no entries but those of the hosts, unused cells."""
        self._client.load(self._pipeline)
        self._jobs.clear()
        mac = self.own.mac.hex(":")
        entities: list[desired.Entity] = [*own.entries(str(self.own.address), mac)]
        if "network" in self.profiles:
            around = hosts(self)
            entities += [*forward.entries(around), forward.flood_group(around)]
        self.tables.insert("what it holds without jobs", entities)
        self._next_slot = self._rows = 0
        for fence in self._wires.fences(self):
            self.admit(fence)
        self._fences, self._next_slot = self._rows, self._wires.fence_slots

    def fresh(self, slots: int) -> int:
        for job in [job for job in self._jobs if not self._wires.is_fence(job)]:
            self.evict(job)
        if self._next_slot + slots > self._pipeline.slots:
            self.load()
        self._rows = self._fences
        self._next_slot += slots
        return self._next_slot - slots

    def admit(self, job: PlacedJob) -> None:
        self._rows += 1
        self.tables.modify("the counters of a job", count.resets(self._rows))
        self._jobs[job] = entities_of(job, self._rows)
        self.tables.insert("a job", self._jobs[job])

    def evict(self, job: PlacedJob) -> None:
        if entities := self._jobs.pop(job, None):
            self.tables.delete("a job", entities)

    def exchange(self, sent: Sequence[tuple[int, bytes]], expected: int = 0) -> list[tuple[int, bytes]]:
        return self._wires.exchange(sent)

    def counted(self) -> Counter[str]:
        rows = (STRAY_ROW, *range(self._fences + 1, self._rows + 1))
        wanted = [entry for row in rows for entry in count.reads(row) if entry.counter_id != "contributions"]
        counted: Counter[str] = Counter()
        for entry in self.tables.read("what it counted", wanted):
            assert entry.index is not None
            is_result = entry.counter_id == RESULTS
            counted[RESULTS if is_result else count.COLUMNS[entry.index % len(count.COLUMNS)]] += entry.packet_count
        del counted["other"]  # packets outside the protocol
        return +counted
