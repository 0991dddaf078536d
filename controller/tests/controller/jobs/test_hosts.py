"""Workers of one host share a stream: they are one contributor to their switch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from wiresum import join
from wiresum.controller.driver import Endpoint, JobEntry, SwitchSizes
from wiresum.controller.jobs import report
from wiresum.controller.jobs.job import State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Admit, GoOn, Grant, Tell
from wiresum.controller.jobs.records import JobRecord, RecordError, job_of
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, switch

ADDRESSES = {"a": "10.0.0.10", "b": "10.0.0.11", "c": "10.0.1.10"}
"""Of hosts."""


def ask(made: JobsHarness, hosts: Sequence[str], **fields: Any) -> list[Worker]:
    """A worker on each of these hosts, in the order of ranks; a dot: on a host of its own that it does not name."""
    return [
        made.ask(
            rank=rank,
            world_size=len(hosts),
            endpoint=join.Endpoint(address=ADDRESSES.get(host, f"10.0.2.{rank}"), port=1000 + 16 * rank),
            host_id=b"" if host == "." else host.encode(),
            **fields,
        )
        for rank, host in enumerate(hosts)
    ]


def run(made: JobsHarness, hosts: Sequence[str], **fields: Any) -> list[Worker]:
    workers = ask(made, hosts, **fields)
    for worker in workers:
        made.jobs.attend(join.Member(token=worker.token), made.now)
    made.settle()
    return workers


def replies(made: JobsHarness) -> list[join.JoinReply]:
    return [grant.reply for grant in made.outputs(Grant)]


def entries(made: JobsHarness) -> list[JobEntry]:
    return [admit.entry for admit in made.outputs(Admit)]


def test_workers_of_one_host_are_one_contributor() -> None:  # R7.5, R8.13
    made = JobsHarness()
    ask(made, "abab.")
    (entry,) = entries(made)
    assert entry.workers == 3
    assert entry.endpoints == (Endpoint("10.0.0.10", 1000), Endpoint("10.0.0.11", 1016), Endpoint("10.0.2.4", 1064)), (
        "the first rank of each host sends for it"
    )
    told = replies(made)
    assert [reply.workers for reply in told] == [5] * 5, "what numbers are scaled by"
    assert [reply.rank for reply in told] == [0, 1, 2, 3, 4]
    assert [list(reply.sharing.ranks) for reply in told] == [[0, 2], [1, 3], [0, 2], [1, 3], []]
    assert [reply.sharing.number for reply in told[:4]] == [0, 1, 0, 1]
    assert [reply.worker for reply in told] == [0, 0, 1, 1, 2], "its number among those that share, or at the switch"
    assert not told[4].HasField("sharing")


def test_only_workers_of_one_host_know_by_what_they_find_each_other() -> None:  # R7.5
    made = JobsHarness()
    ask(made, "abab")
    secrets = [reply.sharing.secret for reply in replies(made)]
    assert secrets[0] == secrets[2] != secrets[1] == secrets[3]
    assert {len(secret) for secret in secrets} == {32}
    made.jobs.end("a-job", "", made.now)
    made.settle()
    ask(made, "abab", job_name="next")
    assert not {*secrets} & {reply.sharing.secret for reply in replies(made)[4:]}
    assert not {reply.members_secret for reply in replies(made)} & {*secrets}


def test_workers_with_addresses_of_their_own_have_streams_of_their_own() -> None:  # R7.5
    """Of a host with several links each carries a part; and a copy of a virtual machine is not its original."""
    made = JobsHarness()
    for rank in range(4):
        endpoint = join.Endpoint(address=f"10.0.0.{rank % 2}", port=1000 + 16 * rank)
        made.ask(rank=rank, world_size=4, endpoint=endpoint, host_id=b"a")
    assert [list(reply.sharing.ranks) for reply in replies(made)] == [[0, 2], [1, 3]] * 2


def test_a_diagnosis_says_whose_packets_were_counted_together() -> None:
    made = JobsHarness()
    workers = run(made, "aba")
    found = report.diagnosis(workers[0].job, {}, made.now, made.jobs.moving)
    assert [list(worker.sharing) for worker in found.workers] == [[0, 2], [], [0, 2]]


def test_workers_of_two_jobs_share_nothing() -> None:
    made = JobsHarness()
    ask(made, "a", job_name="one")
    ask(made, "a", job_name="other")
    assert not any(reply.HasField("sharing") for reply in replies(made))


def test_a_switch_sums_for_32_hosts() -> None:
    made = JobsHarness(SwitchSizes(64, 360, 8))
    workers = [
        made.ask(
            rank=rank,
            world_size=96,
            host_id=b"%d" % (rank % 32),
            endpoint=join.Endpoint(address=f"10.0.0.{rank % 32}", port=1000 + 16 * rank),
        )
        for rank in range(96)
    ]
    assert len(entries(made)[0].endpoints) == 32
    assert {len(reply.sharing.ranks) for reply in replies(made)} == {3} and len(replies(made)) == len(workers)


def test_ranks_beyond_31_of_one_host_share_a_second_stream() -> None:  # R7.5
    made = JobsHarness()
    ask(made, "a" * 40)
    assert [list(reply.sharing.ranks) for reply in (replies(made)[0], replies(made)[39])] == [
        [*range(31)],
        [*range(31, 40)],
    ]
    assert entries(made)[0].workers == 2


def test_a_size_is_refused_only_if_sharing_could_not_help() -> None:
    made = JobsHarness()
    code, text = made.refusal_of(lambda: made.ask(world_size=33))
    assert code == "RESOURCE_EXHAUSTED" and "in one job, 32: start fewer" in text
    code, text = made.refusal_of(lambda: made.ask(world_size=32 * 31 + 1, host_id=b"a"))
    assert code == "RESOURCE_EXHAUSTED" and "in one job, 992: start fewer" in text
    made.ask(world_size=32 * 31, host_id=b"a", job_name="large")


def test_hosts_are_counted_where_there_are_too_many() -> None:
    made = JobsHarness()
    workers = ask(made, [*("aa" + "." * 32)])
    assert made.refused(workers[0])[1].startswith(
        "job 'a-job' has 33 workers (those of one host count once) on hosts of leaf, and at most 32 can be there"
    )


def test_a_host_id_has_a_bound() -> None:
    made = JobsHarness()
    made.ask(host_id=bytes(64), job_name="bound")
    code, text = made.refusal_of(lambda: made.ask(host_id=bytes(65)))
    assert code == "INVALID_ARGUMENT" and text.startswith("host_id has 65 bytes")


def test_below_a_tree_each_switch_numbers_its_hosts() -> None:
    addresses = {"left": [ADDRESSES["a"], ADDRESSES["b"]], "right": [ADDRESSES["c"]]}
    below = [switch(name, addresses=found, parent="top") for name, found in addresses.items()]
    made = JobsHarness(switches=[switch("top", addresses=["nobody"]), *below])
    ask(made, "acbcab")
    assert {admit.switch_name: admit.entry.workers for admit in made.outputs(Admit)} == {
        "top": 2,
        "left": 2,
        "right": 1,
    }
    told = {reply.rank: (reply.switch_name, list(reply.sharing.ranks), reply.sharing.number) for reply in replies(made)}
    assert told[0] == told[4] == ("left", [0, 4], 0)
    assert told[2] == told[5] == ("left", [2, 5], 1)
    assert told[1] == told[3] == ("right", [1, 3], 0)


def test_a_silent_worker_is_not_lost_while_packets_of_its_host_come() -> None:
    made = JobsHarness(limits=Limits())
    workers = run(made, "aab")
    made.contributions[workers[0].job.lease.number] = counts = [0, 0]
    made.break_streams(workers[1])
    for second in range(1, 20):
        counts[0] = second
        made.wait(1, beating=[workers[0], workers[2]], round_newest=0)
    assert workers[0].job.state is State.RUNNING
    for _ in range(20):
        made.wait(1, beating=[workers[0], workers[2]], round_newest=0)
    (told, *_) = made.outputs(Tell)
    assert told.ended.worker.rank == 1


def test_each_worker_of_a_stream_says_itself_what_it_has_begun() -> None:  # R7.14
    made = JobsHarness()
    workers = run(made, "aab")
    for worker, said in zip(workers, (0xABCD0007, None, 6), strict=True):
        made.jobs.beat(worker, 1, made.now, tensor_newest=said)
    told = report.diagnosis(workers[0].job, {}, made.now, made.jobs.moving).workers
    assert [worker.tensor_said if worker.HasField("tensor_said") else None for worker in told] == [0xABCD0007, None, 6]
    assert [list(worker.sharing) for worker in told] == [[0, 1], [0, 1], []]


def test_a_job_on_one_host_is_not_idle_though_its_switch_sees_nothing() -> None:
    for hosts, state in (("aa", State.RUNNING), ("ab", State.GONE)):
        made = JobsHarness(SwitchSizes(64, 360, 8), Limits(idle_ms_max=10_000))
        workers = run(made, hosts, slots=64)
        made.contributions[workers[0].job.lease.number] = [0, 0]
        ask(made, "c", job_name="waits", slots=64)
        made.wait(30, beating=workers)
        assert workers[0].job.state is state


def test_a_job_moves_with_its_hosts_as_they_are() -> None:
    made = JobsHarness(switches=[switch("one"), switch("other")])
    workers = run(made, "aab")
    before = {reply.rank: reply for reply in replies(made)}
    (lost,) = workers[0].job.lease.nodes
    made.change(lost, "it burns")
    made.wait(60, beating=workers)
    told = [out.event.move.grant for out in made.outputs(GoOn)]
    assert len(told) == 3
    for grant in told:
        assert grant.switch_name != lost
        assert grant.sharing == before[grant.rank].sharing and grant.worker == before[grant.rank].worker


def test_hosts_outlive_a_restart(store: Store) -> None:
    made = JobsHarness(store=store)
    workers = run(made, "ab.a")
    again = JobsHarness(store=store)
    (job,) = again.jobs.all()
    assert [worker.host_id for worker in job.members.workers.values()] == [b"a", b"b", b"", b"a"]
    assert job.lease.root.branch.hosts == ((0, 3), (1,), (2,))
    assert [job.lease.root.entry] == entries(made)
    assert [worker.number for worker in job.members.workers.values()] == [worker.number for worker in workers]


@pytest.fixture
def record(store: Store) -> JobRecord:
    """Of a job whose two workers share a stream."""
    run(JobsHarness(store=store), "aa")
    (found,) = store.load().jobs
    return found


def changed(record: JobRecord, **node: Any) -> JobRecord:
    body = json.loads(record.body)
    body["nodes"][0] |= node
    return JobRecord(record.switch_name, record.number, record.name, record.state, json.dumps(body))


@pytest.mark.parametrize("hosts", [[[0, 1], []], [[0]], [[0, 1, 1]], [[0, 2]], [0, 1], "01", [["0", "1"]], None])
def test_a_record_whose_hosts_make_no_sense_is_refused(record: JobRecord, hosts: object) -> None:
    job_of(changed(record, hosts=[[0, 1]]), 0, 0)
    with pytest.raises(RecordError):
        job_of(changed(record, hosts=hosts), 0, 0)
