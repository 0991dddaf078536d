"""The same random packets into the Tofino program and into the software switch: both answer with the same bytes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from bmv2_tests.frames import UdpFrame
from bmv2_tests.test_differential import Answer, Software, assert_all_kinds_occurred
from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_network import MAIN, TofinoNetwork
from bmv2_tests.traffic import Sending, Traffic
from bmv2_tests.vectors import Job, Member
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.join.constants import PARENT, SWITCH_PORT

PACKETS = 700
JOBS = ((3, 1, 4, None), (2, 2, 4, None), (1, 1, 1, None), (3, 2, 4, 30), (1, 1, 2, 0))
"""Workers, threads, slots, and the number at the parent for a job with one."""
DROPPED = {"duplicate", "stale", "out_of_lease", "unknown", "malformed"}


def job_entry(index: int) -> JobEntry:
    workers, threads, slots, parent = JOBS[index]
    nowhere = Endpoint("127.0.0.1", 1)  # admission fills in the addresses
    return JobEntry(
        job=index + 1,
        key=0x11111111 * (index + 1),
        workers=workers,
        threads=threads,
        lanes=64,
        slot_base=4 * index,
        slots=slots,
        endpoints=(nowhere,) * workers,
        uplink=None if parent is None else Uplink(nowhere, parent),
    )


class Tofino:
    def __init__(self, switch: Switch, entries: list[JobEntry]) -> None:
        self._network = TofinoNetwork(switch)
        self._entries = entries
        for e in entries:
            parent = None if e.uplink is None else e.uplink.worker
            self._network.admit(Job(e.job, e.key, e.workers, e.threads, e.lanes, e.slot_base, e.slots, parent))

    def play(self, sending: Sending, expected: int = 0) -> tuple[str, list[Answer]]:
        """Sends a packet; gives the counted reason and the answers, after waiting for as many answers as expected."""
        entry = self._entries[sending.job]
        source = 0 if sending.source == PARENT and entry.uplink is None else sending.source
        sender = Member(entry.job, source)
        before = self._network.packets()
        source_port = self._network.base_port(sender) + sending.thread + sending.port
        host = self._network.host(sender)
        frame = self._network.frame(host, source_port, sending.datagram, thread=sending.thread)
        copies = self._network.send(self._network.port(sender), frame.pack(), expected)
        ((reason, count),) = (self._network.packets() - before).items()
        assert count == 1
        return reason, [self._answer(UdpFrame.unpack(copy.frame)) for copy in copies]

    def _answer(self, frame: UdpFrame) -> Answer:
        members = [Member(entry.job, worker) for entry in self._entries for worker in range(entry.workers)]
        members += [Member(entry.job, PARENT) for entry in self._entries if entry.uplink is not None]
        (receiver,) = (member for member in members if self._network.host(member) == frame.target)
        thread = frame.target_port - self._network.base_port(receiver)
        assert frame.source_port == SWITCH_PORT + thread
        return Answer(receiver.job - 1, receiver.worker, thread, frame.payload)


@pytest.fixture(scope="module")
def switch() -> Switch:
    return Switch(MAIN)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_tofino_program_and_the_software_switch_answer_alike(seed: int, switch: Switch) -> None:
    entries = [job_entry(index) for index in range(len(JOBS))]
    traffic = Traffic(seed, entries)
    answered: Counter[int] = Counter()
    reasons = set()
    with ExitStack() as cleanup:
        tofino, software = Tofino(switch, entries), Software(entries, cleanup)
        for sending in traffic.packets(PACKETS):
            before = software.totals()
            expected = [answer for answers in software.play([sending]).values() for answer in answers]
            after = software.totals()
            reason, found = tofino.play(sending)
            assert sorted(found) == sorted(expected), f"seed {seed}: {sending}"
            assert [name for name in after if after[name] != before[name]] == [reason], f"seed {seed}: {sending}"
            answered += Counter(answer.kind for answer in found[:1])
            reasons.add(reason)
    assert_all_kinds_occurred(answered, PACKETS)
    assert reasons >= DROPPED | {"admitted", "resent"}, f"seed {seed}: each reason was met"
