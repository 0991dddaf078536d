"""The life of a job under an injected clock, without server or threads."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import Endpoint, SwitchSizes
from wiresum.controller.jobs import report
from wiresum.controller.jobs.job import Presence
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.outputs import Admit, Evict, Grant, Refuse, Tell
from wiresum_lab.doubles.controller import JobsHarness, switch


def test_all_workers_get_the_same_grant_when_the_last_one_has_asked() -> None:  # R2.17, R7.1, R7.3, R7.13
    harness = JobsHarness()
    harness.ask(rank=1, world_size=2, threads_max=3, lanes_max=200)
    assert harness.outputs(Grant) == []
    harness.ask(rank=0, world_size=2, threads_max=16, lanes_max=1000)
    grants = harness.outputs(Grant)
    assert [grant.worker.rank for grant in grants] == [1, 0]
    for grant in grants:
        reply = grant.reply
        assert (reply.worker, reply.workers) == (grant.worker.rank, 2)
        assert (reply.threads, reply.lanes, reply.slots) == (2, 200, 256)
        assert reply.heartbeat_interval_ms == 500
        assert (reply.switch_endpoint.address, reply.switch_endpoint.port) == ("10.0.0.1", 43488)
        assert reply.token == grant.worker.token
    assert grants[0].reply.key == grants[1].reply.key != 0
    assert grants[0].reply.token != grants[1].reply.token
    assert grants[0].reply.members_secret == grants[1].reply.members_secret
    (admit,) = harness.outputs(Admit)
    assert admit.entry.endpoints == (Endpoint("127.0.0.1", 5000), Endpoint("127.0.0.1", 5016))


@pytest.mark.parametrize(
    ("asked", "granted"),
    [([0, 0], 256), ([64, 0], 64), ([64, 100], 64), ([100, 100], 64), ([32768, 0], 4096), ([1, 0], 1)],
)
def test_slots_are_the_smallest_request_rounded_to_a_power_of_two(asked: list[int], granted: int) -> None:  # R7.1
    harness = JobsHarness()
    for rank, slots in enumerate(asked):
        harness.ask(rank=rank, world_size=2, slots=slots)
    assert [grant.reply.slots for grant in harness.outputs(Grant)] == [granted, granted]


def ports(harness: JobsHarness) -> list[int]:
    """The offset of each job's first port from the switch's base port, in the order of the grants."""
    return [grant.reply.switch_endpoint.port - 43488 for grant in harness.outputs(Grant)]


def test_a_job_gets_the_ports_with_the_fewest_threads() -> None:  # R2.4
    harness = JobsHarness()
    first, *_ = [harness.ask(job_name=f"one-{number}", threads_max=1, slots=16) for number in range(3)]
    harness.ask(job_name="two", threads_max=2, slots=16)
    assert ports(harness) == [0, 1, 2, 4]
    assert [admit.entry.port_offset for admit in harness.outputs(Admit)] == [0, 1, 2, 4]
    harness.leave(first)
    harness.ask(job_name="in-its-place", threads_max=1, slots=16)
    harness.ask(job_name="wide", threads_max=8, slots=16)
    harness.ask(job_name="all", threads_max=16, slots=16)
    assert ports(harness)[4:] == [0, 8, 0]


def test_only_ports_that_the_switch_listens_at_are_granted() -> None:  # R2.4
    harness = JobsHarness(SwitchSizes(slots=4096, lanes_max=360, jobs_max=64, threads_max=3))
    for number in range(4):
        harness.ask(job_name=f"one-{number}", threads_max=1, slots=16)
    harness.ask(job_name="two", threads_max=2, slots=16)
    assert ports(harness) == [0, 1, 2, 0, 0]


def test_a_job_is_refused_when_no_key_is_left_and_waiting_jobs_keep_theirs() -> None:
    sequence = KeySequence(bytes(16), bits=4)
    harness = JobsHarness(keys=Keys(sequence, reserved=sequence.length - 3))
    waiting = [harness.ask(job_name=f"job-{number}", rank=0, world_size=2) for number in range(3)]
    code, text = harness.refusal_of(lambda: harness.ask(job_name="one-more"))
    assert (code, "all keys have been used" in text) == ("RESOURCE_EXHAUSTED", True)
    for worker in waiting:
        harness.ask(job_name=worker.job.name, rank=1, world_size=2)
    assert len({admit.entry.key for admit in harness.outputs(Admit)}) == 3
    assert harness.refusal_of(lambda: harness.ask(job_name="one-more"))[0] == "RESOURCE_EXHAUSTED"


def test_another_world_size_is_refused_and_the_job_keeps_forming() -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=2)
    code, text = harness.refusal_of(lambda: harness.ask(rank=1, world_size=3))
    assert code == "FAILED_PRECONDITION"
    assert "2 workers, says rank 0 (127.0.0.1, process 1000 on 'host-0'), but this worker says 3" in text
    harness.ask(rank=1, world_size=2)
    assert len(harness.outputs(Grant)) == 2


def test_port_ranges_of_workers_on_one_host_must_not_overlap() -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=2, threads_max=4, endpoint=join.Endpoint(address="127.0.0.1", port=5000))
    overlapping = join.Endpoint(address="127.0.0.1", port=5003)
    code, text = harness.refusal_of(lambda: harness.ask(rank=1, world_size=2, endpoint=overlapping))
    assert code == "INVALID_ARGUMENT"
    assert "overlap" in text
    harness.ask(rank=1, world_size=2, endpoint=join.Endpoint(address="127.0.0.1", port=5004))
    assert len(harness.outputs(Grant)) == 2


def test_all_are_told_who_is_missing_when_the_time_is_up() -> None:
    harness = JobsHarness()
    harness.ask(rank=0, world_size=3, timeout_ms=60_000)
    harness.ask(rank=1, world_size=3, timeout_ms=2000)
    harness.wait(1.5)
    assert harness.outputs(Refuse) == []
    harness.wait(1)
    refused = harness.outputs(Refuse)
    assert {output.worker.rank for output in refused} == {0, 1}
    assert {output.refusal.code for output in refused} == {"DEADLINE_EXCEEDED"}
    assert "rank 2 of 3 did not come" in refused[0].refusal.text
    harness.ask(rank=0, world_size=1)
    assert len(harness.outputs(Grant)) == 1, "the name is free again"


def test_a_lost_worker_ends_the_job_and_the_lease_is_freed_once_the_others_know() -> None:  # R7.15, R7.16
    harness = JobsHarness()
    workers = harness.running()
    harness.break_streams(workers[1])
    others = [workers[0], workers[2]]
    harness.wait(2.8, beating=others)
    assert harness.outputs(Tell) == [], "it may come back"
    harness.wait(0.4, beating=others)
    told = harness.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 2}
    for tell in told:
        assert tell.ended.cause == join.JobEnded.WORKER_LOST
        assert tell.ended.worker == workers[1].peer()
        assert "rank 1 (127.0.0.1, process 1001 on 'host-1') was lost" in tell.ended.reason
    assert len(harness.outputs(Evict)) == 1
    assert harness.slots_free == 4096 - 256, "not before the others know"
    harness.jobs.told(workers[0], harness.now)
    assert len(harness.jobs) == 1
    harness.leave(workers[2])
    assert len(harness.jobs) == 0
    assert harness.slots_free == 4096


def test_the_name_of_an_ending_job_is_temporarily_unavailable() -> None:
    harness = JobsHarness()
    leaving = harness.running(job_name="leaving")
    harness.leave(leaving[0])
    assert harness.refusal_of(lambda: harness.ask(job_name="leaving", rank=0, world_size=3))[0] == "UNAVAILABLE"
    workers = harness.running()
    harness.break_streams(workers[0])
    harness.wait(3.2)
    code, text = harness.refusal_of(lambda: harness.ask(rank=0, world_size=3))
    assert code == "UNAVAILABLE"
    assert "rank 0 (127.0.0.1, process 1000 on 'host-0') was lost" in text


def test_workers_that_stay_are_told_soon_after_another_has_left() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.leave(workers[1])
    harness.wait(2.8, beating=[workers[0], workers[2]])
    assert harness.outputs(Tell) == []
    harness.wait(0.4, beating=[workers[0], workers[2]])
    told = harness.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 2}
    assert all(tell.ended.cause == join.JobEnded.WORKER_LEFT for tell in told)
    assert all(tell.ended.worker == workers[1].peer() for tell in told)
    assert "rank 1 (127.0.0.1, process 1001 on 'host-1') has left" in told[0].ended.reason


def test_an_abort_names_the_worker_and_its_reason() -> None:  # R4.31, R7.15
    harness = JobsHarness()
    workers = harness.running()
    harness.abort(workers[2], "out of memory" + 10_000 * "!")
    told = harness.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 1, 2}
    assert told[0].ended.cause == join.JobEnded.ABORTED_BY_WORKER
    assert told[0].ended.worker.rank == 2
    assert "rank 2 (127.0.0.1, process 1002 on 'host-2') ended the job: out of memory" in told[0].ended.reason
    assert len(told[0].ended.reason) < 2000
    harness.abort(workers[1], "second")
    assert len(harness.outputs(Tell)) == 3, "the first cause stands"


def wrong_sums(harness: JobsHarness) -> tuple[dict[str, int], list[int]]:
    """By switch, and by worker."""
    found = report.report(harness.jobs, {}, harness.now)
    return {each.name: each.sums_wrong for each in found.switches}, [
        worker.sums_wrong for each in found.jobs for worker in each.workers
    ]


def test_wrong_sums_are_counted_at_the_switch_of_the_worker_that_had_them() -> None:
    harness = JobsHarness(switches=[switch("left", addresses=["10.0.0.1"]), switch("right", addresses=["10.0.0.2"])])
    endpoints = [join.Endpoint(address=address, port=5000) for address in ("10.0.0.2", "10.0.0.1")]
    running = [harness.running(1, job_name=each.address, endpoint=each)[0] for each in endpoints]
    assert [worker.switch_name for worker in running] == ["right", "left"]
    for worker, counts in zip(running, [(0, 2, 5), (0, 1, 1)], strict=True):
        for count in counts:
            harness.jobs.beat(worker, 1, harness.now, sums_wrong=count)
    assert wrong_sums(harness) == ({"left": 1, "right": 5}, [5, 1])
    for count in (0, 5):  # 0 is what it says once it has ended its job
        harness.jobs.beat(running[0], 1, harness.now, sums_wrong=count)
        assert wrong_sums(harness)[0] == {"left": 1, "right": 5}
    harness.abort(running[0], "it was wrong twice", sums_wrong=7)
    assert wrong_sums(harness)[0] == {"left": 1, "right": 7}


@pytest.mark.parametrize(("kinds", "expected"), [(("software", "bmv2"), False), (("software", "tofino"), True)])
def test_jobs_have_check_words_where_one_of_the_switches_does_not_verify_checksums(
    kinds: tuple[str, ...], expected: bool
) -> None:  # R5.28
    switches = [switch(kind) for kind in kinds]
    for each in switches:
        each.kind = each.name
    harness = JobsHarness(switches=switches)
    harness.ask_all(2)
    assert [grant.reply.check_word for grant in harness.outputs(Grant)] == [expected, expected]


def test_a_service_does_not_count_the_wrong_sums_that_the_one_before_it_has_counted() -> None:
    harness = JobsHarness()
    (worker,) = harness.running(1)
    harness.jobs.beat(worker, 1, harness.now, sums_wrong=4)
    harness.jobs.beat(worker, 1, harness.now, sums_wrong=5)
    assert wrong_sums(harness) == ({"leaf": 1}, [5])


def test_a_worker_that_goes_away_during_admission_ends_the_job_before_it_begins() -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    workers = [harness.ask(rank=rank, world_size=2) for rank in range(2)]
    number = workers[0].job.lease.number
    harness.jobs.hung_up(workers[0], workers[0].call, harness.now)
    harness.wait(10.2)
    harness.jobs.admitted("leaf", number, harness.now)
    harness.settle()
    (refused,) = harness.outputs(Refuse)
    assert refused.worker is workers[1]
    assert refused.refusal.code == "ABORTED"
    assert harness.outputs(Grant) == []
    assert [type(output) for output in harness.done if isinstance(output, Admit | Refuse | Evict)] == [
        Admit,
        Refuse,
        Evict,
    ]
    harness.jobs.evicted("leaf", number, harness.now)
    assert harness.slots_free == 4096


def test_joins_time_out_if_the_switch_does_not_answer_the_admission() -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    harness.ask(timeout_ms=2000)
    harness.wait(2.5)
    (refused,) = harness.outputs(Refuse)
    assert refused.refusal.code == "DEADLINE_EXCEEDED"
    assert harness.slots_free == 4096 - 256, "it may still have admitted the job"


def test_a_member_is_recognised_by_its_token_alone() -> None:  # R7.21
    harness = JobsHarness()
    workers = harness.running()
    token = workers[0].token
    for forged in (
        join.Member(job=1, worker=0, switch_name="leaf"),
        join.Member(job=1, worker=0, token="0" * len(token), switch_name="leaf"),
        join.Member(job=1, worker=0, token=token[:-1], switch_name="leaf"),
        join.Member(job=1, worker=0, token=token.upper() + " ", switch_name="leaf"),
    ):
        for action in (
            lambda forged=forged: harness.jobs.attend(forged, harness.now),
            lambda forged=forged: harness.jobs.leave(join.LeaveRequest(member=forged), harness.now),
            lambda forged=forged: harness.jobs.abort(join.AbortRequest(member=forged), harness.now),
            lambda forged=forged: harness.jobs.find(forged),
        ):
            assert harness.refusal_of(action)[0] == "NOT_FOUND"
    assert [worker.presence for worker in workers] == [Presence.ATTENDING] * 3
    elsewhere = join.Member(job=63, worker=2, token=token, switch_name="another switch")
    assert harness.jobs.find(elsewhere) is workers[0], "its job may have moved meanwhile"


def test_a_closing_service_ends_running_jobs_and_refuses_new_ones() -> None:
    harness = JobsHarness()
    harness.running(job_name="running")
    harness.ask(job_name="forming", world_size=2)
    harness.jobs.close("the switch was stopped", harness.now)
    harness.settle()
    assert {tell.ended.cause for tell in harness.outputs(Tell)} == {join.JobEnded.SWITCH_LOST}
    assert [refused.refusal.code for refused in harness.outputs(Refuse)] == ["UNAVAILABLE"]
    assert harness.refusal_of(lambda: harness.ask(job_name="new"))[0] == "UNAVAILABLE"
