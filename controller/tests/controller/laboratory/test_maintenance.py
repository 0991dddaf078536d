"""Switches are drained and resumed, and controllers and switches are upgraded one by one, while jobs run."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum_lab.laboratory import SOON_S, Laboratory
from wiresum_lab.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def other_than(name: str) -> str:
    return {"left": "right", "right": "left"}[name]


def slots_taken(report: join.Report, name: str) -> int:
    return next(switch.slots_total - switch.slots_free for switch in report.switches if switch.name == name)


def test_a_switch_is_drained_and_resumed_under_running_jobs(laboratory: Laboratory) -> None:
    before = laboratory.job("before")
    drained = laboratory.jobs_at()["before"]
    laboratory.drain(drained)
    meanwhile = [laboratory.job(f"meanwhile-{n}") for n in range(2)]
    assert [laboratory.jobs_at()[job.name] for job in meanwhile] == [other_than(drained)] * 2
    before.goes_on()
    assert laboratory.jobs_at()["before"] == other_than(drained), "it has moved"

    # It stays drained, whoever serves.
    laboratory.controllers["active"].kill()
    laboratory.await_report(lambda report: len(report.jobs) == 3, "the standby serves")
    assert {s.name: s.state for s in laboratory.operator.report().switches}[drained] == "draining"
    before.goes_on()

    # While both are drained jobs run on, and a new one waits, and says so; it begins where the first is resumed.
    laboratory.drain(other_than(drained))
    before.goes_on()
    waiting = laboratory.start_job("waiting")
    laboratory.await_report(
        lambda report: any(
            "takes no new jobs, since an operator drains it" in job.waiting
            for job in report.jobs
            if job.name == "waiting"
        ),
        "the new job waits for a switch",
    )
    laboratory.drain(drained, resume=True)
    wait_until(waiting.steps, "the job that waited sums", SOON_S, waiting.check)
    assert laboratory.jobs_at()["waiting"] == drained
    laboratory.await_report(
        lambda report: slots_taken(report, other_than(drained)) == 0, "those that ran on have moved there too"
    )
    for job in (before, *meanwhile, waiting):
        job.goes_on()
        job.finish()


def test_controllers_and_switches_are_upgraded_one_by_one(laboratory: Laboratory) -> None:
    """As docs/availability.md says: the standby first, then the other controller; each switch once it is empty."""
    through = laboratory.job("through")
    stays = laboratory.jobs_at()["through"]
    laboratory.controllers["standby"].stop()
    laboratory.start_controller("standby")
    laboratory.controllers["active"].stop()
    laboratory.await_report(lambda report: report.jobs, "the new controller serves")
    laboratory.start_controller("active")
    through.goes_on()

    first = other_than(stays)
    laboratory.drain(first)
    laboratory.switches[first].stop()
    laboratory.start_switch(first)
    laboratory.drain(first, resume=True)
    laboratory.await_switches("ready")
    through.goes_on()

    # The other one is empty when its job has moved.
    laboratory.drain(stays)
    new = laboratory.job("new")
    laboratory.await_report(lambda report: slots_taken(report, stays) == 0, "it is empty")
    assert laboratory.jobs_at() == {"through": first, "new": first}
    laboratory.switches[stays].stop()
    laboratory.start_switch(stays)
    laboratory.drain(stays, resume=True)
    laboratory.await_switches("ready")
    for job in (through, new):
        job.goes_on()
        job.finish()


def test_a_switch_that_is_restarted_under_a_job_disturbs_no_other(laboratory: Laboratory) -> None:
    jobs = {name: laboratory.job(name) for name in ("one", "two")}
    at = laboratory.jobs_at()
    assert set(at.values()) == {"left", "right"}, "each job is where there is more room"
    laboratory.switches["left"].kill()
    laboratory.start_switch("left")
    for job in jobs.values():
        job.goes_on()
    laboratory.await_switches("ready")
    moves = {job.name: job.moves for job in laboratory.operator.report().jobs if job.state != "ending"}
    assert [moves[name] > 0 for name in jobs] == [at[name] == "left" for name in jobs]
    laboratory.job("again").finish()
    for job in jobs.values():
        job.finish()
