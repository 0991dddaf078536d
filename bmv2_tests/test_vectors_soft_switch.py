"""The test vectors on the real software switch, over loopback UDP: with jobs installed over P4Runtime, and some as by
the join service.

Each worker has an address and sockets of its own. After each packet the switch's counters tell that it was handled and
how many datagrams were sent, so that the test need not wait to see that nothing comes out.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from bmv2_tests.installed import entities_of, entry_of
from bmv2_tests.vectors import End, Job, Member, Scenario, Step, load_all
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.p4runtime import Host, P4RuntimeSwitch, count
from wiresum.join.constants import STRAY_ROW
from wiresum.switch.software_switch import SoftwareSwitch, SwitchStats
from wiresum_lab.doubles.p4runtime_proxy import PATIENT, programmed_switch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

STRANGER = "127.0.1.1"
SLOTS = 4096
BIND_TRIES_MAX = 50


@pytest.fixture(scope="module")
def switch() -> Iterator[SoftwareSwitch]:
    """One switch for all scenarios. They use the same keys, so the cells are reset for each."""
    device = SoftwareSwitch(port=0, threads=2, slots=64, lanes_max=64)
    yield device
    device.close()


class Workers:
    """The sockets of a scenario's workers, one for each thread and for each other source port in the steps, and the
    socket of a stranger."""

    def __init__(self, scenario: Scenario, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._sockets: dict[Member, list[socket.socket]] = {}
        self._stranger = self._bind_block(STRANGER, 1)[0]
        addresses = {member: f"127.0.2.{index + 1}" for index, member in enumerate(scenario.members)}
        for member in scenario.members:
            threads = [job.threads for job in scenario.jobs if member.job == job.number]
            used = [step.source_thread + 1 for step in scenario.steps if step.source == member]
            self._sockets[member] = self._bind_block(addresses[member], max(threads + used))

    def _bind_block(self, address: str, count: int) -> list[socket.socket]:
        """Sockets on `count` consecutive ports."""
        for _ in range(BIND_TRIES_MAX):
            with ExitStack() as attempt:
                first = attempt.enter_context(self._udp_socket(address, 0))
                port = int(first.getsockname()[1])
                try:
                    others = [attempt.enter_context(self._udp_socket(address, port + i)) for i in range(1, count)]
                except (OSError, OverflowError):  # in use, or beyond the last port
                    continue
                self._cleanup.push(attempt.pop_all())
                return [first, *others]
        raise OSError(f"{address} has no {count} free ports in a row, in {BIND_TRIES_MAX} tries")

    @staticmethod
    def _udp_socket(address: str, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.bind((address, port))
        except BaseException:
            made.close()
            raise
        made.settimeout(PATIENCE_S)
        return made

    def endpoint(self, member: Member) -> Endpoint:
        return Endpoint(*self._sockets[member][0].getsockname())

    def send(self, step: Step, switch: Endpoint) -> None:
        sender = self._stranger if step.source is None else self._sockets[step.source][step.source_thread]
        sender.sendto(step.datagram, (switch.address, switch.port + step.thread))

    def receive(self, member: Member, thread: int) -> tuple[bytes, tuple[str, int]]:
        datagram, source = self._sockets[member][thread].recvfrom(65536)
        return datagram, source


def stats_after_one_more_packet(switch: SoftwareSwitch, before: SwitchStats) -> SwitchStats:
    def counted() -> SwitchStats | None:
        now = switch.stats()
        return now if sum(now.packets.values()) > sum(before.packets.values()) else None

    return wait_until(counted, "the switch has counted the packet")


def play(step: Step, switch: SoftwareSwitch, workers: Workers, where: str) -> None:
    expected = step.expectation
    before = switch.stats()
    workers.send(step, switch.endpoint)
    after = stats_after_one_more_packet(switch, before)
    counted = {reason: after.packets[reason] - before.packets[reason] for reason in after.packets}
    assert {reason: count for reason, count in counted.items() if count} == {expected.reason: 1}, where
    assert after.datagrams_sent - before.datagrams_sent == len(expected.receivers), where
    for receiver in expected.receivers:
        datagram, source = workers.receive(receiver, step.thread)
        assert datagram.hex(" ", 4) == expected.datagram.hex(" ", 4), f"{where}: to {receiver}"
        assert source == (switch.endpoint.address, switch.endpoint.port + step.thread), f"{where}: to {receiver}"


def play_all(
    scenario: Scenario, switch: SoftwareSwitch, workers: Workers, install: Callable[[Job], ExitStack]
) -> list[Step]:
    """`install` returns a stack that removes the job when it is closed. Gives the steps that this switch can show:
    those that a datagram of a socket can be."""
    running: dict[Job, ExitStack] = {}
    played = []
    for event in scenario.events:
        if isinstance(event, Job):
            running[event] = install(event)
        elif isinstance(event, End):
            running[event.job].close()
        elif not (event.hardware_only or event.refused_by_hosts):
            play(event, switch, workers, scenario.where(event))
            played.append(event)
    return played


class Programmed:
    """A software switch with a P4Runtime server, and its driver. Scenarios use the same keys, so each gets unused
    slots."""

    def __init__(self, cleanup: ExitStack) -> None:
        made = cleanup.enter_context(programmed_switch(3, threads=2, slots=SLOTS, lanes_max=64))
        self.switch = made.switch
        self.driver = cleanup.enter_context(closing(P4RuntimeSwitch(made.target, election_id=2, times=PATIENT)))
        self.driver.wait_ready()
        self.driver.reconcile([])
        self._slots_used = 0

    def take_slots(self, count: int) -> int:
        self._slots_used += count
        assert self._slots_used <= SLOTS, "the vectors have grown: give the switch more slots"
        return self._slots_used - count

    @contextmanager
    def installed(self, entry: JobEntry, row: int) -> Iterator[None]:
        host = Host("", "127.0.0.1", "00:00:00:00:00:00", 1)
        entities = entities_of(entry, row, [host] * entry.workers, host if entry.uplink else None)
        self.driver.tables.insert("a job", entities)
        try:
            yield
        finally:
            self.driver.tables.delete("a job", entities)

    def counted(self, jobs: int) -> Counter[str]:
        """Packets by reason, over the rows of so many jobs and the row of packets without a job; resets these rows."""
        rows = [STRAY_ROW, *(1 + index for index in range(jobs))]
        read = [count.decode(self.driver.tables.read("counters", count.reads(row))) for row in rows]
        for row in rows:
            self.driver.tables.modify("counters", count.resets(row))
        return +sum((Counter(dict(counters.packets)) for counters in read), Counter())


@pytest.fixture(scope="module")
def programmed() -> Iterator[Programmed]:
    with ExitStack() as cleanup:
        yield Programmed(cleanup)


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_the_software_switch_answers_as_the_protocol_says_over_p4runtime(
    scenario: Scenario, programmed: Programmed
) -> None:
    with ExitStack() as cleanup:
        workers = Workers(scenario, cleanup)
        offset = programmed.take_slots(scenario.slots)
        rows = {job: 1 + index for index, job in enumerate(scenario.jobs)}

        def install(job: Job) -> ExitStack:
            made = cleanup.enter_context(ExitStack())
            made.enter_context(programmed.installed(entry_of(job, workers.endpoint, offset), rows[job]))
            return made

        played = play_all(scenario, programmed.switch, workers, install)
        assert programmed.counted(len(scenario.jobs)) == Counter(step.expectation.reason for step in played)


BELOW_OTHERS = [scenario for scenario in load_all() if any(job.parent for job in scenario.jobs)]


@pytest.mark.parametrize("scenario", BELOW_OTHERS, ids=lambda scenario: str(scenario.name))
def test_a_switch_below_another_answers_as_the_protocol_says(scenario: Scenario, switch: SoftwareSwitch) -> None:
    """Its data plane plays all vectors without a socket: soft_switch/tests/vectors_test.cpp."""
    with ExitStack() as cleanup:
        cleanup.callback(switch.reset)
        workers = Workers(scenario, cleanup)

        def install(job: Job) -> ExitStack:
            switch.admit(entry_of(job, workers.endpoint))
            made = ExitStack()
            made.callback(switch.evict, job.number)
            return made

        assert play_all(scenario, switch, workers, install), "no step for a switch with one port"
