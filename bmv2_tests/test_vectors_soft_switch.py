"""The test vectors against the real software switch, over loopback UDP.

Each worker has an address and sockets of its own. After each packet the switch's own counters say that it has dealt
with it and how many datagrams it sent for it, so that "nothing comes out" needs no waiting.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from vectors import Job, Member, Scenario, Step, load_all
from wiresum.controller import Endpoint, JobEntry
from wiresum.switch.software_switch import SoftwareSwitch, SwitchStats

STRANGER = "127.0.1.1"
PATIENCE_S = 10.0
"""How long a step waits before it fails; none passes by waiting so long."""
BIND_TRIES_MAX = 50


@pytest.fixture(scope="module")
def switch() -> Iterator[SoftwareSwitch]:
    """One switch for all: each scenario's jobs take over cells that those before have used."""
    device = SoftwareSwitch(port=0, threads=2, slots=64, lanes_max=64)
    yield device
    device.close()


class Workers:
    """The sockets of a scenario's workers, one for each thread, and one of a stranger."""

    def __init__(self, scenario: Scenario, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._sockets: dict[Member, list[socket.socket]] = {}
        self._stranger = self._bind_block(STRANGER, 1)[0]
        addresses = {member: f"127.0.2.{index + 1}" for index, member in enumerate(scenario.members)}
        for job in scenario.jobs:
            for member in job.members:
                self._sockets[member] = self._bind_block(addresses[member], job.threads)

    def _bind_block(self, address: str, count: int) -> list[socket.socket]:
        """Sockets on `count` consecutive ports."""
        for _ in range(BIND_TRIES_MAX):
            with ExitStack() as attempt:
                first = attempt.enter_context(self._udp_socket(address, 0))
                port = int(first.getsockname()[1])
                try:
                    others = [attempt.enter_context(self._udp_socket(address, port + i)) for i in range(1, count)]
                except (OSError, OverflowError):  # taken, or beyond the last port
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
        sockets = [self._stranger] if step.source is None else self._sockets[step.source]
        sender = sockets[step.thread] if step.thread < len(sockets) else sockets[0]
        sender.sendto(step.datagram, (switch.address, switch.port + step.thread))

    def receive(self, member: Member, thread: int) -> tuple[bytes, tuple[str, int]]:
        datagram, source = self._sockets[member][thread].recvfrom(65536)
        return datagram, source


def entry_of(job: Job, workers: Workers) -> JobEntry:
    return JobEntry(
        job=job.number,
        key=job.key,
        workers=job.workers,
        threads=job.threads,
        lanes=job.lanes,
        slot_base=job.slot_base,
        slots=job.slots,
        round_first=job.round_first,
        endpoints=tuple(workers.endpoint(member) for member in job.members),
    )


def stats_after_one_more_packet(switch: SoftwareSwitch, before: SwitchStats) -> SwitchStats:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = switch.stats()
        if sum(now.packets.values()) > sum(before.packets.values()):
            return now
        time.sleep(0.0002)
    raise AssertionError("the switch has not counted the packet")


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


@pytest.mark.parametrize("scenario", load_all(), ids=lambda scenario: str(scenario.name))
def test_software_switch_answers_as_the_protocol_says(
    scenario: Scenario, switch: SoftwareSwitch, record_property: Callable[[str, object], None]
) -> None:
    with ExitStack() as cleanup:
        workers = Workers(scenario, cleanup)
        for job in scenario.jobs:
            switch.admit(entry_of(job, workers))
            cleanup.callback(switch.evict, job.number)
        played = [step for step in scenario.steps if not step.hardware_only]
        assert played, "no step for a switch with one port"
        record_property("steps_for_hardware_only", len(scenario.steps) - len(played))
        for step in played:
            play(step, switch, workers, scenario.where(step))
