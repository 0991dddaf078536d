"""Jobs that find no room in the tables of a switch wait, or go elsewhere; those that never could are refused."""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Job, Members, State, Terms, Wants
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.room import Room
from wiresum.controller.jobs.tree import shape_at
from wiresum.controller.p4runtime import Target, desired, device_config
from wiresum.controller.resources import GROUPS, Amounts
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, member, switch

TARGET = Target("leaf", "software", "unused", 0, device_config.software(), "10.0.0.1")
P4 = functools.lru_cache(maxsize=None)(functools.partial(desired.needs, TARGET))
"""What a job takes of a switch with our program."""
PATIENT = Limits(join_timeout_ms_default=3_600_000)


def p4_switch(name: str = "leaf", addresses: tuple[str, ...] = (), *, parent: str = "", part_of: str = "",
              slots: int = 4096, jobs_max: int = 255, **tables: int) -> Switch:  # fmt: skip
    """`tables`: sizes that differ from the program's."""
    sizes = SwitchSizes(slots, 360, jobs_max, tables=Amounts({**desired.room(TARGET), **tables}))
    return switch(name, sizes, addresses, parent=parent, part_of=part_of, needs=P4)


def at(address: str, rank: int = 0) -> join.Endpoint:
    return join.Endpoint(address=address, port=5000 + 16 * rank)


def test_a_job_that_finds_no_room_in_one_switch_gets_it_in_another() -> None:
    harness = JobsHarness(switches=[p4_switch("left", admit=64), p4_switch("right")])
    workers = [harness.ask_all(4, job_name=f"job-{n}", slots=16, threads_max=16)[0] for n in range(3)]
    assert [worker.job.lease.switch_name for worker in workers] == ["right", "right", "right"], "it has room for most"
    one = harness.ask_all(2, job_name="small", slots=4096, threads_max=1)[0]
    assert one.job.lease.switch_name == "left", "there are more slots there"


def test_a_job_waits_for_a_table_and_begins_when_another_has_ended() -> None:
    harness = JobsHarness(switches=[p4_switch(admit=100)], limits=PATIENT)
    first = harness.ask_all(4, job_name="first", tenant="vision", slots=16, threads_max=16)
    harness.ask_all(2, job_name="secret", tenant="sound", slots=16, threads_max=4)
    waits = harness.ask_all(4, job_name="waits", tenant="vision", slots=16, threads_max=8)
    assert (waits[0].job.state, waits[0].job.lease.wants) == (State.QUEUED, Wants.ROOM)
    harness.wait(1.5)
    assert harness.said(waits[0]) == (
        "job 'waits' is number 1 of 1 in the queue for slots: table admit of leaf has room for 100 entries; 72 are "
        "taken and this job needs 32: job 'first' has 64, 1 job of other tenants has 8"
    )
    for worker in first:
        harness.leave(worker)
    assert waits[0].job.state is State.RUNNING
    assert harness.switches[0].taken()["admit"] == 8 + 32


@pytest.mark.parametrize(
    ("sizes", "short"),
    [
        ({"admit": 63}, "table admit of leaf has room for 63 entries, and this job needs 64"),
        ({"deliver": 3}, "table deliver of leaf has room for 3 entries, and this job needs 4"),
        ({GROUPS: 0}, "leaf has room for 0 multicast groups, and this job needs 1"),
    ],
)
def test_a_job_that_can_never_fit_is_refused_with_the_resource_and_the_limit(sizes: dict[str, int], short: str) -> None:
    harness = JobsHarness(switches=[p4_switch(**sizes)])  # type: ignore[arg-type]
    worker = harness.ask_all(4, slots=16, threads_max=16)[0]
    code, text = harness.refused(worker)
    assert code == "RESOURCE_EXHAUSTED"
    assert f"job 'a-job' can never run here: {short}" in text
    assert len(harness.jobs) == 0


def test_pipes_of_one_switch_share_the_room_in_its_tables() -> None:
    pipes = [p4_switch(f"rack/{n}", (f"10.0.{n}.1",), part_of="rack", admit=40) for n in range(2)]
    harness = JobsHarness(switches=pipes, limits=Limits(overtaken_max=1))
    first = harness.ask(job_name="first", world_size=1, slots=16, threads_max=16, endpoint=at("10.0.0.1"))
    second = harness.ask(job_name="second", world_size=1, slots=16, threads_max=16, endpoint=at("10.0.1.1"))
    third = harness.ask(job_name="third", world_size=1, slots=16, threads_max=16, endpoint=at("10.0.1.1"))
    assert [w.job.state for w in (first, second, third)] == [State.RUNNING, State.RUNNING, State.QUEUED]
    assert [pipe.taken()["admit"] for pipe in pipes] == [32, 32]
    for name, state in (("one", State.RUNNING), ("two", State.QUEUED)):
        other = harness.ask(job_name=name, world_size=1, slots=16, threads_max=1, endpoint=at("10.0.0.1"))
        assert other.job.state is state, "the other pipe's jobs may overtake it no more often than its own"


def test_a_tree_of_two_pipes_takes_of_one_room_for_both() -> None:
    upper = p4_switch("rack/0", ("10.0.0.1",), part_of="rack", admit=5)
    lower = p4_switch("rack/1", ("10.0.1.1",), part_of="rack", parent="rack/0", admit=5)
    harness = JobsHarness(switches=[upper, lower])
    places = ("10.0.0.1", "10.0.1.1")
    fields = {"world_size": 2, "slots": 16}
    both = [harness.ask(rank=r, endpoint=at(a, r), threads_max=2, **fields) for r, a in enumerate(places)]
    code, text = harness.refused(both[0])
    assert code == "RESOURCE_EXHAUSTED"
    assert "table admit of rack/0 has room for 5 entries, and this job needs 6" in text
    for rank, address in enumerate(places):
        harness.ask(rank=rank, endpoint=at(address, rank), threads_max=1, job_name="narrow", **fields)
    assert upper.taken() == lower.taken()
    assert upper.taken()["admit"] == 3
    waits = harness.ask(job_name="waits", world_size=1, slots=16, threads_max=4, endpoint=at("10.0.0.1"))
    harness.wait(1.5)
    assert harness.said(waits).endswith("3 are taken and this job needs 4: job 'narrow' has 3"), "at both pipes"


def test_a_job_of_before_that_has_no_room_any_more_is_forgotten_everywhere(tmp_path: Path) -> None:
    def tree(**tables: int) -> list[Switch]:
        spine, leaf1 = p4_switch("spine", NOBODY), p4_switch("leaf1", ("10.0.1.1",), parent="spine")
        return [spine, leaf1, p4_switch("leaf2", ("10.0.2.1",), parent="spine", **tables)]

    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        before = JobsHarness(switches=tree(), store=store)
        for rank, address in enumerate(("10.0.1.1", "10.0.2.1")):
            before.ask(rank=rank, world_size=2, slots=16, threads_max=16, endpoint=at(address, rank))
        same = JobsHarness(switches=tree(), store=store)
        assert [there.taken() for there in same.switches] == [there.taken() for there in before.switches]
        smaller = tree(admit=15)
        assert JobsHarness(switches=smaller, store=store).jobs.all() == []
        assert all(not any(there.taken().values()) for there in smaller)


def test_fewer_slots_mean_fewer_threads_and_fewer_entries() -> None:
    harness = JobsHarness(switches=[p4_switch(slots=32, admit=24)], limits=Limits(slots_least=8))
    harness.ask(job_name="first", world_size=1, slots=16, threads_max=16)
    second = harness.ask(job_name="second", world_size=1, slots=8, threads_max=16)
    assert (second.job.state, second.job.lease.slots, second.job.lease.threads) == (State.RUNNING, 8, 8)
    assert harness.switches[0].taken()["admit"] == 24


def test_room_refuses_what_it_has_not_and_changes_nothing() -> None:
    room, lease = Room(Amounts({"admit": 4})), Job("a-job", 0.0, Terms(), Members(1)).lease
    with pytest.raises(ValueError, match="no room in deliver of leaf"):
        room.take(lease, "leaf", Amounts({"admit": 4, "deliver": 1}))
    room.take(lease, "leaf", Amounts({"admit": 4}))
    with pytest.raises(ValueError, match="no room in admit of other"):
        room.take(lease, "other", Amounts({"admit": 1}))
    assert room.leases_with("admit") == {lease: 4}
    room.give_back(lease, "leaf")
    assert room.taken.of("admit") == 0


@pytest.mark.parametrize("seed", range(4))
def test_placement_never_goes_beyond_any_resource(seed: int) -> None:
    """Random jobs at pipes, a tree and single switches, whose tables are small."""
    chance = random.Random(seed)
    sizes = {"slots": 128, "jobs_max": 6, "admit": 60, "deliver": 20, "admit_parent_entry": 24, GROUPS: 9}
    switches = [
        p4_switch("spine", NOBODY, **sizes),
        p4_switch("rack/0", ("10.0.0.1",), parent="spine", part_of="rack", **sizes),
        p4_switch("rack/1", ("10.0.1.1",), parent="rack/0", part_of="rack", **sizes),
        p4_switch("leaf", ("10.0.2.1",), parent="spine", **sizes),
        p4_switch("spare", ("10.0.0.1", "10.0.2.1"), **sizes),
    ]
    harness = JobsHarness(
        switches=switches, limits=Limits(slots_least=4, overtaken_max=3, join_timeout_ms_default=9000)
    )
    seen: Counter[State | str] = Counter()
    for step in range(150):
        if chance.random() < 0.6:
            world_size = chance.choice((1, 1, 2, 3, 5, 9))
            fields = {"job_name": f"job-{step}", "world_size": world_size, "slots": chance.choice((4, 16, 64))}
            fields["threads_max"] = chance.choice((1, 2, 4, 8, 16))
            places = chance.choice((("10.0.0.1",), ("10.0.2.1",), ("10.0.0.1", "10.0.1.1", "10.0.2.1")))
            try:
                workers = [
                    harness.ask(rank=rank, endpoint=at(chance.choice(places), rank), **fields)
                    for rank in range(world_size)
                ]
            except Refusal:  # the workers so far are at no common tree
                seen["refused"] += 1
                continue
            seen[workers[0].job.state] += 1
        elif running := [job for job in harness.jobs.all() if job.state is State.RUNNING]:
            for worker in chance.choice(running).members.workers.values():
                harness.jobs.attend(member(worker), harness.now)
                harness.leave(worker)
        harness.wait(0.3)
        for there in switches:
            check(there, switches)
    assert min(seen[state] for state in (State.RUNNING, State.QUEUED, State.GONE)) > 1, seen
    for job in harness.jobs.all():
        harness.jobs.end(job.name, "", harness.now)
    harness.settle()
    harness.wait(20)
    assert harness.jobs.all() == []
    assert all(not any(there.taken().values()) for there in switches), "all is given back"


def check(there: Switch, switches: list[Switch]) -> None:
    """Adds up anew what the jobs have there, from what the switch is told of each."""
    pipes = [other for other in switches if (other.part_of or other.name) == (there.part_of or there.name)]
    used: Counter[str] = Counter()
    for node in (lease.nodes[pipe.name] for pipe in pipes for lease in pipe.numbered.values()):
        if node.entry is not None:
            assert node.entry.shape == shape_at(node.branch, node.entry.threads)
            used.update(P4(node.entry.shape))
    assert all(count <= there.sizes.room[name] for name, count in there.taken().items()), there.taken()
    assert {name: count for name, count in there.room.taken.items() if count} == used
