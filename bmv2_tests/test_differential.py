"""The same random packets into bmv2 and into the software switch: both answer each packet alike.

Theory of operation. Each job of a run has a port of bmv2, since bmv2 keeps the order of packets only within a port. The
software switch has one thread and gets the same packets over loopback, from addresses that stand for the hosts. Packets
are sent in batches that are small enough for the queues of both.

A failure prints its seed and the packet. To repeat it, or to try other seeds:

    WIRESUM_DIFFERENTIAL_SEEDS=17,18 python -m pytest bmv2_tests/test_differential.py
"""

from __future__ import annotations

import os
import select
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from itertools import islice

import pytest

from bmv2_tests import frames
from bmv2_tests.bmv2_harness import PORTS, WORKER_PORT, Bmv2Harness, Job
from bmv2_tests.traffic import Sending, Traffic
from wiresum.controller import Endpoint, JobCounters, JobEntry
from wiresum.join.constants import PARENT, SWITCH_PORT, Header
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.workers import DATA, EMPTY, META, MISSING, QUESTION, RESULT
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

SEEDS = [int(seed) for seed in os.environ.get("WIRESUM_DIFFERENTIAL_SEEDS", "1,2,3").split(",")]
PACKETS = 4000
BATCH = 24
PARENTS_HOST = 200
"""The last byte of a parent's address, above those of all workers."""
JOBS = ((1, 1, 4, 0), (2, 1, 8, 0), (3, 2, 8, 0), (4, 4, 16, 0), (8, 1, 4, 0), (5, 8, 8, 0), (3, 2, 8, 1), (1, 1, 4, 1))
"""Workers, threads, slots, and 1 for a job with a parent."""


@dataclass(frozen=True, order=True)
class Answer:
    """A RESULT or MISSING, or a packet to the parent: its job, its receiver (a worker or `PARENT`), thread, and
    bytes."""

    job: int
    worker: int
    thread: int
    datagram: bytes

    @property
    def kind(self) -> int:
        return Header.unpack(self.datagram).kind


Answers = dict[int, list[Answer]]
"""Answers by the number of the packet that caused them."""


def number_of(datagram: bytes) -> int:
    return Header.unpack(datagram).chunk


class Bmv2:
    def __init__(self, harness: Bmv2Harness, jobs: Sequence[Job]) -> None:
        self._harness, self._jobs = harness, jobs
        self._hosts = [dict(enumerate(job.hosts)) | ({PARENT: job.parent} if job.parent else {}) for job in jobs]
        self._who = {host.address: (j, w) for j, hosts in enumerate(self._hosts) for w, host in hosts.items()}

    def play(self, batch: Sequence[Sending]) -> Answers:
        answers: Answers = defaultdict(list)
        for copy in self._harness.copies((self._jobs[s.job].hosts[0].port, self._frame(s)) for s in batch):
            job, worker = self._who[copy.address]
            answers[number_of(copy.datagram)].append(Answer(job, worker, copy.thread, copy.datagram))
        return answers

    def _frame(self, sending: Sending) -> bytes:
        hosts = self._hosts[sending.job]
        host = hosts.get(sending.source, hosts[0])
        source = frames.Host(bytes.fromhex(host.mac.replace(":", "")), IPv4Address(host.address))
        target = frames.Host(self._harness.mac, IPv4Address(self._harness.star.address))
        ports = (sending.thread + WORKER_PORT + sending.port, SWITCH_PORT + sending.thread)
        return frames.UdpFrame(source, target, *ports, sending.datagram).pack()


class Software:
    def __init__(self, jobs: Sequence[JobEntry], cleanup: ExitStack) -> None:
        self._device = SoftwareSwitch(port=0, threads=1, lanes_max=jobs[0].lanes, slots=4096)
        cleanup.callback(self._device.close)
        self._cleanup = cleanup
        self._sockets: dict[tuple[int, int, int], socket.socket] = {}
        """By job, worker, and the distance of the port from the worker's base port."""
        self._poll = select.poll()
        self._by_descriptor: dict[int, tuple[int, int, int]] = {}
        for index, entry in enumerate(jobs):
            for worker in range(entry.workers):
                for thread in range(entry.threads):
                    self._listen(index, worker, thread, cleanup)
            endpoints = tuple(Endpoint(self._address(index, worker), WORKER_PORT) for worker in range(entry.workers))
            uplink = entry.uplink
            if uplink is not None:
                for thread in range(entry.threads):
                    self._listen(index, PARENT, thread, cleanup)
                uplink = replace(uplink, parent=Endpoint(self._address(index, PARENT), WORKER_PORT))
            self._device.admit(replace(entry, endpoints=endpoints, uplink=uplink))

    def play(self, batch: Sequence[Sending]) -> Answers:
        before = self._device.stats()
        for sending in batch:
            destination = (self._device.endpoint.address, self._device.endpoint.port + sending.thread)
            self._sender(sending).sendto(sending.datagram, destination)
        counted = sum(before.packets.values()) + len(batch)
        wait_until(lambda: sum(self._device.stats().packets.values()) >= counted, "the software switch counts them")
        answers: Answers = defaultdict(list)
        for _ in range(self._device.stats().datagrams_sent - before.datagrams_sent):
            (descriptor, _), *_ = self._poll.poll(1000 * PATIENCE_S) or [(None, None)]
            assert descriptor is not None, "the software switch sent fewer datagrams than it says"
            job, worker, thread = self._by_descriptor[descriptor]
            datagram = self._sockets[job, worker, thread].recv(65536)
            answers[number_of(datagram)].append(Answer(job, worker, thread, datagram))
        return answers

    def counters(self, entry: JobEntry) -> JobCounters:
        found = self._device.counters(entry.job)
        return replace(found, tensor_last=(), contributions=tuple(found.contributions[: entry.workers]))

    def totals(self) -> dict[str, int]:
        return self._device.stats().packets

    def _listen(self, index: int, worker: int, thread: int, cleanup: ExitStack) -> None:
        made = self._open(index, worker, thread, cleanup)
        made.settimeout(PATIENCE_S)
        self._by_descriptor[made.fileno()] = (index, worker, thread)
        self._poll.register(made, select.POLLIN)

    def _sender(self, sending: Sending) -> socket.socket:
        """The socket of the sender; a port that no thread of the worker uses is opened at its first packet."""
        key = (sending.job, sending.source, sending.thread + sending.port)
        return self._sockets.get(key) or self._open(*key, self._cleanup)

    def _open(self, index: int, worker: int, offset: int, cleanup: ExitStack) -> socket.socket:
        made = cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((self._address(index, worker), WORKER_PORT + offset))
        self._sockets[index, worker, offset] = made
        return made

    @staticmethod
    def _address(index: int, worker: int) -> str:
        blocks, own = divmod(os.getpid(), 250)  # other test processes may run at once
        return f"127.{1 + own}.{blocks % 16 * 16 + index}.{PARENTS_HOST if worker == PARENT else 1 + worker}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_bmv2_and_the_software_switch_answer_alike(harness: Bmv2Harness, seed: int) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    with ExitStack() as cleanup:
        free = {port: iter([host for host in harness.hosts if host.port == port]) for port in range(PORTS)}
        jobs = []
        for index, (workers, threads, slots, below) in enumerate(JOBS):
            *hosts, parent = islice(free[index % PORTS], workers + 1)
            made = harness.job(workers, threads=threads, slots=slots, hosts=hosts, parent=parent if below else None)
            jobs.append(cleanup.enter_context(made))
        entries = [job.entry for job in jobs]
        traffic = Traffic(seed, entries)
        bmv2, software = Bmv2(harness, jobs), Software(entries, cleanup)
        stray_before = harness.switch.stray()
        answered: Counter[int] = Counter()
        for batch in _batches(traffic):
            expected, found = software.play(batch), bmv2.play(batch)
            for number in sorted(expected.keys() | found.keys()):
                cause = next((s for s in batch if s.datagram[20:24] == number.to_bytes(4, "big")), None)
                assert sorted(found[number]) == sorted(expected[number]), f"seed {seed}, packet {number}: {cause}"
            answered += Counter(answers[0].kind for answers in expected.values())
        assert_all_kinds_occurred(answered, PACKETS)
        totals = harness.switch.stray().packets
        totals = {reason: count - stray_before.packets[reason] for reason, count in totals.items()}
        for job in jobs:
            counters = job.counters()
            assert counters == software.counters(job.entry), f"seed {seed}"
            totals = {reason: count + counters.packets[reason] for reason, count in totals.items()}
        assert totals == software.totals(), f"seed {seed}"
        assert all(totals.values()), f"seed {seed}: each reason was met, {totals}"


def assert_all_kinds_occurred(answered: Counter[int], packets: int) -> None:
    """Checks that answers of every kind occurred, and enough of them."""
    assert answered.keys() == {RESULT, MISSING, DATA, EMPTY, META, QUESTION}
    assert answered[RESULT] > packets // 10
    assert answered[MISSING] > packets // 50


def _batches(traffic: Traffic) -> Iterator[list[Sending]]:
    """Packets of a parent come first in each batch: the software switch handles them before the other packets of a
    burst, a reordering that a network may cause as well."""
    batch: list[Sending] = []
    for sending in traffic.packets(PACKETS):
        if len(batch) == BATCH or (batch and _is_answer(sending) and not _is_answer(batch[-1])):
            yield batch
            batch = []
        batch.append(sending)
    yield batch


def _is_answer(sending: Sending) -> bool:
    return bool(sending.datagram) and sending.datagram[0] & 0xF in (RESULT, MISSING)
