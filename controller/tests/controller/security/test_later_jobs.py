"""A job's worker that misbehaves in any way with its own key changes no bit, reads no bit and blocks nothing of any
later job: shown with workers that do whatever chance says, alone and together, and with later jobs in the same slots.

The switch is programmed as a P4 switch is, over P4Runtime: what is in its cells stays there from job to job.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.controller import JoinServer
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.p4runtime import P4RuntimeSwitch, Target, device_config
from wiresum.controller.testing import PATIENCE_S, Attendance, Client, member_of, wait_until
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.testing import DATA, EMPTY, META, MISSING, QUESTION, RESULT, Packet

HOST = "127.0.0.1"
SLOTS, LANES = 16, 16
"""All of the switch's, so that every job has the same slots; the fewest that a job can have."""
CELLS = 2 * SLOTS
WORKERS = 2
MISDEEDS = 1500
BURST = 100
"""Sent without a pause: so many fit the switch's receive buffer."""
ELEMENTS, ALL_REDUCES = 5000, 3
CIRCLE = 1 << 32
WIRESUM_KEY = 42
SEEDS = range(12)


class Site:
    """A switch of one thread, which takes packets in their order, and the service of a controller that programs it."""

    def __init__(self, cleanup: contextlib.ExitStack) -> None:
        self.switch = cleanup.enter_context(
            contextlib.closing(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=SLOTS, lanes_max=LANES))
        )
        front = P4RuntimeServer(self.switch, 0)
        cleanup.callback(front.stop)
        keys = Keys(KeySequence.draw())
        target = Target(
            name="leaf",
            kind="software",
            p4runtime=f"{HOST}:{front.start(f'{HOST}:0')}",
            device=0,
            pipeline=device_config.software(lanes=LANES, slots=SLOTS),
            address=HOST,
            port=self.switch.endpoint.port,
        )
        driver = cleanup.enter_context(
            contextlib.closing(P4RuntimeSwitch(target.with_keys(keys.identity), election_id=2))
        )
        server = JoinServer(driver, keys=keys)
        self.control = f"{HOST}:{server.start(HOST, 0)}"
        cleanup.callback(server.stop)
        self.client = Client(server.port)
        cleanup.callback(self.client.close)

    def packets_seen(self) -> int:
        return sum(self.switch.stats().packets.values())

    def wait_taken_in(self, packets: int) -> None:
        """Since the switch began, each has become something, be it a refusal."""
        wait_until(lambda: self.packets_seen() >= packets, f"{packets} packets were taken in")


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(cleanup)


class RawWorker:
    """A member of a job that sends what it is told to."""

    def __init__(self, site: Site) -> None:
        self._target = (site.switch.endpoint.address, site.switch.endpoint.port)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HOST, 0))
        self.socket.settimeout(PATIENCE_S)
        self.reply = join.JoinReply()

    def endpoint(self) -> join.Endpoint:
        address, port = self.socket.getsockname()
        return join.Endpoint(address=address, port=port)

    def send(self, kind: int, cell: int, number: int, **fields: object) -> None:
        packet = Packet(
            kind=kind,
            job=self.reply.job,
            key=self.reply.key,
            worker=self.reply.worker,
            cell=cell,
            round=number,
            tensor=1,
        )
        self.socket.sendto(packet._replace(**fields).to_bytes(), self._target)  # type: ignore[arg-type]

    def receive(self) -> Packet:
        return Packet.from_bytes(self.socket.recv(65536))

    def all_received(self) -> list[Packet]:
        """What has come until now."""
        found = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.receive())
        self.socket.settimeout(PATIENCE_S)
        return found


class RawJob:
    """A job of such workers, from its begin to one of its ends."""

    def __init__(self, site: Site, name: str, **fields: object) -> None:
        self._client = site.client
        self.workers = [RawWorker(site) for _ in range(WORKERS)]
        asked = [
            site.client.join_soon(
                job_name=name,
                rank=rank,
                world_size=WORKERS,
                endpoint=worker.endpoint(),
                threads_max=1,
                lanes_max=LANES,
                slots=SLOTS,
                **fields,
            )
            for rank, worker in enumerate(self.workers)
        ]
        for worker, call in zip(self.workers, asked, strict=True):
            worker.reply = call.result()
            assert (worker.reply.slots, worker.reply.threads, worker.reply.lanes) == (SLOTS, 1, LANES)
        self.attendances = [Attendance(site.client, worker.reply, interval_s=0.02) for worker in self.workers]

    def leave(self) -> None:
        for worker in self.workers:
            self._client.leave(worker.reply)
        self._hang_up()

    def abort(self) -> None:
        request = join.AbortRequest(member=member_of(self.workers[0].reply), reason="it has done enough")
        self._client.stub.Abort(request, timeout=PATIENCE_S)
        self._hang_up()

    def die(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        for attendance in self.attendances:
            attendance.hang_up()

    def close(self) -> None:
        """Until then it can send, also when the job has ended."""
        for worker in self.workers:
            worker.socket.close()


class Deed(NamedTuple):
    worker: int
    kind: int
    cell: int
    number: int


class Misbehaviour:
    """Whatever chance says, of all that workers can do with their job's key."""

    def __init__(self, site: Site, job: RawJob, chance: random.Random) -> None:
        self._site, self._job, self._chance = site, job, chance
        self._reached = [first_round(cell) for cell in range(CELLS)]
        """Of each cell, a round that may have been begun."""
        self.tried: set[tuple[int, int]] = set()
        """Cells, with rounds that they may hold."""
        self._sent = 0

    def rage(self, deeds: int) -> None:
        for _ in range(deeds):
            self._chance.choices((self._send_anything, self._complete_a_round, self._lie), (6, 3, 1))[0]()

    def _send_anything(self) -> None:
        cell = self._chance.randrange(CELLS)
        self._send(Deed(self._chance.randrange(WORKERS), self._a_kind(), cell, self._a_round(cell)))

    def _complete_a_round(self) -> None:
        """Both workers go along, so that the cell takes it for a round like any other."""
        cell = self._chance.randrange(CELLS)
        kind = self._chance.choice((DATA, DATA, EMPTY, META))
        for worker in self._chance.sample(range(WORKERS), WORKERS):
            self._send(Deed(worker, kind, cell, self._reached[cell]))
        self._reached[cell] += 2

    def _lie(self) -> None:
        """About its rounds, to the service."""
        self._chance.choice(self._job.attendances).round_newest = self._chance.choice(
            (0, 1, 2**31 - 1, 2**31, CIRCLE - 1, self._chance.randrange(CIRCLE))
        )

    def _a_kind(self) -> int:
        return self._chance.choice((DATA, DATA, EMPTY, META, QUESTION))

    def _a_round(self, cell: int) -> int:
        base = self._chance.choice(
            (0, self._reached[cell], self._reached[cell] + 2**31, self._chance.randrange(CIRCLE))
        )
        number = base + self._chance.choice((-4, -2, 0, 2, 4))
        if self._chance.random() < 0.9:
            number += (number ^ cell) & 1
        return number % CIRCLE

    def _send(self, deed: Deed) -> None:
        words = tuple(self._chance.randrange(CIRCLE) for _ in range(LANES)) if deed.kind == DATA else ()
        self._job.workers[deed.worker].send(
            deed.kind,
            deed.cell,
            deed.number,
            words=words,
            tensor=self._chance.choice((1, 1, self._chance.randrange(CIRCLE))),
            exponent=self._chance.randrange(256),
            flags=self._chance.randrange(256),
        )
        self.tried.add((deed.cell, deed.number))
        self._sent += 1
        if self._sent % BURST == 0:
            self._site.wait_taken_in(self._sent)


def first_round(cell: int) -> int:
    return 1 if cell % 2 else 2


def check_by_hand(site: Site, name: str, past: Misbehaviour, chance: random.Random, **fields: object) -> None:
    """A later job that asks for the sums of rounds before its first, and then sums in every cell."""
    job = RawJob(site, name, **fields)
    asked = sorted(past.tried | {(cell, first_round(cell) + step) for cell in range(CELLS) for step in (0, 2)})
    chance.shuffle(asked)
    for first in range(0, len(asked), BURST):
        before, part = site.packets_seen(), asked[first : first + BURST]
        for cell, number in part:
            chance.choice(job.workers).send(QUESTION, cell, number)
        site.wait_taken_in(before + len(part))
        past.rage(5)  # what comes late of the job before
        for worker in job.workers:
            assert {answer.kind for answer in worker.all_received()} <= {MISSING}, "it has summed nothing yet"
    for cell in range(CELLS):
        kinds = [chance.choice((DATA, EMPTY)) for _ in range(3)]
        for step, kind in enumerate([EMPTY, *kinds]):
            check_a_round(job, cell, first_round(cell) + 2 * step, kind, chance)
    job.leave()
    job.close()


def check_a_round(job: RawJob, cell: int, number: int, kind: int, chance: random.Random) -> None:
    """One chunk of each worker; of EMPTY ones, whatever a cell held before would show."""
    expected = np.zeros(LANES, np.uint32)
    exponents = [chance.randrange(256) for _ in job.workers]
    for worker, exponent in zip(job.workers, exponents, strict=True):
        words = [chance.randrange(CIRCLE) for _ in range(LANES)] if kind == DATA else []
        if words:
            expected += np.array(words, np.uint32)
        worker.send(kind, cell, number, words=tuple(words), exponent=exponent)
    for worker in job.workers:
        while (result := worker.receive()).kind == MISSING:
            pass  # to the last of the questions
        assert (result.kind, result.cell, result.round) == (RESULT, cell, number)
        assert result.words == tuple(expected.tolist()), "a sum is wrong"
        assert result.exponent == max(exponents)
        assert not result.flags & 2, "the workers have not diverged"


def check_by_sessions(site: Site, name: str, past: Misbehaviour, chance: random.Random, **fields: object) -> None:
    """A later job of the real host agent, whose sums are those of the integers, bit for bit."""
    config = AgentConfig(
        switch=site.control,
        slots=SLOTS,
        threads=chance.choice((1, 2)),
        join_timeout_s=PATIENCE_S,
        key=int(str(fields.get("key", 0))),
        tenant=str(fields.get("tenant", "")),
    )
    numbers = np.random.default_rng(chance.randrange(CIRCLE))
    with ThreadPoolExecutor(WORKERS) as pool:
        asked = [pool.submit(Session.join, config, job_name=name, rank=r, world_size=WORKERS) for r in range(WORKERS)]
        sessions = [one.result() for one in asked]
    try:
        for _ in range(ALL_REDUCES):
            data = [numbers.integers(-(2**31), 2**31, ELEMENTS, np.int32) for _ in sessions]
            expected = sum(own.astype(np.int64) for own in data).astype(np.int32)
            operations = [
                session.submit([Region(own.ctypes.data, own.ctypes.data, own.size)], dtype=Dtype.I32)
                for session, own in zip(sessions, data, strict=True)
            ]
            past.rage(20)  # what comes late of the job before
            for operation, own in zip(operations, data, strict=True):
                operation.wait(PATIENCE_S)
                assert np.array_equal(own, expected), "a sum is wrong"
    finally:
        for session in sessions:
            session.close()


Check = Callable[..., None]
CHECKS: tuple[Check, Check] = (check_by_hand, check_by_sessions)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_misbehaves_changes_reads_and_blocks_nothing_of_any_later_job(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    accounts = [{"key": WIRESUM_KEY}, {"key": WIRESUM_KEY, "tenant": "another"}, {}]
    culprit = RawJob(site, "culprit", **accounts[0])
    misbehaviour = Misbehaviour(site, culprit, chance)
    misbehaviour.rage(MISDEEDS)
    chance.choice((culprit.leave, culprit.abort, culprit.die))()
    for number, check in enumerate(chance.sample(CHECKS, len(CHECKS))):
        check(site, f"later {number}", misbehaviour, chance, **chance.choice(accounts))
        wait_until(lambda: not site.client.jobs(), "the job has ended")
    culprit.close()
    assert site.client.slots_free() == SLOTS
