"""A worker's membership when its job moves to another lease: the real service, switches that record what they are told,
and a data path that only says where it stands."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from wiresum import join as messages
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import WiresumError
from wiresum.agent.membership import Membership
from wiresum.controller import JoinServer, Limits
from wiresum.controller.jobs.positions import Role
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import Client, RecordingDriver
from wiresum_lab.processes import PATIENCE_S, wait_until

SLOTS = 16
SELDOM = Limits(heartbeat_interval_ms=60_000)
"""So that nothing here waits for the next heartbeat."""


class Worker:
    """A worker: its membership, and where its data path stands."""

    def __init__(self, membership: Membership, ahead: tuple[int, ...] = ()) -> None:
        self.membership, self.ahead = membership, ahead
        self.errors: list[WiresumError] = []
        self.halts = 0
        self.may_halt = threading.Event()
        self.may_halt.set()
        self.moved: list[tuple[messages.JoinReply, bytes]] = []
        membership.attend(on_ended=self.errors.append, progress=lambda: 1, halt=self.halt, move=self.move)

    def halt(self) -> bytes:
        assert self.may_halt.wait(PATIENCE_S)
        self.halts += 1
        return struct.pack(f">{SLOTS}I", *(5 + (slot in self.ahead) for slot in range(SLOTS)))

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        self.moved.append((grant, roles))

    def wait_moved(self, times: int) -> tuple[messages.JoinReply, bytes]:
        wait_until(lambda: len(self.moved) >= times, "the worker has moved")
        assert len(self.moved) == times
        return self.moved[-1]


def join(port: int, *, can_move: bool = True, seconds: float = PATIENCE_S) -> list[Membership]:
    config = AgentConfig.from_environment({}, switch=f"127.0.0.1:{port}", join_timeout_s=seconds, slots=SLOTS)

    def one(rank: int) -> Membership:
        return Membership.join(
            config,
            job_name="a-job",
            rank=rank,
            world_size=2,
            address="127.0.0.1",
            port=5000 + 16 * rank,
            threads_max=4,
            lanes_max=100,
            can_move=can_move,
        )

    with futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def lose_all(driver: RecordingDriver) -> None:
    driver.change("it was killed", forgetting=True)
    driver.change("")


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver()


@pytest.fixture
def server(driver: RecordingDriver) -> Iterator[JoinServer]:
    server = JoinServer(driver, SELDOM)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.5)


def test_workers_go_on_at_the_lease_that_the_service_gives_them(server: JoinServer, driver: RecordingDriver) -> None:
    workers = [Worker(membership, ahead) for membership, ahead in zip(join(server.port), ((), (3,)), strict=True)]
    before = [worker.membership.grant for worker in workers]
    lose_all(driver)
    for worker, old in zip(workers, before, strict=True):
        grant, roles = worker.wait_moved(1)
        assert (worker.membership.grant, worker.halts) == (grant, 1)
        assert grant.key == driver.entries[-1].key != old.key
        assert (grant.token, grant.rank, grant.slots) == (old.token, old.rank, SLOTS)
        assert roles[3] == (Role.BEHIND if worker is workers[0] else Role.REPEATS)
        assert sum(roles) == roles[3]
    with contextlib.closing(Client(server.port)) as client:
        wait_until(lambda: client.jobs()[0].waiting == "", "the service knows that both have gone on")
        assert client.jobs()[0].moves == 1
        assert dict(client.report().service.moves)["switch_restarted"] == 1
    lose_all(driver)
    for worker in workers:
        worker.wait_moved(2)
        worker.membership.leave()
    wait_until(lambda: not driver.admitted, "the switch has forgotten the job")
    assert [worker.errors for worker in workers] == [[], []]


def test_a_worker_that_cannot_move_hears_as_before_that_its_switch_was_started_anew(
    server: JoinServer, driver: RecordingDriver
) -> None:
    errors: list[WiresumError] = []
    memberships = join(server.port, can_move=False)
    for membership in memberships:
        membership.attend(on_ended=errors.append, progress=lambda: 1)
    lose_all(driver)
    wait_until(lambda: len(errors) == 2, "both have heard")
    assert "was started anew, and what it had summed is lost" in str(errors[0])
    for membership in memberships:
        membership.leave()


@pytest.mark.parametrize("where", ["halt", "move"])
def test_a_data_path_that_cannot_move_ends_the_job_for_all(
    server: JoinServer, driver: RecordingDriver, where: str
) -> None:
    first, second = (Worker(membership) for membership in join(server.port))

    def fail(*_: object) -> bytes:
        raise ValueError("slot 3 has nothing to repeat")

    setattr(first.membership._moves, f"_{where}", fail)
    lose_all(driver)
    for worker in (first, second):
        wait_until(lambda worker=worker: bool(worker.errors), "it has ended")
        assert "cannot move to another lease: slot 3 has nothing to repeat" in str(worker.errors[0])
        worker.membership.leave()


def test_a_halt_that_is_told_twice_calls_for_no_heartbeat(server: JoinServer) -> None:
    """Each answer to a heartbeat tells it again: so there would be no end of them."""
    first, second = join(server.port)
    first._moves.set_data_path(lambda: bytes(SLOTS), None)
    event = messages.JobEvent(halt=messages.Halt(move_number=1, reason="a test"))
    for expected in (True, False):
        first._beat_now.clear()
        first._obey(event)
        assert first._beat_now.is_set() == expected
    for membership in (first, second):
        membership.leave()


def test_a_grant_of_another_size_is_refused(server: JoinServer, driver: RecordingDriver) -> None:
    first, second = (Worker(membership) for membership in join(server.port))
    second.may_halt.clear()
    lose_all(driver)
    wait_until(lambda: first.halts == 1, "one has halted")
    grant = messages.JoinReply()
    grant.CopyFrom(first.membership.grant)
    grant.slots *= 2
    move = messages.Move(move_number=1, grant=grant, roles=bytes(2 * SLOTS))
    first.membership._obey(messages.JobEvent(move=move))
    second.may_halt.set()
    for worker in (first, second):
        wait_until(lambda worker=worker: bool(worker.errors), "it has ended")
        assert f"slots would be {2 * SLOTS}, and must be {SLOTS}" in str(worker.errors[0])
        assert worker.moved == []
        worker.membership.leave()


@pytest.mark.parametrize("halted", [0, 1])
def test_a_service_that_is_started_again_in_the_middle_goes_on_with_a_new_move(tmp_path: Path, halted: int) -> None:
    driver = RecordingDriver()
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        server = JoinServer(driver, store=store)
        server.start("127.0.0.1", 0)
        workers = [Worker(membership) for membership in join(server.port)]
        for worker in workers[halted:]:
            worker.may_halt.clear()
        lose_all(driver)
        wait_until(lambda: [worker.halts for worker in workers] == [1] * halted + [0] * (2 - halted), "some halted")
        wait_until(lambda: len(driver.entries) == 2, "the switch has the next lease")
        server.stop(0.1, keep_jobs=True)
        store.begin()
        again = JoinServer(driver, store=store)
        again.start("127.0.0.1", server.port)
        for worker in workers:
            worker.may_halt.set()
        for worker in workers:
            grant, _ = worker.wait_moved(1)
            assert grant.key == driver.entries[-1].key
            assert worker.errors == []
        assert len({entry.key for entry in driver.entries}) == 3
        for worker in workers:
            worker.membership.leave()
        again.stop(0.5)
    assert driver.admitted == {}
