"""A restarted service goes on with the records that the one before has stored."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.jobs.job import Asker, State
from wiresum.controller.jobs.keys import BLOCK
from wiresum.controller.jobs.outputs import Admit, Evict, Grant, Output, Reconcile, Tell, Write
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, join_request, member


def test_a_created_job_remembers_its_members_and_who_may_join_after_a_restart(store: Store) -> None:
    """A certificate without a tenant whose grant was lost gets its place again."""
    before, asker = JobsHarness(store=store), Asker("node7 at 10.0.0.7", "10.0.0.7", "ab12", "node7", own_account=True)
    token = before.jobs.create(join.CreateJobRequest(job_name="a-job", world_size=1), before.now)
    request = join_request(tenant="node7", job_token=token, attempt="mine", global_rank=2)
    asked = before.jobs.ask(request, before.now, asker)
    before.settle()
    after = JobsHarness(store=store, now=7.0)
    again = after.jobs.ask(request, after.now, asker)
    assert again.token == asked.token
    assert str(again) == str(asked)
    assert (
        "rank 0, global rank 2 (127.0.0.1, called from 10.0.0.7, certificate 'node7', process 1000 on 'host-0')"
        in str(again)
    )


def test_a_running_job_goes_on_after_a_restart_and_its_workers_come_back(store: Store) -> None:
    before = JobsHarness(store=store)
    workers = before.running(attempt="mine")
    before.wait(6, beating=workers, round_newest=1000)
    after = JobsHarness(store=store, now=7.0)
    (reconcile,) = after.outputs(Reconcile)
    assert reconcile.entries == (workers[0].job.lease.root.entry,)
    again = after.jobs.attend(member(workers[0]), after.now)
    assert again.token == workers[0].token
    assert after.ask(rank=1, world_size=3, attempt="mine").token == workers[1].token, "its grant may have been lost"
    (grant,) = after.outputs(Grant)
    assert grant.reply.key == workers[0].job.lease.key
    after.jobs.attend(member(workers[2]), after.now)
    after.jobs.attend(member(workers[1]), after.now)
    restored = [after.jobs.find(member(worker)) for worker in workers]
    after.wait(40, beating=restored, round_newest=1001)
    assert [job.state for job in after.jobs.all()] == [State.RUNNING]
    for worker in restored:
        after.leave(worker)
    assert len(after.jobs) == 0
    assert after.slots_free == 4096


def test_a_job_keeps_its_ports_after_a_restart(store: Store) -> None:
    before = JobsHarness(store=store)
    for name in ("first", "second"):
        before.running(job_name=name, threads_max=2, slots=64)
    after = JobsHarness(store=store)
    (reconcile,) = after.outputs(Reconcile)
    assert [entry.port_offset for entry in reconcile.entries] == [0, 2]
    after.ask(job_name="third", threads_max=2, slots=64)
    assert after.outputs(Admit)[-1].entry.port_offset == 4


def test_a_worker_that_does_not_come_back_after_a_restart_is_lost(store: Store) -> None:
    workers = JobsHarness(store=store).running()
    after = JobsHarness(store=store)
    for worker in workers[:2]:
        after.jobs.attend(member(worker), after.now)
    beating = [after.jobs.find(member(workers[0])).job.members.workers[rank] for rank in (0, 1)]
    after.wait(29, beating=beating)
    assert after.outputs(Tell) == []
    after.wait(2, beating=beating)
    told = after.outputs(Tell)
    why = "rank 2 (127.0.0.1, process 1002 on 'host-2') was lost: the service was started again, but it sent no"
    assert why in told[0].ended.reason


def test_a_job_that_was_ending_is_evicted_again_after_a_restart(store: Store) -> None:
    before = JobsHarness(store=store)
    workers = before.running()
    before.switch_answers = False
    before.abort(workers[0], "the loss is NaN")
    after = JobsHarness(store=store)
    assert len(after.outputs(Evict)) == 1
    after.jobs.attend(member(workers[1]), after.now)
    after.settle()
    (tell,) = after.outputs(Tell)
    assert "the loss is NaN" in tell.ended.reason, "workers that come back are told why it ended"
    after.wait(6)
    assert len(after.jobs) == 0
    assert after.slots_free == 4096
    assert store.load().jobs == []


def test_a_worker_that_had_left_before_a_restart_stays_out(store: Store) -> None:
    before = JobsHarness(store=store)
    workers = before.running()
    before.leave(workers[0])
    before.wait(0.1)
    after = JobsHarness(store=store)
    for worker in workers[1:]:
        after.jobs.attend(member(worker), after.now)
    assert after.refusal_of(lambda: after.jobs.attend(member(workers[0]), after.now))[0] == "NOT_FOUND"
    after.wait(3.5)
    assert {tell.ended.cause for tell in after.outputs(Tell)} == {join.JobEnded.WORKER_LEFT}


def test_created_jobs_and_drained_switches_are_remembered(store: Store) -> None:
    before = JobsHarness(store=store)
    token = before.create()
    before.jobs.drain("leaf", resume=False)
    before.settle()
    after = JobsHarness(store=store)
    worker = after.ask(job_token=token)
    assert worker.job.state is State.QUEUED
    after.jobs.drain("leaf", resume=True)
    after.settle()
    assert worker.job.state is State.RUNNING
    assert store.load().reservations == []


def test_a_restarted_service_keeps_running_jobs_and_refuses_waiting_workers() -> None:
    harness = JobsHarness()
    harness.running(job_name="running")
    forming = harness.ask(job_name="forming", world_size=2)
    harness.jobs.close("the controller is being restarted", harness.now, keep_jobs=True)
    harness.settle()
    assert harness.refused(forming)[0] == "UNAVAILABLE"
    assert harness.outputs(Tell) == []
    assert [job.name for job in harness.jobs.all()] == ["running"]


# Keys never repeat, however a service ends.


def key_of_a_short_job(harness: JobsHarness) -> int:
    harness.leave(harness.ask())
    return harness.outputs(Admit)[-1].entry.key


def test_keys_never_repeat_over_restarts(store: Store) -> None:
    keys = []
    for jobs in (1, 1, 2, BLOCK, BLOCK + 1, 3 * BLOCK, 1):
        harness = JobsHarness(store=store)
        keys += [key_of_a_short_job(harness) for _ in range(jobs)]
    assert len(set(keys)) == len(keys)


def test_a_running_job_keeps_its_key_over_a_restart(store: Store) -> None:
    (worker,) = JobsHarness(store=store).running(world_size=1)
    after = JobsHarness(store=store)
    (reconcile,) = after.outputs(Reconcile)
    assert [entry.key for entry in reconcile.entries] == [worker.job.lease.key]


def test_each_job_has_a_secret_of_its_own_which_survives_a_restart(store: Store) -> None:
    harness = JobsHarness(store=store)
    for name in ("first", "second"):
        harness.ask(job_name=name, attempt="lost answer")
    first, second = (grant.reply for grant in harness.outputs(Grant))
    assert len(first.members_secret) == len(second.members_secret) == 32
    assert first.members_secret != second.members_secret
    after = JobsHarness(store=store)
    after.ask(job_name="first", attempt="lost answer")
    (again,) = after.outputs(Grant)
    assert again.reply.members_secret == first.members_secret


@pytest.mark.parametrize("written", [False, True])
def test_a_crash_between_drawing_a_key_and_using_it_never_repeats_the_key(store: Store, *, written: bool) -> None:
    """The record is written before a switch hears of the key. A crash before that write leaves the key unused, and one
    after it may have used it."""
    key_of_a_short_job(JobsHarness(store=store))
    before = JobsHarness(store=store)
    worker = before.jobs.ask(join_request(), before.now)
    outputs = before.jobs.take_outputs()
    (admit,) = (output for output in outputs if isinstance(output, Admit))
    assert worker.job.lease.key == admit.entry.key
    if written:
        store.write(output for output in outputs if isinstance(output, Write))
    after = JobsHarness(store=store)
    keys = {key_of_a_short_job(after) for _ in range(2 * BLOCK)}
    assert (admit.entry.key in keys) == (not written)


def test_reserved_keys_are_stored_before_the_switch_hears_of_one(store: Store) -> None:
    harness = JobsHarness(store=store)
    for _ in range(2 * BLOCK):
        worker = harness.jobs.ask(join_request(), harness.now)
        outputs = harness.jobs.take_outputs()
        store.write(output for output in outputs[: outputs.index(admit_in(outputs))] if isinstance(output, Write))
        left_to_who_comes_next = store.keys()
        left_to_who_comes_next.reserve()
        next_keys = {left_to_who_comes_next.draw() for _ in range(BLOCK)}
        assert admit_in(outputs).entry.key not in next_keys
        harness.answer(admit_in(outputs))
        harness.leave(worker)


def admit_in(outputs: list[Output]) -> Admit:
    (admit,) = (output for output in outputs if isinstance(output, Admit))
    return admit
