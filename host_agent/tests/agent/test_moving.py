"""A worker's membership when its job moves to another lease, in virtual time: real memberships, a service with real
jobs, and a data path that only says where it stands."""

from __future__ import annotations

import pytest

from wiresum.controller import Limits
from wiresum.controller.jobs.positions import Role
from wiresum_lab.doubles.resuming import SLOTS, DataPath, Start
from wiresum_lab.doubles.virtual_network import Network, Service

SELDOM = Limits(heartbeat_interval_ms=20_000)


@pytest.fixture
def service(network: Network) -> Service:
    return Service(network, SELDOM).start()


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
