"""Misbehaving workers with a valid key, on the hardware programs: a later job in the same slots cannot read what
they left in the cells, and its sums are right. (controller/tests/controller/security has this test for the software
switch.)"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pytest

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_network import MAIN, TofinoNetwork
from wiresum.conformance.frames import UdpFrame
from wiresum.conformance.scenarios import Job as TofinoJob
from wiresum_lab.doubles.workers import CIRCLE, DATA, EMPTY, MISSING, QUESTION, RESULT, Misdeeds, Packet, first_round

if TYPE_CHECKING:
    from bmv2_tests.bmv2_harness import Bmv2Harness

WORKERS, SLOTS, LANES = 2, 4, 64
CELLS = 2 * SLOTS
MISDEEDS = 400
FRAMES_AT_ONCE = 16
"""Fits bmv2's queue to a port."""
SEEDS = range(3)


class Job(Protocol):
    """An admitted job."""

    def send(self, packets: Iterable[Packet]) -> list[Packet]:
        """Sends packets of its workers, with its number and key; gives the answers."""


class Site(Protocol):
    def job(self) -> AbstractContextManager[Job]:
        """A job with a key of its own, always in the same slots."""


class TofinoSite:
    def __init__(self, network: TofinoNetwork) -> None:
        self._network = network
        self._jobs = 0

    @contextmanager
    def job(self) -> Iterator[Job]:
        self._jobs += 1
        key = 0xFEED0000 + self._jobs
        job = TofinoJob(number=7, key=key, workers=WORKERS, threads=1, lanes=LANES, slot_base=8, slots=SLOTS)
        self._network.admit(job)
        yield _OnTofino(self._network, job)
        self._network.evict(job)


@dataclass(frozen=True)
class _OnTofino:
    network: TofinoNetwork
    job: TofinoJob

    def send(self, packets: Iterable[Packet]) -> list[Packet]:
        copies = []
        for packet in packets:
            member = self.job.members[packet.worker]
            datagram = replace(packet, job=self.job.number, key=self.job.key).to_bytes()
            copies += self.network.send(self.network.port(member), self.network.own_frame(member, datagram).pack())
        return [Packet.from_bytes(UdpFrame.unpack(copy.frame).payload) for copy in copies]


class Bmv2Site:
    def __init__(self, harness: Bmv2Harness) -> None:
        self._harness = harness
        self._slot_base: int | None = None

    @contextmanager
    def job(self) -> Iterator[Job]:
        from bmv2_tests.bmv2_harness import Job as Bmv2Job

        @dataclass(frozen=True)
        class OnBmv2:
            job: Bmv2Job

            def send(self, packets: Iterable[Packet]) -> list[Packet]:
                entry, hosts = self.job.entry, self.job.hosts
                own = [replace(packet, job=entry.job, key=entry.key) for packet in packets]
                frames = [(hosts[packet.worker].port, bytes(self.job.frame(packet))) for packet in own]
                parts = [frames[first : first + FRAMES_AT_ONCE] for first in range(0, len(frames), FRAMES_AT_ONCE)]
                return [copy.packet for part in parts for copy in self.job.harness.copies(part)]

        with self._harness.job(WORKERS, slots=SLOTS) as job:
            self._slot_base = job.entry.slot_base if self._slot_base is None else self._slot_base
            assert job.entry.slot_base == self._slot_base
            yield OnBmv2(job)


@pytest.fixture(scope="module", params=[1, 2], ids=["tofino1", "tofino2"])
def tofino(request: pytest.FixtureRequest) -> Switch:
    return Switch(MAIN, generation=request.param)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_later_job_on_tofino_reads_nothing_of_misbehaving_workers(tofino: Switch, seed: int) -> None:  # R3.21
    check(TofinoSite(TofinoNetwork(tofino)), random.Random(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_later_job_on_bmv2_reads_nothing_of_misbehaving_workers(harness: Bmv2Harness, seed: int) -> None:  # R3.21
    check(Bmv2Site(harness), random.Random(seed))


def check(site: Site, chance: random.Random) -> None:
    misdeeds = Misdeeds(chance, cells=CELLS, workers=WORKERS, lanes=LANES)
    with site.job() as culprit:
        answers = culprit.send(packet for _ in range(MISDEEDS) for packet in misdeeds.next())
        assert RESULT in {answer.kind for answer in answers}, "the misbehaving workers have left sums in cells"
    with site.job() as later:
        firsts = {(cell, first_round(cell) + step) for cell in range(CELLS) for step in (0, 2)}
        asked = sorted(misdeeds.tried | firsts)
        questions = [
            Packet(kind=QUESTION, worker=chance.randrange(WORKERS), cell=c, round=n, tensor=1) for c, n in asked
        ]
        assert {answer.kind for answer in later.send(questions)} == {MISSING}, "the later job has summed nothing yet"
        for cell in range(CELLS):
            for step, kind in enumerate((EMPTY, DATA, chance.choice((DATA, EMPTY)))):
                check_a_round(later, cell, first_round(cell) + 2 * step, kind, chance)


def check_a_round(job: Job, cell: int, number: int, kind: int, chance: random.Random) -> None:
    """One chunk of each worker. EMPTY chunks would reveal earlier contents of the cells."""
    packets = [
        Packet(
            kind=kind,
            worker=worker,
            exponent=chance.randrange(256),
            cell=cell,
            round=number,
            tensor=1,
            words=tuple(chance.randrange(CIRCLE) for _ in range(LANES)) if kind == DATA else (),
        )
        for worker in range(WORKERS)
    ]
    words = tuple(sum(column) % CIRCLE for column in zip(*(packet.words for packet in packets), strict=True))
    results = job.send(packets)
    assert [result.kind for result in results] == [RESULT] * WORKERS
    for result in results:
        assert (result.cell, result.round, result.flags & 2) == (cell, number, 0)
        assert result.exponent == max(packet.exponent for packet in packets)
        assert result.words == (words or (0,) * LANES), "a sum is wrong"
