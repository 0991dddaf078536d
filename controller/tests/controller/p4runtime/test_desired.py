from __future__ import annotations

import dataclasses

import finsy as fy
import pytest

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import Host, Pipeline, Target, desired, device_config
from wiresum.join.constants import FLOOD_GROUP, UPLINK_GROUPS


@pytest.fixture
def target(hosts: tuple[Host, ...], pipeline: Pipeline) -> Target:
    return Target("leaf", "bmv2", "unused", 0, pipeline, "10.0.0.1", "02:00:0a:00:00:01", hosts)


def places(entities: list[desired.Entity]) -> dict[str, int]:
    names = [entity.table_id if isinstance(entity, fy.P4TableEntry) else "group" for entity in entities]
    return {name: names.count(name) for name in names}


def test_a_configuration_gives_entries_for_the_switch_and_its_hosts(target: Target) -> None:
    assert places(desired.of_configuration(target)) == {"own": 2, "group": 1, "forward": 32}


def test_a_job_has_an_entry_for_each_worker_and_thread_in_the_row_of_its_number(target: Target, job: JobEntry) -> None:
    entities = desired.of_job(target, job)
    assert places(entities) == {"deliver": 3, "group": 1, "admit": 6}
    for entity in entities:
        if isinstance(entity, fy.P4MulticastGroupEntry):
            assert entity.multicast_group_id == 8
            assert list(entity.replicas) == [(0, 0), (1, 1), (2, 2)]
        elif entity.table_id == "admit":
            assert isinstance(entity.action, fy.P4TableAction)
            assert (entity.action.args["row"], entity.action.args["group"]) == (8, 8)


def test_a_job_below_a_parent_has_entries_for_both_directions(
    target: Target, job: JobEntry, hosts: tuple[Host, ...]
) -> None:
    spine = hosts[9]
    target = dataclasses.replace(target, parent=spine)
    below = dataclasses.replace(job, uplink=Uplink(Endpoint(spine.address, 43488), 4))
    entities = desired.of_job(target, below)
    assert places(entities) == {"deliver": 4, "group": 2, "admit": 6, "admit_parent_entry": 2}
    (up,) = [e for e in entities if isinstance(e, fy.P4MulticastGroupEntry) and e.multicast_group_id != 8]
    assert (up.multicast_group_id, list(up.replicas)) == (520, [(spine.port, 0xFF)])
    with pytest.raises(ValueError, match=r"knows no host with the address 10\.7\.7\.7"):
        desired.of_job(target, dataclasses.replace(job, uplink=Uplink(Endpoint("10.7.7.7", 43488), 4)))


def test_a_software_switch_with_multicast_groups_sends_one_copy_unless_switches_are_below(job: JobEntry) -> None:
    pipeline = device_config.software()
    target = Target("soft", "software", "unused", 0, pipeline, "10.0.0.1", multicast="239.192.0.0")
    assert target.results_group(job.job) == Endpoint("239.192.0.7", 43488)
    entities = desired.of_job(target, job)
    assert places(entities) == {"deliver": 4, "group": 1, "admit": 6}
    assert copies(entities) == [0xFE]
    above = dataclasses.replace(job, below=("rack2",))
    assert copies(desired.of_job(target, above)) == [0, 1, 2]
    assert copies(desired.of_job(dataclasses.replace(target, multicast=""), job)) == [0, 1, 2]


def copies(entities: list[desired.Entity]) -> list[int]:
    (group,) = [entity for entity in entities if isinstance(entity, fy.P4MulticastGroupEntry)]
    return [receiver for _, receiver in group.replicas]


def test_jobs_use_no_row_or_group_that_is_reserved(target: Target) -> None:
    rows = [target.row(job) for job in range(target.jobs_max)]
    assert min(rows) == 1
    assert max(rows) == target.pipeline.job_rows - 1 < FLOOD_GROUP < UPLINK_GROUPS
    assert len(set(rows)) == len(rows)


def test_the_order_of_jobs_does_not_matter(target: Target, job: JobEntry) -> None:
    other = dataclasses.replace(job, job=3)
    one, two = desired.everything(target, [job, other]), desired.everything(target, [other, job])
    assert sorted(map(repr, one)) == sorted(map(repr, two))


def test_unknown_hosts_of_a_job_are_named(target: Target, job: JobEntry) -> None:
    strangers = (job.endpoints[0], Endpoint("10.9.9.9", 1), Endpoint("10.8.8.8", 1))
    with pytest.raises(ValueError, match=r"leaf knows no host with the address 10\.8\.8\.8, 10\.9\.9\.9: add it"):
        desired.of_job(target, dataclasses.replace(job, endpoints=strangers))


def test_in_a_tree_all_hosts_behind_a_port_are_forwarded_to_and_flooded(target: Target, job: JobEntry) -> None:
    far = Host("far", "10.0.9.1", "02:00:0a:00:09:01", 40)
    leaf = dataclasses.replace(
        target,
        parent=Host("spine", "10.0.1.1", "02:00:0a:00:01:01", 40),
        children=(Host("below", "10.0.2.1", "02:00:0a:00:02:01", 41),),
        elsewhere=(far,),
    )
    assert places(desired.of_configuration(leaf)) == {"own": 2, "group": 1, "forward": 32 + 3}
    (flood,) = (e for e in desired.of_configuration(leaf) if isinstance(e, fy.P4MulticastGroupEntry))
    assert list(flood.replicas) == [(port, 0) for port in (0, 1, 2, 3, 40, 41)]
    of_both = dataclasses.replace(
        job,
        workers=4,
        endpoints=(*job.endpoints, Endpoint("10.0.2.1", 43488)),
        uplink=Uplink(Endpoint("10.0.1.1", 43488), 2),
    )
    assert [host.port for host in desired.hosts(leaf, of_both)] == [0, 1, 2, 41]
    entities = desired.of_job(leaf, of_both)
    assert places(entities) == {"deliver": 5, "group": 2, "admit": 8, "admit_parent_entry": 2}
    with pytest.raises(ValueError, match=r"knows no host with the address 10\.0\.9\.1"):
        desired.hosts(leaf, dataclasses.replace(job, workers=1, endpoints=(Endpoint("10.0.9.1", 5000),)))


def test_a_switch_without_ports_needs_no_hosts(target: Target, job: JobEntry) -> None:
    software = dataclasses.replace(target, kind="software", hosts=())
    assert places(desired.of_configuration(software)) == {"own": 2}
    assert places(desired.of_job(software, job)) == {"deliver": 3, "group": 1, "admit": 6}


@pytest.mark.parametrize("place", ["software", "software with multicast", "bmv2", "tofino pipe"])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize(
    ("workers", "below", "has_parent"), [(1, 0, False), (3, 0, True), (31, 1, False), (4, 2, True)]
)
def test_what_a_job_needs_is_what_is_written_for_it(
    target: Target, hosts: tuple[Host, ...], place: str, workers: int, below: int, threads: int, has_parent: bool
) -> None:
    parent = Host("spine", "10.0.1.1", "02:00:0a:00:01:01", 3)
    children = tuple(Host(f"rack{i}", f"10.0.2.{i}", f"02:00:0a:00:02:0{i}", 2) for i in range(below))
    target = dataclasses.replace(target, parent=parent if has_parent else None, children=children)
    if place == "tofino pipe":
        target = dataclasses.replace(target, kind="tofino", pipe=1, siblings=(0, 2))
    elif place != "bmv2":
        target = dataclasses.replace(target, kind="software", multicast="239.192.0.0" if "multicast" in place else "")
    there = [Endpoint(host.address, 5000) for host in (*hosts[:workers], *children)]
    entry = JobEntry(
        job=9,
        key=1234,
        workers=workers + below,
        threads=threads,
        lanes=64,
        slot_base=64,
        slots=64,
        endpoints=tuple(there),
        uplink=Uplink(Endpoint(parent.address, 43488), 4) if has_parent else None,
        below=tuple(child.name for child in children),
        port_offset=0,
    )
    written = places(desired.of_job(target, entry))
    needs = dict(desired.needs(target, entry.shape))
    assert needs.pop("multicast_groups") == written.pop("group")
    assert needs == written
    assert needs["admit"] == (workers + below) * threads


def test_a_switch_has_room_for_what_p4info_says(target: Target) -> None:
    sizes = {table.preamble.alias: table.size for table in target.pipeline.p4info.tables}
    room = desired.room(target)
    assert {name: room[name] for name in room if name in sizes} == {
        name: sizes[name] for name in ("admit", "admit_parent_entry", "deliver")
    }
    assert room["multicast_groups"] == 2 * target.jobs_max
