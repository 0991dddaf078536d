"""A worker's membership when its job moves to another lease, in virtual time: real memberships, a service with real
jobs, and a data path that only says where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum.controller import Limits
from wiresum.controller.jobs.positions import Role
from wiresum_lab.doubles.resuming import SLOTS, DataPath, Start
from wiresum_lab.doubles.virtual_network import Network, Service

SELDOM = Limits(heartbeat_interval_ms=20_000)


@pytest.fixture
def service(network: Network) -> Service:
    return Service(network, SELDOM).start()


class Slow(DataPath):
    """One that halts when it may."""

    may_halt = False

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def halt(self) -> bytes:
        self._network.wait_until(lambda: self.may_halt, "it may halt")
        return super().halt()


def test_workers_go_on_at_the_lease_that_the_service_gives_them_and_wait_for_no_heartbeat(
    network: Network, service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath(3)])
    before = [member.grant for member in job.members]
    service.running.lose_switch()
    lost_at = network.now()
    network.wait_until(lambda: all(path.moves for path in job.paths), "they have moved", meanwhile=job.check)
    network.wait_until(lambda: service.jobs()[0].members.going_on is None, "the service knows that both have gone on")
    assert network.now() - lost_at < SELDOM.heartbeat_interval_ms / 1000 / 10
    for member, path, old in zip(job.members, job.paths, before, strict=True):
        ((grant, roles),) = path.moves
        assert (member.grant, path.halted) == (grant, 1)
        assert grant.key != old.key
        assert (grant.token, grant.rank, grant.slots) == (old.token, old.rank, SLOTS)
        assert roles[3] == (Role.BEHIND if path is job.paths[0] else Role.REPEATS)
        assert sum(roles) == roles[3]
    assert service.jobs()[0].move_number == 1
    service.running.lose_switch()
    job.await_moves(2)
    job.leave()
    job.check()
    assert service.jobs() == []


def test_a_worker_that_cannot_move_hears_as_before_that_its_switch_was_started_anew(
    service: Service, start: Start
) -> None:
    job = start(service.endpoint, [DataPath(), DataPath()], can_move=False)
    service.running.lose_switch()
    for error in job.await_errors():
        assert "was started anew, and what it had summed is lost" in str(error)


def key_of_next_lease(service: Service) -> int:
    """0: there is none."""
    (job,) = service.jobs()
    lease = job.move.lease if job.move is not None else None
    return 0 if lease is None else lease.key


@pytest.mark.parametrize("halted", [0, 1])
def test_a_service_that_is_started_again_in_the_middle_goes_on_with_a_new_move(
    network: Network, start: Start, tmp_path: Path, halted: int
) -> None:
    service = Service(network, state=tmp_path / "state").start()
    paths = [DataPath()] * halted + [Slow(network) for _ in range(2 - halted)]
    job = start(service.endpoint, paths)
    service.running.lose_switch()
    network.wait_until(lambda: paths[0].halted == halted and key_of_next_lease(service), "it is prepared")
    given_up = key_of_next_lease(service)
    service.kill()
    service.start()
    for path in paths[halted:]:
        assert isinstance(path, Slow)
        path.may_halt = True
    job.await_moves(1)
    assert job.members[0].grant.key != given_up
