"""Jobs go on at a switch of rank 0's host when all others are lost, with the controllers or without; each worker checks
every element of every sum. They join without PyTorch, so the fallback is named."""

from __future__ import annotations

import time

import pytest

from wiresum_lab.laboratory import CONTROLLERS, HOST, SOON_S, SWITCHES, Job, Laboratory
from wiresum_lab.processes import unused_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def job_with_fallback(laboratory: Laboratory, name: str, size: int, tls: str) -> tuple[Job, str]:
    at = f"{HOST}:{unused_port()}"
    return laboratory.job(name, size, tls=tls, variables={"WIRESUM_FALLBACK": at}), at


def issue(laboratory: Laboratory) -> str:
    laboratory.pki.issue("serving", "worker", "fallback", addresses=(HOST,))
    return "serving"


def await_at(job: Job, switch: str) -> None:
    """Of the newest of all moves, as rank 0 was told of it."""
    goes_on = f"job '{job.name}' goes on at {switch}"

    def newest() -> str:
        told = [line for line in job.programs[0].said().splitlines() if "goes on at" in line and "job '" in line]
        return told[-1] if told else ""

    wait_until(lambda: goes_on in newest(), goes_on, SOON_S, job.check)
    job.goes_on()


def test_it_goes_on_while_the_controllers_have_no_switch_and_returns_to_one(laboratory: Laboratory) -> None:
    job, _ = job_with_fallback(laboratory, "night", 3, issue(laboratory))
    for back in SWITCHES:
        for switch in laboratory.switches.values():
            switch.kill()
        lost_at = time.monotonic()
        await_at(job, "software switch at")
        print(f"at the fallback after {time.monotonic() - lost_at:.2f} s")  # noqa: T201 - for people
        laboratory.start_switch(back)
        await_at(job, back)
    job.finish()


def test_it_goes_on_without_controllers_and_switches(laboratory: Laboratory) -> None:
    job, _ = job_with_fallback(laboratory, "night", 2, issue(laboratory))
    for program in (*laboratory.controllers.values(), *laboratory.switches.values()):
        program.kill()
    await_at(job, "software switch at")
    for name in SWITCHES:
        laboratory.start_switch(name)
    for name in CONTROLLERS:
        laboratory.start_controller(name)
    laboratory.await_switches("ready")
    wait_until(lambda: "night" in laboratory.jobs_at(), "the job has returned", SOON_S, job.check)
    job.finish()


def test_a_certificate_that_may_not_serve_is_said_at_once_and_the_job_ends(laboratory: Laboratory) -> None:
    job, _ = job_with_fallback(laboratory, "night", 2, "worker")
    said = job.programs[0].said()
    assert "this worker can start no fallback switch" in said
    assert f"`wiresum ca issue worker --fallback --address {HOST}`" in said
    for switch in laboratory.switches.values():
        switch.kill()
    assert "SwitchUnreachableError" in job.error(0, 2 * SOON_S)
