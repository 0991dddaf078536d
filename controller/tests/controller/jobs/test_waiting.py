"""Queued jobs: the order in which they get slots, and what their workers are told."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.cluster import Grounds
from wiresum.controller.jobs.job import Asker, Lease, State, Wants, Worker
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.outputs import Admit, Grant, Refuse, Wait
from wiresum.controller.jobs.report import report
from wiresum.controller.jobs.waiting import FRUITLESS_MAX, WaitingRoom
from wiresum.controller.resources import Amounts
from wiresum_lab.doubles.controller import JobsHarness, join_request, member, switch

SIXTY_FOUR = SwitchSizes(slots=64, lanes_max=360, jobs_max=8)
FURTHER = join.Admission.FURTHER
PATIENT = Limits(slots_least=64, join_timeout_ms_default=3_600_000)
"""A job gets all the slots that it asks for, or waits."""


def test_priority_decides_and_then_the_time_of_waiting() -> None:
    harness = JobsHarness(SIXTY_FOUR)
    running = harness.ask(job_name="running", slots=64)
    for name, priority in (("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 0)):
        token = harness.create(job_name=name, slots=64, priority=priority)
        harness.ask(job_name=name, job_token=token)
    for _ in range(5):
        harness.leave(running)
        running = harness.outputs(Grant)[-1].worker
    assert harness.granted() == ["running", "b", "d", "a", "e", "c"]


def test_a_large_job_is_overtaken_a_bounded_number_of_times() -> None:
    harness = JobsHarness(SIXTY_FOUR, Limits(slots_least=64, overtaken_max=4))
    small = [harness.ask(job_name=f"before-{n}", slots=16) for n in range(4)]
    large = harness.ask(job_name="large", slots=64)
    for n in range(20):  # small jobs come and end for ever
        if large.job.state is not State.QUEUED:
            break
        harness.leave(small.pop(0))
        newcomer = harness.ask(job_name=f"after-{n}", slots=16)
        small += [newcomer] if newcomer.job.state is State.RUNNING else []
    assert large.job.state is State.RUNNING
    assert n == 4 + 4, "four overtook it, and then the four running jobs had to end"
    assert harness.switches[0].pool.slots_free == 0


def test_of_jobs_that_ask_alike_one_is_tried_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = JobsHarness(SIXTY_FOUR, Limits(slots_least=64, waiting_per_host_max=1000))
    running = harness.ask(job_name="running", slots=64)
    queued = [harness.ask(job_name=f"queued-{n}", slots=64) for n in range(100)]
    other = harness.ask(job_name="other", slots=64, tenant="another")
    tried: list[str] = []
    find = harness.jobs.waiting._find_place

    def find_and_count(lease: Lease, kept: Set[str]) -> Grounds | Wants:
        tried.append(lease.job.name)
        return find(lease, kept)

    monkeypatch.setattr(harness.jobs.waiting, "_find_place", find_and_count)
    newcomer = harness.ask(job_name="newcomer", slots=64)
    assert tried == ["queued-0", "other"]
    tried.clear()
    harness.leave(running)
    assert tried == ["queued-0", "queued-1", "other"], "who asks alike is tried again after a job got slots"
    assert {worker.job.lease.wants for worker in (*queued[1:], other, newcomer)} == {Wants.ROOM}
    harness.wait(2)
    assert "number 101 of 101" in harness.said(newcomer)


def test_a_job_that_asks_alike_is_tried_when_the_first_lacks_a_worker() -> None:
    harness = JobsHarness(SIXTY_FOUR, PATIENT)
    running = harness.ask(job_name="running", slots=64)
    first, second = (harness.ask(job_name=name, slots=64) for name in ("first", "second"))
    harness.jobs.hung_up(first, first.call, harness.now)
    harness.leave(running)
    assert (first.job.state, second.job.state) == (State.QUEUED, State.RUNNING)
    assert first.job.lease.wants is Wants.WORKER


def test_slots_kept_for_a_job_are_free_again_when_it_gives_up() -> None:
    harness = JobsHarness(SIXTY_FOUR, Limits(slots_least=64, overtaken_max=0))
    harness.ask(job_name="running", slots=16)
    harness.ask(job_name="large", slots=64, timeout_ms=2000)
    small = harness.ask(job_name="small", slots=16)
    assert small.job.lease.wants is Wants.TURN
    harness.wait(1.5)
    assert "slots are kept for jobs before it" in harness.said(small)
    harness.wait(1)
    assert small.job.state is State.RUNNING


def test_a_job_that_waits_only_for_its_quota_blocks_no_other() -> None:
    quotas = [Quota("vision", jobs=1)]
    harness = JobsHarness(SIXTY_FOUR, Limits(overtaken_max=0), quotas=quotas)
    first = harness.ask(job_name="first", slots=16, tenant="vision")
    token = harness.create(job_name="second", slots=16, tenant="vision", priority=9)
    second = harness.ask(job_name="second", tenant="vision", job_token=token)
    others = [harness.ask(job_name=f"other-{n}", slots=16) for n in range(3)]
    assert second.job.lease.wants is Wants.QUOTA
    assert {other.job.state for other in others} == {State.RUNNING}
    harness.leave(first)
    assert second.job.state is State.RUNNING


@pytest.mark.parametrize(
    ("quota", "fields", "advice"),
    [
        (Quota("vision", jobs=0), {"tenant": "vision"}, "does not allow any job: it is 0 jobs and any number of slots"),
        (Quota("vision", slots=0), {"tenant": "vision"}, "it is any number of jobs and 0 slots"),
        (Quota("", jobs=0), {"tenant": "unnamed"}, "under [[tenant]]"),
        (Quota("", jobs=0), {}, "jobs without a tenant (WIRESUM_TENANT)"),
    ],
)
def test_a_job_that_can_never_run_is_refused_at_once(quota: Quota, fields: dict[str, object], advice: str) -> None:
    harness = JobsHarness(quotas=[quota])
    code, text = harness.refusal_of(lambda: harness.ask(**fields))
    assert code == "RESOURCE_EXHAUSTED"
    assert advice in text
    assert len(harness.jobs) == 0


def test_a_tenant_without_a_quota_may_use_everything() -> None:
    harness = JobsHarness(quotas=[Quota("vision", jobs=0)])
    assert harness.ask(tenant="sound", slots=4096).job.state is State.RUNNING


def test_a_waiting_worker_is_told_position_reason_and_holders_of_slots() -> None:  # R7.2, R7.8
    harness = JobsHarness(SwitchSizes(slots=64, lanes_max=360, jobs_max=3), PATIENT)
    harness.ask_all(2, job_name="holder", slots=64)
    first = harness.ask(job_name="first", slots=64)
    second = harness.ask(job_name="second", slots=64)
    harness.wait(1.5)
    text = "no 64 slots in a row are free at leaf, where 0 of 64 are: job 'holder' has 64"
    assert harness.said(first) == f"job 'first' is number 1 of 2 in the queue for slots: {text}"
    assert harness.said(second) == f"job 'second' is number 2 of 2 in the queue for slots: {text}"


def test_the_lack_of_a_free_job_number_is_reported() -> None:
    harness = JobsHarness(SwitchSizes(slots=4096, lanes_max=360, jobs_max=1))
    harness.ask(job_name="holder")
    waiting = harness.ask(job_name="waits")
    harness.wait(1.5)
    assert harness.said(waiting).endswith("leaf has all the jobs that it can hold, 1")


def test_the_reason_for_waiting_is_sent_once_and_again_when_it_changes() -> None:
    harness = JobsHarness()
    first = harness.ask(rank=0, world_size=3)
    harness.wait(0.8)
    assert harness.outputs(Wait) == [], "a short wait is not reported"
    harness.wait(5)
    assert harness.said(first) == "job 'a-job' is not complete: waiting for ranks 1, 2 of 3"
    second = harness.ask(rank=1, world_size=3)
    harness.wait(2)
    assert harness.said(first) == harness.said(second) == "job 'a-job' is not complete: waiting for rank 2 of 3"
    assert len(harness.outputs(Wait)) == 3


def test_those_that_wait_hear_why_a_worker_was_refused_until_it_is_there() -> None:  # R7.2
    harness = JobsHarness()
    first = harness.ask(rank=0, world_size=3, timeout_ms=20_000)

    def refused(rank: int = 1, tenant: str = "") -> None:
        harness.jobs.note_refused("a-job", rank, Asker(address="10.0.0.7"), tenant, "it has no token")

    refused(tenant="strangers")
    refused(rank=3)
    harness.wait(2)
    assert harness.said(first) == "job 'a-job' is not complete: waiting for ranks 1, 2 of 3"
    refused()
    harness.wait(2)
    why = "(rank 1, which called from 10.0.0.7, was refused: it has no token)"
    assert harness.said(first) == f"job 'a-job' is not complete: waiting for ranks 1, 2 of 3 {why}"
    harness.ask(rank=1, world_size=3)
    harness.wait(2)
    assert harness.said(first).endswith("waiting for rank 2 of 3")
    refused(rank=2)
    harness.wait(20)
    assert f"rank 2 of 3 {why.replace('rank 1', 'rank 2')} did not come" in harness.outputs(Refuse)[0].refusal.text


@pytest.mark.parametrize("admission", [join.Admission.AT_ONCE, 7], ids=["as it says", "by a word of a later version"])
def test_a_job_that_prefers_not_to_wait_is_refused_at_once(admission: join.Admission) -> None:  # R7.8
    harness = JobsHarness(SIXTY_FOUR, PATIENT)
    harness.ask(job_name="holder", slots=64)
    workers = [
        harness.ask(job_name="other", rank=rank, world_size=2, slots=64, admission=how)
        for rank, how in enumerate((join.Admission.QUEUE, admission))
    ]
    refused = harness.outputs(Refuse)
    assert [output.worker for output in refused] == workers
    assert {output.refusal.code for output in refused} == {"RESOURCE_EXHAUSTED"}
    assert "job 'holder' has 64" in refused[0].refusal.text
    assert harness.ask(job_name="next", slots=64).job.state is State.QUEUED, "its place in the queue is free"


def test_a_job_that_is_queued_for_too_long_is_told_so() -> None:
    harness = JobsHarness(SIXTY_FOUR)
    harness.ask(job_name="holder", slots=64)
    waiting = harness.ask(job_name="waits", timeout_ms=2000)
    harness.wait(2.5)
    code, text = harness.refused(waiting)
    assert code == "DEADLINE_EXCEEDED"
    assert "got no slots in time" in text
    assert len(harness.jobs) == 1


def test_the_number_of_queued_jobs_is_bounded() -> None:
    harness = JobsHarness(limits=Limits(waiting_max=2))
    for name in ("a", "b"):
        harness.ask(job_name=name, world_size=2)
    code, text = harness.refusal_of(lambda: harness.ask(job_name="c", world_size=2))
    assert code == "RESOURCE_EXHAUSTED"
    assert "2 jobs form or wait for slots, and no more can" in text


# Several switches.


def test_a_job_goes_to_the_switch_of_its_hosts_with_most_free_slots() -> None:
    left, right = (
        switch("left", addresses=("10.0.0.1", "10.0.0.2")),
        switch("right", addresses=("10.0.0.2", "10.0.0.3")),
    )
    harness = JobsHarness(switches=[left, right])

    def place(name: str, *addresses: str) -> str:
        for rank, address in enumerate(addresses):
            worker = harness.ask(job_name=name, rank=rank, world_size=len(addresses), endpoint=_endpoint(address))
        return worker.job.lease.switch_name

    assert place("only-left", "10.0.0.1", "10.0.0.2") == "left"
    assert place("either-and-right-is-empty", "10.0.0.2") == "right"
    assert place("either-and-both-have-as-many", "10.0.0.2") == "left"
    assert place("only-right", "10.0.0.3", "10.0.0.2") == "right"
    assert [output.switch_name for output in harness.outputs(Admit)] == ["left", "right", "left", "right"]
    assert {grant.reply.switch_name for grant in harness.outputs(Grant)} == {"left", "right"}


def _endpoint(address: str) -> join.Endpoint:
    return join.Endpoint(address=address, port=5000)


def test_queued_jobs_are_bounded_for_each_host_and_others_get_their_places() -> None:
    harness = JobsHarness(limits=Limits(waiting_per_host_max=3))
    greedy, other = Asker("greedy at 10.0.0.66", "10.0.0.66"), Asker("other at 10.0.0.7", "10.0.0.7")

    def ask(name: str, asker: Asker) -> Worker:
        return harness.jobs.ask(join_request(job_name=name, rank=0, world_size=2), harness.now, asker)

    for number in range(3):
        ask(f"greedy-{number}", greedy)
    code, text = harness.refusal_of(lambda: ask("one-more", greedy))
    assert code == "RESOURCE_EXHAUSTED"
    assert "3 jobs that 10.0.0.66 asked for form or wait" in text
    ask("innocent", other)
    found = {job.name: job.caller for job in report(harness.jobs, {}, harness.now).jobs}
    assert found["greedy-0"] == "greedy at 10.0.0.66"
    assert found["innocent"] == "other at 10.0.0.7"


def test_an_idle_lease_is_revoked_only_when_others_wait() -> None:
    harness = JobsHarness(SwitchSizes(slots=16, lanes_max=64, jobs_max=8), Limits(idle_ms_max=80_000))
    (idle,) = harness.running(world_size=1, job_name="idle", slots=16)
    harness.contributions[idle.job.lease.number] = [0]
    harness.wait(300, beating=[idle])
    assert idle.job.state is State.RUNNING, "nobody needs the slots"
    waiting = harness.ask(job_name="waits", slots=16, timeout_ms=1_000_000)
    for count in range(1, 20):
        harness.results[idle.job.lease.number] = count
        harness.wait(15, beating=[idle])
    assert idle.job.state is State.RUNNING, "the job makes progress, if slowly"
    for round_newest in range(100):
        harness.wait(1, beating=[idle] if waiting.job.state is State.QUEUED else [waiting], round_newest=round_newest)
        if waiting.job.state is State.RUNNING and waiting.stream == 0:
            harness.jobs.attend(member(waiting), harness.now)
    assert idle.job.ended is not None, "the worker's own claim of progress does not count"
    assert "has summed nothing" in idle.job.ended.reason
    assert waiting.job.state is State.RUNNING


# Jobs that are not their program's first.


def slots_of(worker: Worker) -> int:
    return worker.job.lease.slots if worker.job.state is State.RUNNING else 0


def test_further_jobs_take_less_as_the_switch_fills_and_leave_a_quarter_of_it() -> None:  # R7.9
    harness = JobsHarness(SwitchSizes(slots=4096, lanes_max=360, jobs_max=256))
    assert slots_of(harness.ask(job_name="first")) == 256
    granted = []
    while (slots := slots_of(further := harness.ask(job_name=f"further-{len(granted)}", admission=FURTHER))) > 0:
        granted.append(slots)
    assert granted == sorted(granted, reverse=True) and (granted[0], granted[-1]) == (64, 16)
    assert len(granted) > 100
    assert harness.switches[0].pool.slots_free == 1024
    code, text = harness.refused(further)
    assert code == "RESOURCE_EXHAUSTED"
    assert "no 16 slots in a row are free at leaf, where 1024 of 4096 are (one in 4 is kept for other programs)" in text
    assert [slots_of(harness.ask(job_name=f"program-{number}")) for number in range(5)] == [256, 256, 256, 256, 0]


def test_a_further_job_gets_the_slots_that_it_asks_for_but_not_those_that_are_kept() -> None:  # R7.9
    harness = JobsHarness(SwitchSizes(slots=1024, lanes_max=360, jobs_max=8))
    granted = [slots_of(harness.ask(job_name=f"{n}", slots=512, admission=FURTHER)) for n in range(3)]
    assert granted == [512, 256, 0]


def test_further_jobs_leave_job_numbers_and_room_in_tables_to_others() -> None:  # R7.9
    sizes = SwitchSizes(slots=4096, lanes_max=360, jobs_max=8)
    harness = JobsHarness(sizes)
    assert sum(slots_of(harness.ask(job_name=f"{n}", admission=FURTHER)) > 0 for n in range(8)) == 6
    assert slots_of(harness.ask(job_name="a-program")) == 256
    small = replace(sizes, jobs_max=64, tables=Amounts({"admit": 20}))
    harness = JobsHarness(switches=[switch(sizes=small, needs=lambda _shape: Amounts({"admit": 2}))])
    further = [harness.ask(job_name=f"{n}", admission=FURTHER) for n in range(8)]
    assert [slots_of(worker) > 0 for worker in further] == [True] * 7 + [False]
    said = "table admit of leaf has room for 20 entries; 14 are taken and this job needs 2 (one in 4 is kept for other"
    assert said in harness.refused(further[-1])[1]
    assert [slots_of(harness.ask(job_name=f"program-{n}")) > 0 for n in range(4)] == [True] * 3 + [False]


def test_a_queue_of_jobs_that_all_ask_otherwise_is_not_tried_again_for_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The calls of a tenant, not to wait for slots but to keep the service busy."""
    sizes = SwitchSizes(slots=4096, lanes_max=360, jobs_max=64, threads_max=16)
    harness = JobsHarness(switches=[switch("full", sizes, ["10.0.0.1"]), switch("free", sizes, ["10.0.0.2"])])
    full, free = (join.Endpoint(address=address, port=5000) for address in ("10.0.0.1", "10.0.0.2"))
    holder = harness.ask(job_name="holder", slots=4096, endpoint=full)
    queued = [
        harness.ask(job_name=f"{threads}-{bits}", slots=1 << bits, threads_max=threads, endpoint=full, attempt="mine")
        for threads in range(1, 16)
        for bits in range(4, 12)
    ]
    harness.wait(0.1)
    tried: list[Lease] = []
    find = WaitingRoom._find_place

    def find_and_note(room: WaitingRoom, lease: Lease, kept: Set[str]) -> Grounds | Wants:
        tried.append(lease)
        return find(room, lease, kept)

    monkeypatch.setattr(WaitingRoom, "_find_place", find_and_note)
    for _ in range(20):
        harness.ask(job_name="1-4", slots=16, threads_max=1, endpoint=full, attempt="mine")
    assert len(tried) <= FRUITLESS_MAX + len(queued)
    patient, in_a_hurry = (
        harness.ask(job_name=f"at-free-{how}", endpoint=free, admission=how)
        for how in (join.Admission.QUEUE, join.Admission.AT_ONCE)
    )
    harness.leave(holder)
    assert {worker.job.state for worker in (patient, in_a_hurry, *queued)} == {State.QUEUED}
    harness.wait(0.1)
    assert {worker.job.state for worker in (patient, in_a_hurry, queued[0])} == {State.RUNNING}
