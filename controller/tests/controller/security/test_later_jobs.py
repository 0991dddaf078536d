"""A misbehaving worker with a valid key cannot change, read or block anything of a later job in the same slots.

Workers act at random, alone and together. The switch's cells keep their contents from job to job, both when a
controller programs it over P4Runtime, as it does a P4 switch, and when the switch has its own service.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from wiresum import join
from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.controller import JoinServer, Limits
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.p4runtime import P4RuntimeSwitch, Target
from wiresum_lab.doubles.controller import Attendance, Client, member_of
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.doubles.workers import CIRCLE, DATA, EMPTY, MISSING, QUESTION, RESULT, Misdeeds, Packet, first_round
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

HOST = "127.0.0.1"
SLOTS, LANES = 16, 16
"""The switch has only as many slots as the smallest job, so all jobs get the same ones."""
CELLS = 2 * SLOTS
WORKERS = 2
MISDEEDS = 1500
BURST = 100
"""Packets sent without a pause; they fit the switch's receive buffer."""
ELEMENTS, ALL_REDUCES = 5000, 3
LIMITS = Limits(connection_lost_ms=200, counted_ms=100, suspect_ms=100)
"""Short, so that lost workers are noticed soon."""
SEEDS = range(6)


class Site:
    """A switch with one thread, which handles packets in order, and a service."""

    def __init__(self, cleanup: contextlib.ExitStack, *, p4runtime: bool) -> None:
        """`p4runtime`: whether the service is a controller that programs the switch over P4Runtime."""
        made = cleanup.enter_context(programmed_switch(bind=HOST, slots=SLOTS, lanes_max=LANES))
        self.switch = made.switch
        server = _controller(cleanup, made.target) if p4runtime else JoinServer(self.switch, LIMITS)
        self.control = f"{HOST}:{server.start(HOST, 0)}"
        cleanup.callback(server.stop)
        self.client = Client(server.port)
        cleanup.callback(self.client.close)

    def packets_seen(self) -> int:
        return sum(self.switch.stats().packets.values())

    def wait_taken_in(self, packets: int) -> None:
        """Waits until the switch has counted so many packets since its start, accepted or refused."""
        wait_until(lambda: self.packets_seen() >= packets, f"{packets} packets were taken in")


def _controller(cleanup: contextlib.ExitStack, target: Target) -> JoinServer:
    keys = Keys(KeySequence.draw())
    driver = P4RuntimeSwitch(target.with_keys(keys.identity), election_id=2)
    return JoinServer(cleanup.enter_context(contextlib.closing(driver)), LIMITS, keys=keys)


@pytest.fixture(params=["controller", "switch with its own service"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(cleanup, p4runtime=request.param == "controller")


class RawWorker:
    """A member of a job that sends any packets it is given."""

    def __init__(self, site: Site) -> None:
        self._target = (site.switch.endpoint.address, site.switch.endpoint.port)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HOST, 0))
        self.socket.settimeout(PATIENCE_S)
        self.reply = join.JoinReply()

    def endpoint(self) -> join.Endpoint:
        address, port = self.socket.getsockname()
        return join.Endpoint(address=address, port=port)

    def send(self, packet: Packet) -> None:
        own = replace(packet, job=self.reply.job, key=self.reply.key, worker=self.reply.worker)
        self.socket.sendto(own.to_bytes(), self._target)

    def receive(self) -> Packet:
        return Packet.from_bytes(self.socket.recv(65536))

    def all_received(self) -> list[Packet]:
        """All packets received so far."""
        found = []
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.receive())
        self.socket.settimeout(PATIENCE_S)
        return found


class RawJob:
    """A job of raw workers, from its start until one of its ends."""

    def __init__(self, site: Site, name: str, **fields: Any) -> None:
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
        """Closes the sockets; until then workers can send even after the job has ended."""
        for worker in self.workers:
            worker.socket.close()


class Misbehaviour:
    """Random misbehaviour of a job's workers, towards the switch and the service."""

    def __init__(self, site: Site, job: RawJob, chance: random.Random) -> None:
        self._site, self._job, self._chance = site, job, chance
        self.misdeeds = Misdeeds(chance, cells=CELLS, workers=WORKERS, lanes=LANES)
        self._sent = 0

    def misbehave(self, deeds: int) -> None:
        for _ in range(deeds):
            if self._chance.random() < 0.1:
                self._report_any_round()
            for packet in self.misdeeds.next():
                self._job.workers[packet.worker].send(packet)
                self._sent += 1
                if self._sent % BURST == 0:
                    self._site.wait_taken_in(self._sent)

    def _report_any_round(self) -> None:
        newest = self._chance.choice((0, 1, CIRCLE // 2 - 1, CIRCLE // 2, CIRCLE - 1, self._chance.randrange(CIRCLE)))
        self._chance.choice(self._job.attendances).round_newest = newest


def check_by_hand(site: Site, name: str, past: Misbehaviour, chance: random.Random, **fields: Any) -> None:
    """A later job asks for the results of rounds before its first, and then sums in every cell."""
    job = RawJob(site, name, **fields)
    asked = sorted(past.misdeeds.tried | {(cell, first_round(cell) + step) for cell in range(CELLS) for step in (0, 2)})
    chance.shuffle(asked)
    for first in range(0, len(asked), BURST):
        before, part = site.packets_seen(), asked[first : first + BURST]
        for cell, number in part:
            chance.choice(job.workers).send(Packet(kind=QUESTION, cell=cell, round=number))
        site.wait_taken_in(before + len(part))
        past.misbehave(5)  # late packets of the earlier job
        for worker in job.workers:
            assert {answer.kind for answer in worker.all_received()} <= {MISSING}, "it has summed nothing yet"
    for cell in range(CELLS):
        kinds = [chance.choice((DATA, EMPTY)) for _ in range(3)]
        for step, kind in enumerate([EMPTY, *kinds]):
            check_a_round(job, cell, first_round(cell) + 2 * step, kind, chance)
    job.leave()
    job.close()


def check_a_round(job: RawJob, cell: int, number: int, kind: int, chance: random.Random) -> None:
    """One chunk of each worker. EMPTY chunks would reveal earlier contents of the cells."""
    expected = np.zeros(LANES, np.uint32)
    exponents = [chance.randrange(256) for _ in job.workers]
    for worker, exponent in zip(job.workers, exponents, strict=True):
        words = [chance.randrange(CIRCLE) for _ in range(LANES)] if kind == DATA else []
        if words:
            expected += np.array(words, np.uint32)
        worker.send(Packet(kind=kind, exponent=exponent, cell=cell, round=number, words=tuple(words)))
    for worker in job.workers:
        while (result := worker.receive()).kind == MISSING:
            pass  # up to the answer to the last question
        assert (result.kind, result.cell, result.round) == (RESULT, cell, number)
        assert result.words == tuple(expected.tolist()), "a sum is wrong"
        assert result.exponent == max(exponents)
        assert not result.flags & 2, "the workers have not diverged"


def check_by_sessions(site: Site, name: str, past: Misbehaviour, chance: random.Random, **fields: Any) -> None:
    """A later job of real host agents gets exact sums."""
    config = AgentConfig(
        switch=site.control,
        slots=SLOTS,
        threads=chance.choice((1, 2)),
        join_timeout_s=PATIENCE_S,
        share=False,
        **fields,
    )
    numbers = np.random.default_rng(chance.randrange(CIRCLE))
    with ThreadPoolExecutor(WORKERS) as pool:
        asked = [pool.submit(Session.join, config, job_name=name, rank=r, world_size=WORKERS) for r in range(WORKERS)]
        sessions = [one.result() for one in asked]
    try:
        for _ in range(ALL_REDUCES):
            data = [numbers.integers(-(2**31), 2**31, ELEMENTS, np.int32) for _ in sessions]
            expected = np.sum(data, axis=0, dtype=np.int64).astype(np.int32)
            operations = [
                session.submit([Region(own.ctypes.data, own.ctypes.data, own.size)], dtype=Dtype.I32)
                for session, own in zip(sessions, data, strict=True)
            ]
            past.misbehave(20)  # late packets of the earlier job
            for operation, own in zip(operations, data, strict=True):
                operation.wait(PATIENCE_S)
                assert np.array_equal(own, expected), "a sum is wrong"
    finally:
        for session in sessions:
            session.close()


Check = Callable[..., None]
CHECKS: tuple[Check, Check] = (check_by_hand, check_by_sessions)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_misbehaving_worker_cannot_change_read_or_block_a_later_job(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    accounts: list[dict[str, Any]] = [{}, {"tenant": "another"}]
    culprit = RawJob(site, "culprit", **accounts[0])
    misbehaviour = Misbehaviour(site, culprit, chance)
    misbehaviour.misbehave(MISDEEDS)
    (culprit.leave, culprit.abort, culprit.die)[seed % 3]()
    for number, check in enumerate(chance.sample(CHECKS, len(CHECKS))):
        check(site, f"later-{number}", misbehaviour, chance, **chance.choice(accounts))
        wait_until(lambda: not site.client.jobs(), "the job has ended")
    culprit.close()
    assert site.client.slots_free() == SLOTS
