"""The test vectors on a harness with bmv2, frame by frame: what a program does, held against what the protocol says."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bmv2_tests.bmv2_harness import WORKER_PORT, Bmv2Harness
from bmv2_tests.vectors import End, Job, Member, Scenario, Step
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import Host, admit, count, deliver, desired
from wiresum.join.constants import PARENT, STRAY_ROW, SWITCH_PORT

STRANGER = "10.111.8.8"


class FreshSlots:
    """Cells that no job of these keys has used since the program was loaded, which it is again when they run out."""

    def __init__(self, harness: Bmv2Harness) -> None:
        self._harness = harness
        self._next = harness.program.slots

    def take(self, count: int) -> int:
        if self._next + count > self._harness.program.slots:
            self._harness.load()
            self._next = 0
        self._next += count
        return self._next - count


def complaints(scenario: Scenario, harness: Bmv2Harness, fresh_slots: FreshSlots) -> Iterator[str]:
    """Step by step, what is not as the protocol says. Whoever has heard enough stops asking."""
    slot_offset = fresh_slots.take(scenario.slots)
    hosts = dict(zip(scenario.members, harness.hosts, strict=False))
    rows = {job: 1 + index for index, job in enumerate(scenario.jobs)}
    running: dict[Job, ExitStack] = {}
    with ExitStack() as cleanup:
        for event in scenario.events:
            if isinstance(event, Job):
                running[event] = cleanup.enter_context(ExitStack())
                entry = entry_of(event, hosts, slot_offset)
                receivers = [hosts[member] for member in event.members]
                parent = hosts.get(Member(event.number, PARENT))
                running[event].enter_context(admitted(harness, entry, rows[event], receivers, parent))
            elif isinstance(event, End):
                running[event.job].close()
            elif complaint := play(event, harness, hosts, list(rows.values())):
                where = " ".join(scenario.where(event).split())
                yield f"{where}\n    {complaint}"


def entry_of(job: Job, hosts: dict[Member, Host], slot_offset: int) -> JobEntry:
    uplink = None
    if job.parent is not None:
        uplink = Uplink(Endpoint(hosts[Member(job.number, PARENT)].address, WORKER_PORT), job.parent)
    return JobEntry(
        job=job.number,
        key=job.key,
        workers=job.workers,
        threads=job.threads,
        lanes=job.lanes,
        slot_base=slot_offset + job.slot_base,
        slots=job.slots,
        endpoints=tuple(Endpoint(hosts[member].address, WORKER_PORT) for member in job.members),
        uplink=uplink,
    )


@contextmanager
def admitted(
    harness: Bmv2Harness, entry: JobEntry, row: int, hosts: list[Host], parent: Host | None = None
) -> Iterator[None]:
    """As the driver does it, but for its choice of the row, which goes by the job's number: those of the vectors are
    any of the wire's."""
    ports = [host.port for host in hosts]
    entities: list[desired.Entity] = [
        *deliver.entries(entry, hosts, parent),
        deliver.group(row, ports),
        *([deliver.uplink_group(row, parent.port)] if parent else []),
        *admit.entries(entry, row, ports, parent.port if parent else 0),
    ]
    harness.switch.tables.modify("the counters of a job", count.resets(row))
    harness.switch.tables.insert("a job", entities)
    try:
        yield
    finally:
        harness.switch.tables.delete("a job", entities)


def play(step: Step, harness: Bmv2Harness, hosts: dict[Member, Host], rows: list[int]) -> str:
    """Sends the step's frame, and says what came of it that should not, or should have and did not; empty if all is
    well."""
    sender = hosts[step.sender]
    source = dataclasses.replace(sender, address=hosts[step.source].address if step.source else STRANGER)
    ports = {"src_port": WORKER_PORT + step.source_thread, "dst_port": SWITCH_PORT + step.thread}
    frame = bytes(harness.own_frame(source, **ports, payload=step.datagram))
    before = counted(harness, rows)
    copies = harness.copies([(hosts[step.port].port, frame)])
    if (reasons := counted(harness, rows) - before) != {step.expectation.reason: 1}:
        return f"counted as {dict(reasons)}, and not once as {step.expectation.reason}"
    got = sorted((copy.port, copy.address, copy.thread, copy.datagram.hex(" ", 4)) for copy in copies)
    receivers = [hosts[member] for member in step.expectation.receivers]
    datagram = step.expectation.datagram.hex(" ", 4)
    wanted = sorted((host.port, host.address, step.thread, datagram) for host in receivers)
    if len(got) != len(wanted):
        return f"{len(got)} packets came out, and not {len(wanted)}"
    wrong = [f"{one} came out, and not {other}" for one, other in zip(got, wanted, strict=True) if one != other]
    return wrong[0] if wrong else ""


def counted(harness: Bmv2Harness, rows: list[int]) -> Counter[str]:
    counters = [count.decode(harness.switch.tables.read("counters", count.reads(row))) for row in (STRAY_ROW, *rows)]
    return sum((Counter(one.packets) for one in counters), Counter())
