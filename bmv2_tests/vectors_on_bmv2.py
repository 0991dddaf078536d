"""Plays the test vectors to bmv2, frame by frame, and compares the answers with the expected ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address

from bmv2_tests import frames
from bmv2_tests.bmv2_harness import WORKER_PORT, Bmv2Harness
from bmv2_tests.installed import entities_of, entry_of
from bmv2_tests.vectors import MACS, End, Job, Member, Scenario, Step, Verdict
from wiresum.controller import Endpoint
from wiresum.controller.p4runtime import Host, count, desired
from wiresum.join.constants import PARENT, STRAY_ROW, SWITCH_PORT

STRANGER = "10.111.8.8"


class FreshSlots:
    """Slots that are unused since the program was loaded; reloads it when they run out."""

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
    """The differences of each step, found lazily."""
    slot_offset = fresh_slots.take(scenario.slots)
    hosts = dict(zip(scenario.members, harness.hosts, strict=False))
    rows = {job: 1 + index for index, job in enumerate(scenario.jobs)}
    running: dict[Job, ExitStack] = {}
    with ExitStack() as cleanup:
        for event in scenario.events:
            if isinstance(event, Job):
                running[event] = cleanup.enter_context(ExitStack())
                entry = entry_of(event, lambda member: Endpoint(hosts[member].address, WORKER_PORT), slot_offset)
                workers, parent = [hosts[member] for member in event.members], hosts.get(Member(event.number, PARENT))
                entities = entities_of(entry, rows[event], workers, parent)
                running[event].enter_context(installed(harness, rows[event], entities))
            elif isinstance(event, End):
                running[event.job].close()
            elif complaint := play(event, harness, hosts, list(rows.values())):
                where = " ".join(scenario.where(event).split())
                yield f"{where}\n    {complaint}"


@contextmanager
def installed(harness: Bmv2Harness, row: int, entities: list[desired.Entity]) -> Iterator[None]:
    harness.switch.tables.modify("the counters of a job", count.resets(row))
    harness.switch.tables.insert("a job", entities)
    try:
        yield
    finally:
        harness.switch.tables.delete("a job", entities)


def play(step: Step, harness: Bmv2Harness, hosts: dict[Member, Host], rows: list[int]) -> str:
    """Sends the step's frame. Gives the first difference, or an empty text."""
    sender = hosts[step.sender]
    address = hosts[step.source].address if step.source else STRANGER
    source = frames.Host(bytes.fromhex(sender.mac.replace(":", "")), IPv4Address(address))
    target = frames.Host(MACS[step.mac] if step.mac else harness.mac, IPv4Address(harness.star.address))
    ports = (WORKER_PORT + step.source_thread, SWITCH_PORT + step.thread)
    frame = frames.UdpFrame(source, target, *ports, step.datagram).pack(step.changes)
    before = counted(harness, rows)
    came = harness.exchange([(hosts[step.port].port, frame)])
    if miscounted := step.expectation.miscounted(counted(harness, rows) - before):
        return miscounted
    if step.expectation.verdict is Verdict.PASS:
        return "" if all(content == frame for _, content in came) else f"not only the frame itself came out: {came}"
    got = sorted(received(harness, port, content) for port, content in came)
    receivers = [hosts[member] for member in step.expectation.receivers]
    rest = (SWITCH_PORT + step.thread, WORKER_PORT + step.thread, step.expectation.datagram.hex(" ", 4))
    wanted = sorted((host.port, host.mac, host.address, *rest) for host in receivers)
    if len(got) != len(wanted):
        return f"{len(got)} packets came out, and not {len(wanted)}"
    wrong = [f"{one} came out, and not {other}" for one, other in zip(got, wanted, strict=True) if one != other]
    return wrong[0] if wrong else ""


def received(harness: Bmv2Harness, port: int, content: bytes) -> tuple[int, str, str, int, int, str]:
    """Where a frame goes, and what it carries."""
    harness.as_copy(port, content)
    frame = frames.UdpFrame.unpack(content)
    target = (frame.target.mac.hex(":"), str(frame.target.address))
    return (port, *target, frame.source_port, frame.target_port, frame.payload.hex(" ", 4))


def counted(harness: Bmv2Harness, rows: list[int]) -> Counter[str]:
    counters = [count.decode(harness.switch.tables.read("counters", count.reads(row))) for row in (STRAY_ROW, *rows)]
    return sum((Counter(one.packets) for one in counters), Counter())
