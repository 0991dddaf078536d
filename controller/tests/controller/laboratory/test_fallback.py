"""A job goes on at a switch of rank 0's host when all others are lost, with the controllers; each worker checks every
element of every sum. It joins without PyTorch, so the fallback is named."""

from __future__ import annotations

import pytest

from wiresum_lab.laboratory import CONTROLLERS, HOST, SWITCHES, Job, Laboratory
from wiresum_lab.processes import unused_port, wait_until

pytestmark = pytest.mark.timeout(300)


def await_at(job: Job, switch: str) -> None:
    """Of the newest of all moves, as rank 0 was told of it."""
    goes_on = f"job '{job.name}' goes on at {switch}"

    def newest() -> str:
        told = [line for line in job.programs[0].said().splitlines() if "goes on at" in line and "job '" in line]
        return told[-1] if told else ""

    wait_until(lambda: goes_on in newest(), goes_on, meanwhile=job.check)
    job.goes_on()


@pytest.mark.slow
def test_it_goes_on_without_controllers_and_switches(laboratory: Laboratory) -> None:
    laboratory.pki.issue("serving", "worker", "fallback", addresses=(HOST,))
    variables = {"WIRESUM_FALLBACK": f"{HOST}:{unused_port()}"}
    job = laboratory.job("night", 2, tls="serving", variables=variables)
    for program in (*laboratory.controllers.values(), *laboratory.switches.values()):
        program.kill()
    await_at(job, "software switch at")
    for name in SWITCHES:
        laboratory.start_switch(name)
    for name in CONTROLLERS:
        laboratory.start_controller(name)
    laboratory.await_switches("ready")
    wait_until(lambda: "night" in laboratory.jobs_at(), "the job has returned", meanwhile=job.check)
    job.finish()
