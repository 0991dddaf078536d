"""Jobs whose hosts are below several switches of a tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller.driver import Endpoint, JobCounters, Reconciled, SwitchSizes, Uplink
from wiresum.controller.jobs import report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import State, Worker
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.outputs import Admit, Count, Evict, Grant, Halt, Reconcile, Tell
from wiresum.controller.jobs.records import StoredState
from wiresum.controller.store import Store
from wiresum.join.trees import packets_behind
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, member, switch

HOSTS = {"leaf1": "10.0.1.10", "leaf2": "10.0.2.10", "leaf3": "10.0.3.10"}
SIZES = SwitchSizes(64, 360, 8)


def racks(sizes: SwitchSizes = SIZES, leaves: Iterable[str] = HOSTS, **unequal: SwitchSizes) -> list[Switch]:
    """A spine with leaf1 and leaf2 below it, and leaf3 below leaf2."""
    parents = {"leaf1": "spine", "leaf2": "spine", "leaf3": "leaf2"}
    below = [
        switch(name, unequal.get(name, sizes), [HOSTS[name]], parent=parents[name], endpoint=endpoint(name))
        for name in leaves
    ]
    return [switch("spine", unequal.get("spine", sizes), NOBODY, endpoint=endpoint("spine")), *below]


def endpoint(name: str) -> Endpoint:
    return Endpoint(f"10.0.{name[-1] if name[-1].isdigit() else 0}.1", 43488)


def harness(switches: list[Switch] | None = None, **options: object) -> JobsHarness:
    return JobsHarness(switches=switches or racks(), **options)  # type: ignore[arg-type]


def ask_at(made: JobsHarness, leaves: list[str], **fields: object) -> list[Worker]:
    """Joins one worker on the host of each of these leaves, in the order of ranks."""
    return [
        made.ask(rank=rank, world_size=len(leaves), endpoint=address_at(leaf, rank), **fields)
        for rank, leaf in enumerate(leaves)
    ]


def address_at(leaf: str, rank: int) -> join.Endpoint:
    return join.Endpoint(address=HOSTS[leaf], port=1000 + 16 * rank)


def run_at(made: JobsHarness, leaves: list[str], **fields: object) -> list[Worker]:
    workers = ask_at(made, leaves, **fields)
    for worker in workers:
        made.jobs.attend(member(worker), made.now)
    made.settle()
    return workers


def test_a_job_gets_the_smallest_tree_that_covers_its_hosts() -> None:
    made = harness()
    assert list(ask_at(made, ["leaf1", "leaf2"], job_name="a", slots=16)[0].job.lease.nodes) == [
        "spine",
        "leaf1",
        "leaf2",
    ]
    assert list(ask_at(made, ["leaf2", "leaf3"], job_name="b", slots=16)[0].job.lease.nodes) == ["leaf2", "leaf3"]
    assert list(ask_at(made, ["leaf1", "leaf3"], job_name="c", slots=16)[0].job.lease.nodes) == [
        "spine",
        "leaf1",
        "leaf2",
        "leaf3",
    ]


# R7.4, R8.1, R8.2
def test_a_tree_shares_number_key_and_size_and_each_switch_has_its_own_slots_and_worker_numbers() -> None:
    made = harness()
    ask_at(made, ["leaf1"], job_name="before", slots=16, threads_max=1)
    ask_at(made, ["leaf2"], job_name="before-too", slots=16, threads_max=2)
    made.done.clear()
    workers = ask_at(made, ["leaf2", "leaf1", "leaf3", "leaf2", "leaf1"], slots=16, threads_max=1)
    entries = {admit.switch_name: admit.entry for admit in made.outputs(Admit)}
    assert len({(e.job, e.key, e.slots, e.threads, e.lanes, e.port_offset) for e in entries.values()}) == 1
    assert {name: entry.slot_base for name, entry in entries.items()} == {
        "spine": 0,
        "leaf1": 16,
        "leaf2": 16,
        "leaf3": 0,
    }

    def of_job(name: str) -> Endpoint:
        """The switch's endpoint for this job: the first port that no other job uses at any of these switches."""
        return Endpoint(endpoint(name).address, endpoint(name).port + 2)

    assert entries["spine"].endpoints == (of_job("leaf1"), of_job("leaf2"))
    assert entries["leaf1"].endpoints == tuple(workers[rank].endpoint for rank in (1, 4))
    assert entries["leaf2"].endpoints == (workers[0].endpoint, workers[3].endpoint, of_job("leaf3"))
    assert entries["spine"].uplink is None
    assert entries["leaf1"].uplink == Uplink(of_job("spine"), 0)
    assert entries["leaf2"].uplink == Uplink(of_job("spine"), 1)
    assert entries["leaf3"].uplink == Uplink(of_job("leaf2"), 2)
    replies = {grant.worker.rank: grant.reply for grant in made.outputs(Grant)}
    assert [(replies[r].rank, replies[r].worker, replies[r].switch_name) for r in range(5)] == [
        (0, 0, "leaf2"),
        (1, 0, "leaf1"),
        (2, 0, "leaf3"),
        (3, 1, "leaf2"),
        (4, 1, "leaf1"),
    ]
    assert {reply.workers for reply in replies.values()} == {5}
    at = of_job("leaf3")
    assert replies[2].switch_endpoint == join.Endpoint(address=at.address, port=at.port)


def test_admission_goes_from_the_root_down_and_eviction_from_the_leaves_up() -> None:  # R7.4, R7.16
    made = harness()
    made.switch_answers = False
    workers = ask_at(made, ["leaf1", "leaf3"])
    number = workers[0].job.lease.number
    told: list[list[str]] = []
    for names in (["spine"], ["leaf1", "leaf2"], ["leaf3"]):
        told.append([output.switch_name for output in made.outputs(Admit)])
        for name in names:
            made.jobs.admitted(name, number, made.now)
        made.settle()
    assert told == [["spine"], ["spine", "leaf1", "leaf2"], ["spine", "leaf1", "leaf2", "leaf3"]]
    assert len(made.outputs(Grant)) == 2, "when the last one has the job"
    for worker in workers:
        made.jobs.leave(join.LeaveRequest(member=member(worker)), made.now)
    made.settle()
    assert [output.switch_name for output in made.outputs(Evict)] == ["leaf1", "leaf3"]
    made.jobs.evicted("leaf1", number, made.now)
    made.settle()
    assert [output.switch_name for output in made.outputs(Evict)] == ["leaf1", "leaf3"], (
        "leaf2 is to go before the spine"
    )
    made.jobs.evicted("leaf3", number, made.now)
    made.settle()
    made.jobs.evicted("leaf2", number, made.now)
    made.settle()
    assert [output.switch_name for output in made.outputs(Evict)] == ["leaf1", "leaf3", "leaf2", "spine"]
    made.jobs.evicted("spine", number, made.now)
    made.settle()
    assert made.jobs.all() == []
    assert made.slots_free == 4 * SIZES.slots


def test_a_refusal_by_one_switch_evicts_the_job_from_the_others() -> None:
    made = harness()
    made.switch_answers = False
    workers = ask_at(made, ["leaf1", "leaf2"])
    number = workers[0].job.lease.number
    made.jobs.admitted("spine", number, made.now)
    made.jobs.admitted("leaf1", number, made.now)
    made.switch_answers = True
    made.jobs.refused("leaf2", number, "no room in table admit", made.now)
    made.settle()
    assert made.refused(workers[0]) == (
        "INTERNAL",
        "leaf2 did not take job 'a-job': no room in table admit. Its log says more",
    )
    (record,) = made.jobs.history.page(None).jobs
    assert (record.outcome, record.reason) == ("did_not_begin", made.refused(workers[0])[1])
    assert {output.switch_name for output in made.outputs(Evict)} == {"spine", "leaf1", "leaf2"}
    assert (made.jobs.all(), made.slots_free) == ([], 4 * SIZES.slots)


def test_switches_that_were_not_told_of_a_job_get_no_eviction() -> None:
    made = harness()
    made.switch_answers = False
    workers = ask_at(made, ["leaf1", "leaf2"])
    made.switch_answers = True
    made.jobs.refused("spine", workers[0].job.lease.number, "no", made.now)
    made.settle()
    assert [output.switch_name for output in made.outputs(Evict)] == ["spine"]
    assert (made.jobs.all(), made.slots_free) == ([], 4 * SIZES.slots)


def test_a_restarted_leaf_moves_the_jobs_of_its_tree_and_no_others() -> None:
    made = harness()
    run_at(made, ["leaf1", "leaf2"], job_name="both", slots=16)
    run_at(made, ["leaf1"], job_name="one", slots=16)
    made.reloaded = True
    made.change("leaf2", "no answer")
    made.change("leaf2", "")
    assert {each.worker.job.name for each in made.outputs(Halt)} == {"both"}


def test_a_switch_that_comes_back_before_its_turn_in_an_admission_is_told_once() -> None:
    made = harness()
    made.switch_answers = False
    workers = ask_at(made, ["leaf1", "leaf2"])
    number = workers[0].job.lease.number
    made.change("leaf2", "no answer")
    made.change("leaf2", "")
    assert made.outputs(Reconcile)[-1].entries == ()
    made.jobs.reconciled(made.outputs(Reconcile)[-1], Reconciled(), made.now)
    made.switch_answers = True
    made.jobs.admitted("spine", number, made.now)
    made.settle()
    assert workers[0].job.state is State.RUNNING


def test_a_switch_reconciled_without_a_job_before_its_turn_needs_no_eviction() -> None:
    made = harness()
    workers = run_at(made, ["leaf1", "leaf2"], slots=64)
    number = workers[0].job.lease.number
    made.switch_answers = False
    for worker in workers:
        made.leave(worker)
    assert [output.switch_name for output in made.outputs(Evict)] == ["leaf1", "leaf2"]
    made.change("spine", "no answer")
    made.change("spine", "")
    made.jobs.reconciled(made.outputs(Reconcile)[-1], Reconciled(), made.now)
    free = {each.name: each.pool.slots_free for each in made.switches}
    assert (free["spine"], free["leaf1"], free["leaf2"]) == (64, 0, 0)
    for name in ("leaf1", "leaf2"):
        made.jobs.evicted(name, number, made.now)
    assert made.jobs.all() == []
    assert [output.switch_name for output in made.outputs(Evict)] == ["leaf1", "leaf2"], "the spine need not be told"


def test_a_workers_own_switch_tells_whether_its_packets_come() -> None:
    made = harness()
    workers = run_at(made, ["leaf1", "leaf2", "leaf2"])
    counts = made.contributions[workers[0].job.lease.number] = [0, 7]
    made.change("leaf1", "no answer")  # so nobody knows whether packets of rank 0 come
    made.wait(3, beating=workers[:1])
    made.break_streams(*workers[1:])
    for second in range(40):
        counts[0] = second
        made.wait(1, beating=workers[:1], round_newest=0)
        if workers[0].job.state is State.ENDING:
            break
    assert {output.switch_name for output in made.outputs(Count)} == {"leaf2", "leaf1"} - {"leaf1"}
    (told, *_) = made.outputs(Tell)
    assert told.ended.worker.rank == 2, "leaf2 has counted packets of rank 1 alone"
    assert "no packet of it came to leaf2 either" in told.ended.reason


def test_the_refusal_of_too_many_workers_at_one_switch_states_the_limit() -> None:
    made = harness()
    ask_at(made, ["leaf1"] * 32, job_name="alone")
    assert made.granted() == ["alone"], "a root has a bit for each of 32"
    workers = ask_at(made, ["leaf1"] * 32 + ["leaf2"], job_name="both")
    code, text = made.refused(workers[0])
    assert code == "FAILED_PRECONDITION"
    assert text.startswith(
        "job 'both' has 32 workers on hosts of leaf1, and at most 31 can be there: a switch that has another above it, "
        "as leaf1 has spine, sums for 31. Start fewer on these hosts"
    )
    assert len({made.refused(worker) for worker in workers}) == 1, "all hear it"
    again = ask_at(made, ["leaf2"] * 31 + ["leaf3", "leaf1"], job_name="deep")
    assert "at most 30 can be there" in made.refused(again[0])[1]
    assert "and leaf3 below it count among them" in made.refused(again[0])[1]


def test_a_job_larger_than_all_switches_is_refused_at_once() -> None:
    made = harness(racks(leaves=["leaf1", "leaf2"]))
    code, text = made.refusal_of(lambda: made.ask(world_size=93, endpoint=address_at("leaf1", 0)))
    assert code == "RESOURCE_EXHAUSTED"
    assert text.startswith("93 workers are more than the switches here sum for in one job, 92: start fewer")
    assert made.refusal_of(lambda: made.create(world_size=92 * 31 + 1))[0] == "RESOURCE_EXHAUSTED"
    alone = JobsHarness()
    assert "in one job, 32" in alone.refusal_of(lambda: alone.ask(world_size=33))[1]
    assert alone.refusal_of(lambda: alone.ask(world_size=4097))[0] == "INVALID_ARGUMENT"


def test_workers_below_different_roots_cannot_form_a_job() -> None:
    made = harness([*racks(), switch("far", SIZES, ["10.7.0.1"])])
    made.ask(rank=0, world_size=2, endpoint=address_at("leaf1", 0))
    far = join.Endpoint(address="10.7.0.1", port=1000)
    code, text = made.refusal_of(lambda: made.ask(rank=1, world_size=2, endpoint=far))
    assert code == "FAILED_PRECONDITION"
    assert (
        "must all be at one switch, or at switches of one tree: this one, with the address 10.7.0.1, is at far" in text
    )


def test_a_job_waits_until_all_its_switches_have_slots_and_a_common_number() -> None:
    made = harness(racks(SwitchSizes(64, 360, 2)))
    ask_at(made, ["leaf1"], job_name="a", slots=16)
    ask_at(made, ["leaf2"], job_name="b1", slots=16)
    b2 = ask_at(made, ["leaf2"], job_name="b2", slots=16)
    made.leave(made.jobs.all()[1].members.workers[0])
    assert [(job.name, job.lease.number) for job in made.jobs.all()] == [("a", 1), ("b2", 0)]
    both = ask_at(made, ["leaf1", "leaf2"], job_name="both", slots=16)
    assert both[0].job.state is State.QUEUED
    made.wait(2)
    assert made.said(both[0]).endswith("no number of a job is free at all of spine, leaf1 and leaf2")
    made.leave(b2[0])
    assert (both[0].job.state, both[0].job.lease.number) == (State.RUNNING, 0)


def test_a_waiting_job_is_told_the_reason_for_each_switch() -> None:
    made = harness()
    run_at(made, ["leaf1"], job_name="large", slots=64)
    both = ask_at(made, ["leaf1", "leaf2"], job_name="both", slots=16)
    made.jobs.drain("leaf2", resume=False)
    made.wait(2)
    said = made.said(both[0])
    assert "no 16 slots in a row are free at leaf1, where 0 of 64 are: job 'large' has 64" in said
    assert "and leaf2 takes no new jobs, since an operator drains it" in said


def test_a_lease_is_as_large_as_the_fullest_switch_allows() -> None:
    made = harness(racks(spine=SwitchSizes(32, 96, 8, threads_max=2)))
    job = ask_at(made, ["leaf1", "leaf2"], slots=64)[0].job
    assert (job.lease.slots, job.lease.lanes, job.lease.threads) == (32, 96, 2)
    assert ask_at(made, ["leaf1"], slots=64, job_name="one")[0].job.lease.slots == 32


def test_a_job_over_racks_is_overtaken_a_bounded_number_of_times() -> None:
    limits = Limits(slots_least=64, slots_default=64, overtaken_max=2)
    made = harness(limits=limits)
    (first,) = run_at(made, ["leaf1"], job_name="first")
    both = ask_at(made, ["leaf1", "leaf2"], job_name="both")
    later = [ask_at(made, ["leaf2"], job_name=f"later{index}")[0] for index in range(4)]
    made.leave(later[0])
    made.leave(later[1])
    assert both[0].job.lease.overtaken == 2
    assert [worker.job.state for worker in later[2:]] == [State.QUEUED, State.QUEUED], (
        "leaf2's slots are kept for the job"
    )
    aside = ask_at(made, ["leaf3"], job_name="aside")
    assert aside[0].job.state is State.RUNNING, "a job elsewhere is not held back"
    made.leave(first)
    assert both[0].job.state is State.RUNNING


def test_a_quota_counts_slots_at_each_switch() -> None:
    made = harness(quotas=[Quota("vision", slots=48), Quota("poor", slots=2)], limits=Limits(slots_least=8))
    both = ask_at(made, ["leaf1", "leaf2"], slots=64, tenant="vision")
    assert both[0].job.lease.slots == 16, "48 slots over three switches"
    more = ask_at(made, ["leaf3"], slots=8, tenant="vision", job_name="more")
    assert more[0].job.state is State.QUEUED
    poor = ask_at(made, ["leaf1", "leaf2"], tenant="poor", job_name="poor")
    code, text = made.refused(poor[1])
    assert code == "RESOURCE_EXHAUSTED"
    assert "needs slots at each of 3 switches, and its tenant's quota is 2 slots" in text


def test_a_created_job_can_be_restricted_to_a_subtree() -> None:
    made = harness()
    token = made.create(switch_name="leaf2", world_size=2)
    assert (
        "can only be at leaf2, leaf3"
        in made.refusal_of(lambda: made.ask(world_size=2, endpoint=address_at("leaf1", 0), job_token=token))[1]
    )
    workers = ask_at(made, ["leaf2", "leaf3"], job_token=token)
    assert list(workers[0].job.lease.nodes) == ["leaf2", "leaf3"]


@pytest.mark.parametrize(
    "change",
    [
        lambda: [each for each in racks() if each.name != "leaf3"],
        lambda: [*racks(leaves=["leaf1", "leaf2"]), switch("leaf3", SIZES, [HOSTS["leaf3"]], parent="spine")],
        lambda: [*racks(leaves=["leaf1", "leaf2"]), switch("leaf3", SIZES, ["10.0.3.99"], parent="leaf2")],
        lambda: racks(leaf3=SwitchSizes(8, 360, 8)),
    ],
    ids=["a switch is gone", "a switch moved", "a host moved", "its slots are gone"],
)
def test_a_job_is_forgotten_as_a_whole_if_its_tree_has_changed(tmp_path: Path, change: object) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        run_at(harness(store=store), ["leaf1", "leaf3"], slots=16)
        store.begin()
        after = harness(change(), store=store)  # type: ignore[operator]
        assert after.jobs.all() == []
        assert after.slots_free == sum(each.sizes.slots for each in after.switches)
        assert {reconcile.entries for reconcile in after.outputs(Reconcile)} == {()}


def test_a_report_says_which_switch_lags_behind_its_siblings() -> None:
    made = harness()
    job = run_at(made, ["leaf1", "leaf2", "leaf3"])[0].job
    counted = {
        "spine": JobCounters(results=10, contributions=(17, 10)),
        "leaf1": JobCounters(results=10, contributions=(17,)),
        "leaf2": JobCounters(results=10, contributions=(17, 17)),
        "leaf3": JobCounters(results=10, contributions=(17,)),
    }
    stray = JobCounters()
    found = report.report(
        made.jobs, {name: (stray, {job.lease.number: of_job}) for name, of_job in counted.items()}, made.now
    )
    (of_job,) = found.jobs
    assert [(n.switch_name, n.parent, n.workers) for n in of_job.switches] == [
        ("spine", "", 0),
        ("leaf1", "spine", 1),
        ("leaf2", "spine", 1),
        ("leaf3", "leaf2", 1),
    ]
    assert [worker.contributions for worker in of_job.workers] == [17, 17, 17]
    assert packets_behind(of_job.switches, of_job.workers) == {"leaf1": 0, "leaf2": 7, "leaf3": 0}
    assert [switch.parent for switch in found.switches] == ["", "spine", "spine", "leaf2"]
    said = report.diagnosis(
        job, {name: counted[name] for name in ("leaf1", "leaf2", "leaf3")}, made.now, made.jobs.moving
    )
    assert packets_behind(said.switches, said.workers) == {"leaf3": 0}, "the spine gave no counters"
    assert [worker.uncounted for worker in said.workers] == [False] * 3
    assert report.diagnosis(job, {}, made.now, made.jobs.moving).workers[0].uncounted


def pipes(parent: str = "tofino/0") -> list[Switch]:
    """Two pipes of a switch: leaf1's host is at the upper one, leaf2's at the lower one."""
    return [
        switch("tofino/0", SIZES, [HOSTS["leaf1"]], part_of="tofino"),
        switch("tofino/1", SIZES, [HOSTS["leaf2"]], parent=parent, part_of="tofino"),
    ]


def test_pipes_have_slots_and_numbers_of_their_own() -> None:
    made = harness(pipes())
    both = run_at(made, ["leaf1", "leaf2"], job_name="both", slots=32)
    ones = [run_at(made, [leaf], job_name=leaf, slots=32)[0] for leaf in ("leaf1", "leaf2")]
    assert list(both[0].job.lease.nodes) == ["tofino/0", "tofino/1"]
    assert ones[0].job.lease.number == ones[1].job.lease.number != both[0].job.lease.number
    entries = {
        admit.switch_name: admit.entry for admit in made.outputs(Admit) if admit.entry.job == both[0].job.lease.number
    }
    assert (entries["tofino/0"].below, entries["tofino/1"].below) == (("tofino/1",), ())


def test_a_switch_is_drained_with_all_its_pipes_or_one_of_them() -> None:
    made = harness([*pipes(), switch("other", SIZES, NOBODY)])
    both = run_at(made, ["leaf1", "leaf2"], slots=16)
    run_at(made, ["leaf2"], job_name="one", slots=16)
    assert made.jobs.drain("tofino", resume=False) == 2, "each job is counted once"
    assert {name: s.draining for name, s in made.jobs.cluster.switches.items()} == {
        "tofino/0": True,
        "tofino/1": True,
        "other": False,
    }
    assert made.jobs.drain("tofino/0", resume=True) == 1
    assert not made.jobs.cluster.switches["tofino/0"].draining
    assert made.jobs.cluster.switches["tofino/1"].draining
    assert "there is no switch '' here" in made.refusal_of(lambda: made.jobs.drain("", resume=False))[1]
    assert harness(pipes()).jobs.drain("", resume=False) == 0, "the name may be omitted for the only switch"
    assert both[0].job.state is State.RUNNING


def test_draining_of_a_switch_continues_when_it_is_split_into_pipes() -> None:
    made = harness([*pipes(), switch("other", SIZES)])
    made.jobs.restore(StoredState(draining=frozenset({"tofino"})), made.now)
    assert [each.draining for each in made.switches] == [True, True, False]


def test_a_job_can_be_created_at_a_switch_of_several_pipes() -> None:
    made = harness([*pipes(), switch("other", SIZES)])
    token = made.create(switch_name="tofino", world_size=2, slots=16)
    both = ask_at(made, ["leaf1", "leaf2"], job_token=token)
    assert list(both[0].job.lease.nodes) == ["tofino/0", "tofino/1"]
    token = made.create(switch_name="tofino/1", job_name="lower")
    assert ask_at(made, ["leaf2"], job_name="lower", job_token=token)[0].job.lease.switch_name == "tofino/1"
    assert (
        "100 slots are more than a switch here has, 64"
        in made.refusal_of(lambda: made.create(switch_name="tofino", job_name="large", slots=100))[1]
    )


def test_workers_at_unconnected_pipes_are_told_how_to_connect_them() -> None:
    made = harness(pipes(parent=""))
    made.ask(rank=0, world_size=2, endpoint=address_at("leaf1", 0))
    code, text = made.refusal_of(lambda: made.ask(rank=1, world_size=2, endpoint=address_at("leaf2", 1)))
    assert code == "FAILED_PRECONDITION"
    assert "is at tofino/1, and the job can only be at tofino/0. Both are pipes of tofino: a cable and `cables`" in text
