"""Jobs go on at a switch of rank 0's host when all others are lost, with the controllers or without; each worker checks
every element of every sum. They join without PyTorch, so the fallback is named."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from concurrent import futures
from typing import Any

import pytest

from wiresum import join
from wiresum.cli.service import Service
from wiresum_lab.doubles.controller import Client
from wiresum_lab.laboratory import CONTROLLERS, HOST, SWITCHES, Job, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, unused_port, wait_until, wiresum

AUDIT = re.compile(r"\{\"time.*\}")
"""A line of the audit log among others."""

pytestmark = pytest.mark.timeout(300)


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

    wait_until(lambda: goes_on in newest(), goes_on, meanwhile=job.check)
    job.goes_on()


@pytest.mark.nightly
def test_it_goes_on_while_the_controllers_have_no_switch_and_returns_to_one(laboratory: Laboratory) -> None:
    job, _ = job_with_fallback(laboratory, "night", 3, issue(laboratory))
    for back in SWITCHES:
        for switch in laboratory.switches.values():
            switch.kill()
        await_at(job, "software switch at")
        laboratory.start_switch(back)
        await_at(job, back)
    job.finish()


@pytest.mark.slow
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
    wait_until(lambda: "night" in laboratory.jobs_at(), "the job has returned", meanwhile=job.check)
    job.finish()


@pytest.mark.nightly
def test_a_certificate_that_may_not_serve_is_said_at_once_and_the_job_ends(laboratory: Laboratory) -> None:
    job, _ = job_with_fallback(laboratory, "night", 2, "worker")
    said = job.programs[0].said()
    assert "this worker can start no fallback switch" in said
    assert f"`wiresum ca issue worker --fallback --address {HOST}`" in said
    for switch in laboratory.switches.values():
        switch.kill()
    assert "SwitchUnreachableError" in job.error(0, 2 * PATIENCE_S)


@pytest.mark.slow
def test_a_hostile_tenant_gets_nothing_at_the_fallback_of_another_job(laboratory: Laboratory) -> None:
    """It asks from before the fallback listens, as new and as going on with the job, in its own name and the job's."""
    mallory = laboratory.pki.issue("mallory", "worker", tenants=("mallory",))
    laboratory.pki.issue("alice", "worker", "fallback", tenants=("alice",), addresses=(HOST,))
    job, at = job_with_fallback(laboratory, "night", 2, "alice")
    refused: set[str] = set()
    over = threading.Event()

    def squat() -> None:
        going_on = join.Resumed(slots=32, threads=1, lanes=64, positions=bytes(4 * 32), job_id=bytes(16))
        asked: list[dict[str, Any]] = [{"job_name": name} for name in ("hog", "night")]
        asked += [{**each, "resumed": going_on} for each in asked]
        with contextlib.closing(Client(int(at.rpartition(":")[2]), tls=mallory)) as client:
            while not over.is_set():
                for each in asked:
                    refused.add(client.refusal(slots=32, timeout_ms=1000, **each)[0])
                over.wait(0.02)

    with futures.ThreadPoolExecutor(1) as pool:
        squatting = pool.submit(squat)
        for switch in laboratory.switches.values():
            switch.kill()
        await_at(job, "software switch at")
        wait_until(lambda: "PERMISSION_DENIED" in refused, "it was refused there", meanwhile=job.check)
        job.goes_on()
        over.set()
        squatting.result()
    assert refused <= {"UNAVAILABLE", "PERMISSION_DENIED"}, "nothing listens, or it is refused"
    with Service(at, tls=str(laboratory.pki.tls("operator"))) as service:
        assert [each.name for each in service.report().jobs] == ["night"]
    job.finish()


@pytest.mark.nightly
def test_a_tenant_that_listens_at_the_port_before_is_told_nothing_and_the_error_says_so(laboratory: Laboratory) -> None:
    """It may even serve at this address, by its own certificate."""
    at = f"{HOST}:{unused_port()}"
    mallory = laboratory.pki.issue("mallory", "worker", "fallback", tenants=("mallory",), addresses=(HOST,))
    log = laboratory.folder / "squatter.log"
    squatter = Program(wiresum("switch", "--control", at, "--port", "0", "--tls", str(mallory), "-v"), log)
    try:
        squatter.await_text("ready: ")
        job = laboratory.job("night", 2, tls=issue(laboratory), variables={"WIRESUM_FALLBACK": at})
        assert "another process of this host has that port" in job.programs[0].said()
        for switch in laboratory.switches.values():
            switch.kill()
        for rank in (0, 1):
            assert "does not prove that it is the fallback switch of job 'night'" in job.error(rank, 2 * PATIENCE_S)
        asked = {line["method"] for line in map(json.loads, AUDIT.findall(squatter.said()))}
        assert asked == {"Prove"}, "no worker has joined, attended, or shown its token"
    finally:
        squatter.kill()
