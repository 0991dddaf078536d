"""What a tenant may have at a time, of everything that others want too. test_waiting.py has slots and jobs."""

from __future__ import annotations

from wiresum.controller.jobs.job import State, Wants
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.jobs.outputs import Grant
from wiresum_lab.doubles.controller import JobsHarness, member

HOUR_MS = 3_600_000


def test_a_quota_of_worker_threads_lets_a_job_wait_until_others_have_ended() -> None:
    harness = JobsHarness(quotas=[Quota("vision", worker_threads=20)])
    first = harness.ask_all(4, job_name="first", tenant="vision", threads_max=4)
    second = harness.ask_all(4, job_name="second", tenant="vision", threads_max=2)
    small = harness.ask_all(4, job_name="small", tenant="vision", threads_max=1)
    other = harness.ask_all(4, job_name="other", tenant="sound", threads_max=4)
    assert [workers[0].job.state for workers in (first, second, small, other)] == [
        State.RUNNING,
        State.QUEUED,
        State.RUNNING,
        State.RUNNING,
    ]
    assert second[0].job.wants is Wants.QUOTA
    harness.wait(1.5)
    assert harness.said(second[0]).endswith(
        "the quota of tenant 'vision' is used up (any number of jobs, any number of slots and 20 worker threads): "
        "taken are 2 jobs, 512 slots and 20 worker threads"
    )
    for worker in small:
        harness.leave(worker)
    assert second[0].job.state is State.QUEUED
    for worker in first:
        harness.leave(worker)
    assert second[0].job.state is State.RUNNING


def test_a_job_with_more_worker_threads_than_its_quota_is_refused_as_soon_as_that_is_known() -> None:
    harness = JobsHarness(quotas=[Quota("", worker_threads=8)])
    code, text = harness.refusal_of(lambda: harness.ask(world_size=9, threads_max=1))
    assert code == "RESOURCE_EXHAUSTED"
    assert "does not allow 9 worker threads, all its workers times the threads of each (WIRESUM_THREADS)" in text
    workers = harness.ask_all(4, threads_max=4)
    code, text = harness.refused(workers[0])
    assert code == "RESOURCE_EXHAUSTED"
    assert "has 4 workers with 4 threads each, and its tenant's quota is 8 worker threads: give them fewer" in text
    assert harness.ask_all(4, threads_max=2)[0].job.state is State.RUNNING
    code, text = harness.refusal_of(lambda: harness.create(job_name="created", world_size=9))
    assert "does not allow 9 worker threads" in text


def test_a_tenant_holds_a_bounded_number_of_names() -> None:
    harness = JobsHarness(quotas=[Quota("", waiting_jobs=3)])
    for n in range(3):
        harness.ask(job_name=f"held-{n}", world_size=2, tenant="vision")
    code, text = harness.refusal_of(lambda: harness.ask(job_name="fourth", world_size=2, tenant="vision"))
    assert code == "RESOURCE_EXHAUSTED"
    assert "3 jobs of tenant 'vision' form or wait for slots, and no more can" in text
    assert "waiting_jobs in the controller's configuration" in text
    assert harness.ask(job_name="fourth", world_size=2, tenant="sound").job.state is State.FORMING
    harness.ask(job_name="held-0", rank=1, world_size=2, tenant="vision")
    assert harness.ask(job_name="fifth", world_size=2, tenant="vision").job.state is State.FORMING


def test_without_a_quota_a_tenant_cannot_hold_all_names() -> None:
    harness = JobsHarness()
    for n in range(256):
        harness.ask(job_name=f"held-{n}", world_size=2, tenant="vision")
    code, _ = harness.refusal_of(lambda: harness.ask(job_name="one-more", world_size=2, tenant="vision"))
    assert code == "RESOURCE_EXHAUSTED"
    assert harness.ask(job_name="honest", tenant="sound").job.state is State.RUNNING


def test_a_name_is_held_for_a_bounded_time_however_often_its_rank_asks_again() -> None:
    harness = JobsHarness(quotas=[Quota("vision", forming_ms_max=20_000)])
    worker = harness.ask(job_name="held", world_size=2, tenant="vision", attempt="mine")
    patient = harness.ask(job_name="patient", world_size=2, tenant="sound", timeout_ms=HOUR_MS)
    for _ in range(6):
        harness.wait(3)
        harness.ask(job_name="held", world_size=2, tenant="vision", attempt="mine")
    assert worker.job.state is State.FORMING
    harness.wait(3)
    assert harness.refused(worker) == (
        "DEADLINE_EXCEEDED",
        "job 'held' was not complete after 20 s, the longest that jobs of its tenant may form: rank 1 of 2 did not "
        "come. Look at why, or wait longer (forming_s in the controller's configuration, under [[tenant]])",
    )
    assert harness.ask(job_name="held", tenant="sound").job.state is State.RUNNING, "the name is free"
    assert patient.job.state is State.FORMING, "another tenant has another limit"


def test_a_stall_of_the_service_does_not_count_against_a_job_that_forms() -> None:
    harness = JobsHarness(quotas=[Quota("", forming_ms_max=20_000)])
    worker = harness.ask(world_size=2, timeout_ms=HOUR_MS)
    harness.wait(10)
    harness.now += 30
    harness.wait(5)
    assert worker.job.state is State.FORMING
    harness.wait(6)
    assert "forming_s in the controller's configuration" in harness.refused(worker)[1]


def test_a_job_that_waits_in_the_queue_is_not_given_up_with_those_that_form() -> None:
    harness = JobsHarness(quotas=[Quota("", forming_ms_max=5_000, jobs=1)])
    first = harness.ask(job_name="first")
    second = harness.ask(job_name="second", timeout_ms=HOUR_MS)
    harness.jobs.attend(member(first), harness.now)
    harness.wait(8, beating=[first])
    assert second.job.state is State.QUEUED
    harness.leave(first)
    assert second.job.state is State.RUNNING


def test_operators_may_set_any_priority_and_workers_only_what_their_tenant_may() -> None:
    harness = JobsHarness(quotas=[Quota("vision", priority_max=0)])
    code, text = harness.refusal_of(lambda: harness.ask(tenant="vision", priority=1))
    assert code == "RESOURCE_EXHAUSTED"
    assert "priority 1 is more than tenant 'vision' may have, 0: ask for less (WIRESUM_PRIORITY)" in text
    assert harness.ask(job_name="humble", tenant="vision", priority=-5).job.state is State.RUNNING
    token = harness.create(job_name="urgent", tenant="vision", priority=7)
    harness.ask(job_name="urgent", tenant="vision", job_token=token, priority=7)
    assert [grant.worker.job.priority for grant in harness.outputs(Grant)] == [-5, 7]
