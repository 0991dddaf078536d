"""What a tenant may have at a time, of everything that others want too. test_waiting.py has slots and jobs."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs import report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import LeaseState, State, Wants, Worker
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.resources import Amounts, JobShape
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, member, switch
from wiresum_lab.doubles.moving import in_the_way, restart, running, two

HOUR_MS = 3_600_000
HALF = [Quota("", switch_percent=50)]
RACKS = {"left": "10.0.1.1", "right": "10.0.2.1"}


def pair(slots: int = 64, jobs_max: int = 8, **tables: int) -> list[Switch]:
    """A job takes an entry of each table for each worker and thread."""

    def needs(shape: JobShape) -> Amounts:
        return Amounts(dict.fromkeys(tables, shape.contributors * shape.threads))

    sizes = SwitchSizes(slots, 360, jobs_max, tables=Amounts(tables))
    return [switch(name, sizes, needs=needs) for name in RACKS]


def racks() -> list[Switch]:
    """Below a spine."""
    sizes = SwitchSizes(64, 360, 8)
    leaves = [switch(name, sizes, [address], parent="spine") for name, address in RACKS.items()]
    return [switch("spine", sizes, NOBODY), *leaves]


def places(*workers: Worker) -> list[str]:
    return [worker.job.lease.switch_name for worker in workers]


def test_a_used_up_quota_lets_a_job_wait_until_others_have_ended() -> None:
    harness = JobsHarness(quotas=[Quota("vision", jobs=2)])
    first, small, second = (harness.ask(job_name=name, tenant="vision") for name in ("first", "small", "second"))
    other = harness.ask(job_name="other", tenant="sound")
    states = [worker.job.state for worker in (first, small, second, other)]
    assert states == [State.RUNNING, State.RUNNING, State.QUEUED, State.RUNNING]
    assert second.job.lease.wants is Wants.QUOTA
    harness.wait(1.5)
    assert harness.said(second).endswith(
        "the quota of tenant 'vision' is used up (2 jobs and any number of slots): taken are 2 jobs and 512 slots"
    )
    harness.leave(first)
    assert second.job.state is State.RUNNING


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
    harness = JobsHarness(limits=Limits(forming_ms_max=20_000))
    worker = harness.ask(job_name="held", world_size=2, tenant="vision", attempt="mine")
    for _ in range(6):
        harness.wait(3)
        harness.ask(job_name="held", world_size=2, tenant="vision", attempt="mine")
    assert worker.job.state is State.FORMING
    harness.wait(3)
    assert harness.refused(worker) == (
        "DEADLINE_EXCEEDED",
        "job 'held' was not complete after 20 s, the longest that a job may form: rank 1 of 2 did not come. Look at "
        "why, and start all workers again",
    )
    assert harness.ask(job_name="held", tenant="sound").job.state is State.RUNNING, "the name is free"


def test_a_stall_of_the_service_does_not_count_against_a_job_that_forms() -> None:
    harness = JobsHarness(limits=Limits(forming_ms_max=20_000))
    worker = harness.ask(world_size=2, timeout_ms=HOUR_MS)
    harness.wait(10)
    harness.now += 30
    harness.wait(5)
    assert worker.job.state is State.FORMING
    harness.wait(6)
    assert "the longest that a job may form" in harness.refused(worker)[1]


def test_a_job_that_waits_in_the_queue_is_not_given_up_with_those_that_form() -> None:
    harness = JobsHarness(quotas=[Quota("", jobs=1)], limits=Limits(forming_ms_max=5_000))
    first = harness.ask(job_name="first")
    second = harness.ask(job_name="second", timeout_ms=HOUR_MS)
    harness.jobs.attend(member(first), harness.now)
    harness.wait(8, beating=[first])
    assert second.job.state is State.QUEUED
    harness.leave(first)
    assert second.job.state is State.RUNNING


def test_a_lease_that_is_over_does_not_count_while_its_switch_cannot_forget_it() -> None:
    made = JobsHarness(switches=two(), quotas=[Quota("", jobs=1, slots=512)])
    (worker,) = running(made, world_size=1, slots=512)
    second, third = (made.ask(job_name=name, slots=512, timeout_ms=HOUR_MS) for name in ("second", "third"))
    made.change("first", "no answer")
    made.wait(1.5, beating=[worker])
    assert (worker.job.lease.switch_name, second.job.lease.wants) == ("second", Wants.QUOTA)
    made.leave(worker)
    assert (second.job.state, second.job.lease.switch_name) == (State.RUNNING, "second")
    (tenant,) = report.report(made.jobs, {}, made.now).tenants
    assert (tenant.jobs, tenant.slots) == (1, 512)
    made.change("first", "")
    assert (made.slots_free, third.job.lease.wants) == (512, Wants.QUOTA), "the tenant has its quota"


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_job_that_ended_at_a_lost_switch_does_not_count(lost_first: bool) -> None:
    made = JobsHarness(switches=two(), quotas=[Quota("", jobs=1)])
    (worker,) = running(made, world_size=1)
    waits = made.ask(job_name="waits", timeout_ms=HOUR_MS)
    if lost_first:
        made.change("first", "no answer")
        made.leave(worker)
    else:
        made.switch_answers = False
        made.leave(worker)
        assert waits.job.lease.wants is Wants.QUOTA, "the switch is being told"
        made.switch_answers = True
        made.change("first", "no answer")
    assert (waits.job.state, waits.job.lease.switch_name) == (State.RUNNING, "second")


def test_a_job_that_moves_counts_though_its_switch_is_lost() -> None:
    """No quota would stop it from going on besides another."""
    made = JobsHarness(switches=two(), quotas=[Quota("ours", jobs=1)])
    (worker,) = running(made, world_size=1, slots=512, tenant="ours")
    in_the_way(made, "theirs", 256)
    made.jobs.drain("first", resume=False)
    restart(made, "first")
    made.change("first", "no answer")
    assert (worker.job.state, worker.job.lease.state) == (State.MOVING, LeaseState.RELEASED)
    other = made.ask(job_name="other", slots=16, tenant="ours")
    assert (other.job.state, other.job.lease.wants) == (State.QUEUED, Wants.QUOTA)


def test_operators_alone_say_which_job_comes_before_others() -> None:
    harness = JobsHarness(SwitchSizes(slots=64, lanes_max=360, jobs_max=8), Limits(slots_least=64))
    holder = harness.ask(job_name="holder")
    harness.ask(job_name="patient")
    token = harness.create(job_name="urgent", tenant="vision", priority=7)
    urgent = harness.ask(job_name="urgent", tenant="vision", job_token=token)
    for leaves in (holder, urgent):
        harness.leave(leaves)
    assert harness.granted() == ["holder", "urgent", "patient"]


# At each switch.


def halt(made: JobsHarness, workers: list[Worker]) -> None:
    """By themselves, each a job."""
    for worker in workers:
        said = join.Halted(
            move_number=worker.job.move_number, positions=bytes(4 * worker.job.lease.slots), unasked=True
        )
        made.jobs.beat(worker, 1, made.now, said)
        made.settle()
    made.wait(0.5, beating=workers)


def test_a_tenant_takes_its_part_of_each_switch_and_no_more() -> None:
    harness = JobsHarness(switches=pair(slots=64), quotas=HALF)
    first, second = (harness.ask(job_name=f"greedy-{n}", tenant="greedy", slots=64) for n in range(2))
    assert sorted(places(first, second)) == ["left", "right"]
    assert (first.job.lease.slots, second.job.lease.slots) == (32, 32)
    third = harness.ask(job_name="greedy-2", tenant="greedy", slots=16)
    assert (third.job.state, third.job.lease.wants) == (State.QUEUED, Wants.QUOTA)
    harness.wait(1.5)
    assert harness.said(third).endswith(
        "the quota of tenant 'greedy' is used up (any number of jobs, any number of slots and 50% of each switch): "
        "taken are 2 jobs and 64 slots; one tenant may have 50% of left, 32 slots; its jobs have 32; "
        "one tenant may have 50% of right, 32 slots; its jobs have 32"
    )
    honest = harness.ask_all(2, job_name="honest", tenant="honest", slots=32)
    assert honest[0].job.lease.slots == 32
    harness.leave(first)
    assert (third.job.state, third.job.lease.switch_name) == (State.RUNNING, first.job.lease.switch_name)


@pytest.mark.parametrize(("sizes", "jobs"), [({"jobs_max": 4}, 4), ({"admit": 8}, 4), ({"jobs_max": 4, "admit": 4}, 2)])
def test_job_numbers_and_table_entries_of_each_switch_count_as_slots_do(sizes: dict[str, int], jobs: int) -> None:
    """A job of two workers takes two entries. Both switches together could have twice as many jobs."""
    harness = JobsHarness(switches=pair(slots=1024, **sizes), quotas=HALF)

    def ask(tenant: str, number: int) -> Worker:
        return harness.ask_all(2, job_name=f"{tenant}-{number}", tenant=tenant, threads_max=1, slots=16)[0]

    first = [ask("greedy", n) for n in range(jobs + 1)]
    assert [worker.job.state for worker in first] == [State.RUNNING] * jobs + [State.QUEUED]
    assert first[-1].job.lease.wants is Wants.QUOTA
    assert [ask("honest", n).job.state for n in range(jobs)] == [State.RUNNING] * jobs


def test_a_job_gets_what_its_tenants_part_leaves_it() -> None:
    harness = JobsHarness(switches=pair(slots=64)[:1], quotas=HALF)
    slots = {
        wanted: harness.ask(job_name=f"of-{wanted}", tenant="ours", slots=wanted).job.lease.slots for wanted in (16, 64)
    }
    assert slots == {16: 16, 64: 16}


def test_jobs_that_get_slots_at_once_count_for_each_other() -> None:
    harness = JobsHarness(switches=pair(slots=64)[:1], quotas=HALF)
    harness.jobs.hold_up("the disk is full")
    first, second, third = (harness.ask(job_name=f"job-{n}", tenant="ours", slots=32) for n in range(3))
    harness.jobs.hold_up("")
    harness.settle()
    assert [worker.job.state for worker in (first, second, third)] == [State.RUNNING, State.QUEUED, State.QUEUED]
    harness.leave(first)
    assert [worker.job.state for worker in (second, third)] == [State.RUNNING, State.QUEUED]


def test_a_job_counts_at_each_switch_of_its_tree() -> None:
    harness = JobsHarness(switches=racks(), quotas=HALF)

    def ask(job_name: str, *leaves: str, tenant: str) -> Worker:
        ends = [join.Endpoint(address=RACKS[leaf], port=5000 + 16 * rank) for rank, leaf in enumerate(leaves)]
        return [
            harness.ask(job_name=job_name, rank=rank, world_size=len(ends), endpoint=end, tenant=tenant, slots=64)
            for rank, end in enumerate(ends)
        ][-1]

    both = ask("both", "left", "right", tenant="greedy")
    assert (both.job.lease.slots, sorted(both.job.lease.nodes)) == (32, ["left", "right", "spine"])
    assert [ask(leaf, leaf, tenant="greedy").job.lease.wants for leaf in RACKS] == [Wants.QUOTA, Wants.QUOTA]
    assert ask("theirs", "left", "right", tenant="honest").job.lease.slots == 32


def test_a_job_that_needs_more_than_a_tenants_part_of_every_switch_is_refused() -> None:
    harness = JobsHarness(switches=pair(admit=14), quotas=HALF)
    assert harness.ask_all(7, job_name="most", threads_max=1)[0].job.state is State.RUNNING
    code, text = harness.refused(harness.ask_all(8, job_name="more", threads_max=1)[0])
    assert code == "RESOURCE_EXHAUSTED"
    assert "one tenant may have 50% of left, 7 entries of table admit, and this job needs 8 (switch_percent in" in text
    code, text = harness.refusal_of(lambda: harness.create(job_name="created", slots=64))
    assert (code, text) == (
        "RESOURCE_EXHAUSTED",
        "64 slots are more than its tenant may have of a switch here, 50%, 32",
    )


def test_a_switch_is_not_kept_for_a_job_whose_tenant_has_its_part_of_it() -> None:
    """Else it would stand idle: the job cannot have it."""
    harness = JobsHarness(switches=pair(slots=64), quotas=HALF, limits=Limits(overtaken_max=2))
    at_left = harness.ask(job_name="greedy", tenant="greedy", slots=32)
    honest = [harness.ask(job_name=f"honest-{n}", tenant=f"honest-{n}", slots=32) for n in range(3)]
    assert places(at_left, *honest) == ["left", "right", "left", "right"]
    harness.leave(honest[1])
    waits = harness.ask(job_name="greedy-2", tenant="greedy", slots=32)
    assert waits.job.lease.wants is Wants.ROOM, "right has none"
    for n in range(6):
        other = harness.ask(job_name=f"other-{n}", tenant="other", slots=32)
        assert (other.job.state, other.job.lease.switch_name) == (State.RUNNING, "left")
        harness.leave(other)


def test_a_job_that_has_lost_its_switch_goes_on_beyond_its_tenants_part_of_another() -> None:
    made = JobsHarness(switches=pair(slots=1024), quotas=HALF)
    ours = [running(made, name, 1, tenant="ours", slots=512)[0] for name in ("a", "b")]
    assert sorted(places(*ours)) == ["left", "right"]
    made.jobs.drain("left", resume=False)
    made.wait(0.5, beating=ours)
    assert places(*ours) == ["right", "right"]
    halt(made, ours)
    assert [worker.job.state for worker in ours] == [State.RUNNING, State.RUNNING], "what it has it may have again"


def test_a_job_that_halts_by_itself_takes_no_more_of_another_switch_than_its_tenants_part() -> None:
    made = JobsHarness(switches=pair(slots=1024), quotas=HALF)
    ours = [running(made, name, 1, tenant="ours", slots=512)[0] for name in ("a", "b")]
    before = places(*ours)
    made.ask(job_name="theirs", tenant="theirs", slots=512)  # at the left, so that there is room at the right first
    for _ in range(3):
        halt(made, ours)
        assert [worker.job.state for worker in ours] == [State.RUNNING, State.RUNNING]
        assert places(*ours) == before
    assert ours[0].job.move_number == 3


def test_one_that_waits_for_its_own_switch_holds_up_none_that_must_leave_another() -> None:
    switches = [*pair(slots=64), switch("spare", SwitchSizes(64, 360, 8))]
    made = JobsHarness(switches=switches, quotas=HALF)
    ours = [running(made, name, 1, tenant="ours", slots=32)[0] for name in ("a", "b", "c")]
    assert sorted(places(*ours)) == ["left", "right", "spare"]
    at_left, at_right, _ = sorted(ours, key=lambda worker: worker.job.lease.switch_name)
    for name in ("left", "right"):
        made.create(job_name=name, world_size=1, slots=32, switch_name=name)
        made.ask(job_name=name, job_token=made.jobs.reservations.get(name).job_token)  # type: ignore[union-attr]
    made.switch_answers = False
    made.jobs.beat(at_left, 1, made.now, join.Halted(unasked=True))
    made.settle()
    assert at_left.job.move.lease.wants is Wants.ROOM  # type: ignore[union-attr]
    made.jobs.drain("right", resume=False)
    made.wait(0.5, beating=ours)
    lease = at_right.job.move.lease  # type: ignore[union-attr]
    assert (lease.state, lease.switch_name) == (LeaseState.ADMITTING, "spare")  # type: ignore[union-attr]


@pytest.mark.parametrize("jobs", [4, 40])
def test_what_a_tenant_has_is_not_counted_anew_for_each_job(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = JobsHarness(switches=pair(slots=4096, jobs_max=256, admit=4096), quotas=HALF)
    for number in range(jobs):
        harness.ask(job_name=f"job-{number}", tenant="ours", slots=16)
    sums, add = [0], Amounts.__add__
    monkeypatch.setattr(Amounts, "__add__", lambda a, b: sums.append(1) or add(a, b))  # type: ignore[func-returns-value]
    worker = harness.ask(job_name="next", tenant="ours", slots=16)
    assert (worker.job.state, len(sums) < 30) == (State.RUNNING, True)


def test_the_report_says_what_a_tenant_has_of_each_switch() -> None:
    harness = JobsHarness(switches=pair(slots=64, admit=32), quotas=[Quota("greedy", switch_percent=50)])
    harness.ask(job_name="first", tenant="greedy", slots=64, threads_max=4)
    harness.ask(job_name="other", tenant="free", slots=64, threads_max=1)
    free, greedy = report.report(harness.jobs, {}, harness.now).tenants
    (at_left,) = greedy.switches
    assert (greedy.switch_percent, at_left.switch_name) == (50, "left")
    assert dict(at_left.room) == {"slots": 32, "jobs": 4, "admit": 16}
    assert dict(at_left.room_taken) == {"slots": 32, "jobs": 1, "admit": 4}
    (at_right,) = free.switches
    assert (free.switch_percent, at_right.switch_name, at_right.room["slots"]) == (100, "right", 64)
