"""Jobs go on with another lease when their switch is killed; each worker checks every element of every sum."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum_lab.laboratory import Laboratory
from wiresum_lab.processes import wait_until

pytestmark = pytest.mark.timeout(300)


def other_than(name: str) -> str:
    return {"left": "right", "right": "left"}[name]


@pytest.mark.slow
def test_a_job_goes_on_at_another_switch_when_its_own_is_killed(laboratory: Laboratory) -> None:
    job = laboratory.job("night", 3)
    lost = laboratory.jobs_at()["night"]

    def has_moved() -> bool:
        found = [each for each in laboratory.operator.report().jobs if each.state == "running"]
        return [(each.moves, each.switch_name, each.waiting) for each in found] == [(1, other_than(lost), "")]

    laboratory.switches[lost].kill()
    job.goes_on()
    wait_until(has_moved, "it has moved", meanwhile=job.check)
    laboratory.start_switch(lost)
    laboratory.await_switches("ready")
    job.goes_on()
    assert dict(laboratory.operator.report().service.moves)["switch_lost"] == 1
    job.finish()

    def nothing_is_left(report: join.Report) -> bool:
        return not report.jobs and all(switch.slots_free == laboratory.slots for switch in report.switches)

    laboratory.await_report(nothing_is_left, "all slots are free")


@pytest.mark.nightly
def test_a_worker_that_is_killed_while_its_job_moves_is_named(laboratory: Laboratory) -> None:
    laboratory.drain("right")
    job = laboratory.job("night", 3)
    laboratory.switches["left"].kill()
    job.programs[1].kill()
    laboratory.start_switch("left")
    for rank in (0, 2):
        assert "rank 1" in job.error(rank)
