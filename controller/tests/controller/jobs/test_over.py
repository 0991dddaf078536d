"""Jobs that somebody has ended: how many are remembered, and whose. test_going_on.py has who is told."""

from __future__ import annotations

from wiresum import join
from wiresum.controller.jobs.over import OVER_MAX, Over

ENDED = join.JobEnded(cause=join.JobEnded.ABORTED_BY_WORKER)


def noted(over: Over, tenant: str, count: int) -> list[bytes]:
    """Their ids, the oldest first."""
    ids = [f"{tenant}-{number}".encode() for number in range(count)]
    for job_id in ids:
        over.note("a-job", tenant, job_id, ENDED, 0.0)
    return ids


def known(over: Over, ids: list[bytes]) -> list[bytes]:
    return [job_id for job_id in ids if over.find("a-job", job_id, 1.0) is not None]


def test_the_newest_are_remembered() -> None:
    over = Over(30.0)
    ids = noted(over, "ours", OVER_MAX + 3)
    assert known(over, ids) == ids[3:]
    assert over.find("a-job", ids[-1], 30.0) is None


def test_a_flood_displaces_only_those_of_its_own_tenant() -> None:
    over = Over(30.0)
    victims = noted(over, "victim", 10)
    flood = noted(over, "flood", 2 * OVER_MAX)
    assert known(over, victims) == victims
    assert known(over, flood) == flood[-(OVER_MAX - 10) :]
