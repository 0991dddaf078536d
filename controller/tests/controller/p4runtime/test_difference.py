from __future__ import annotations

import dataclasses
import random

import finsy as fy
import pytest

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import Host, Target, deliver, desired, forward, own
from wiresum.controller.p4runtime.difference import STAGES, NormalEntry, difference, normal


def normals(entities: list[desired.Entity], schema: fy.P4Schema) -> list[NormalEntry]:
    return [normal(entity, schema) for entity in entities]


@pytest.fixture
def target(hosts: tuple[Host, ...], pipeline: object) -> Target:
    parent = Host("spine", "10.0.1.1", "02:00:0a:00:01:01", 40)
    return Target("leaf", "bmv2", "x", 0, pipeline, "10.0.0.1", "02:00:0a:00:00:01", hosts, parent)  # type: ignore[arg-type]


@pytest.fixture
def configured(target: Target, schema: fy.P4Schema) -> list[NormalEntry]:
    return normals(desired.of_configuration(target), schema)


@pytest.fixture
def job(job: JobEntry, hosts: tuple[Host, ...]) -> JobEntry:
    """A job with a parent, so that it has entries in all stages."""
    return dataclasses.replace(job, uplink=Uplink(Endpoint("10.0.1.1", 43488), 4))


@pytest.fixture
def of_job(target: Target, job: JobEntry, schema: fy.P4Schema) -> list[NormalEntry]:
    return normals(desired.of_job(target, job), schema)


@pytest.fixture
def of_job_below(target: Target, job: JobEntry, schema: fy.P4Schema) -> list[NormalEntry]:
    """Another job with a parent."""
    below = dataclasses.replace(job, job=8, uplink=Uplink(Endpoint("10.0.1.1", 43488), 3))
    return normals(desired.of_job(target, below), schema)


def test_correct_entries_are_left_alone(configured: list[NormalEntry], of_job: list[NormalEntry]) -> None:
    held = [*configured, *of_job]
    random.Random(1).shuffle(held)
    assert not difference(held, [*configured, *of_job])


def test_stages_are_added_in_order_and_removed_in_reverse(
    configured: list[NormalEntry], of_job_below: list[NormalEntry]
) -> None:
    everything = [*of_job_below, *configured]
    assert [(batch.kind, batch.stage) for batch in difference([], everything)] == [
        ("INSERT", stage) for stage in STAGES
    ]
    gone = [(batch.kind, batch.stage) for batch in difference(everything, [])]
    assert gone == [("DELETE", stage) for stage in reversed(STAGES)]
    assert STAGES[-2:] == ("admit", "own")


def test_all_removals_come_before_any_addition(configured: list[NormalEntry], of_job: list[NormalEntry]) -> None:
    kinds = [batch.kind for batch in difference(of_job, configured)]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"DELETE", "INSERT"}


def test_a_changed_entry_is_modified_but_admission_is_removed_and_added_again(
    target: Target, job: JobEntry, of_job: list[NormalEntry], schema: fy.P4Schema
) -> None:
    other = desired.of_job(target, job)
    for entity in other:
        if isinstance(entity, fy.P4MulticastGroupEntry):
            entity.replicas = [(3, 3)]
        elif entity.table_id == "deliver":
            entity.action = fy.Action("deliver_to", mac="02:00:00:00:00:77", address="10.0.0.77", port=7)
        else:
            assert isinstance(entity.action, fy.P4TableAction)
            entity.action.args["cell_base"] = 0
    batches = difference(normals(other, schema), of_job)
    assert [(batch.kind, batch.stage, len(batch.entries)) for batch in batches] == [
        ("DELETE", "admit", 6),
        ("DELETE", "admit_parent_entry", 2),
        ("MODIFY", "deliver", 4),
        ("MODIFY", "group", 2),
        ("INSERT", "admit_parent_entry", 2),
        ("INSERT", "admit", 6),
    ]


def test_a_modification_writes_the_wanted_entry(schema: fy.P4Schema) -> None:
    wanted = [normal(deliver.group(8, [0, 1, 2]), schema)]
    (batch,) = difference([normal(deliver.group(8, [9]), schema)], wanted)
    (entry,) = batch.entries
    assert isinstance(entry.entity, fy.P4MulticastGroupEntry)
    assert list(entry.entity.replicas) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("stage", STAGES)
def test_equivalent_encodings_of_an_entry_are_equal(
    configured: list[NormalEntry], of_job_below: list[NormalEntry], schema: fy.P4Schema, stage: str
) -> None:
    """Fields in another order, numbers with leading zeros, and metadata of the switch make no difference."""
    entry = next(entry for entry in [*configured, *of_job_below] if entry.stage == stage)
    message = entry.entity.encode(schema)
    if stage == "group":
        replicas = message.packet_replication_engine_entry.multicast_group_entry.replicas
        replicas.sort(key=lambda replica: -replica.egress_port)
        again: desired.Entity = fy.P4MulticastGroupEntry.decode(message, schema)
    else:
        table = message.table_entry
        table.match.sort(key=lambda field: -field.field_id)
        for field in table.match:
            field.exact.value = bytes(2) + field.exact.value
        table.action.action.params.sort(key=lambda param: -param.param_id)
        table.controller_metadata = 17
        table.idle_timeout_ns = 5
        again = fy.P4TableEntry.decode(message, schema)
    assert normal(again, schema) == entry
    assert normal(again, schema).text == entry.text


def test_the_text_of_a_change_does_not_contain_the_jobs_key(of_job: list[NormalEntry], job: JobEntry) -> None:
    lines = [line for batch in difference([], of_job) for line in batch.lines()]
    assert any("key (secret)" in line for line in lines)
    assert not any(str(job.key) in line or f"{job.key:x}" in line for line in lines)


def test_changes_are_described_in_readable_lines(schema: fy.P4Schema) -> None:
    host = Host("h", "10.0.0.9", "02:00:00:00:00:09", 4)
    held_address = [
        fy.P4TableEntry.decode(entry.encode(schema), schema) for entry in own.entries("10.0.0.1", "02:00:00:00:00:01")
    ]
    held = normals([*held_address, forward.flood_group([host])], schema)
    wanted = normals([*own.entries("10.0.0.1", "02:00:00:00:00:02"), *forward.entries([host])], schema)
    assert [line for batch in difference(held, wanted) for line in batch.lines()] == [
        "- own address 10.0.0.1, destination 02:00:00:00:00:01: own_address(mac 02:00:00:00:00:01)",
        "- group 256: port 4 (receiver 0)",
        "+ forward mac 02:00:00:00:00:09: forward_to(port 4)",
        "~ own address 10.0.0.1, destination ff:ff:ff:ff:ff:ff: own_address(mac 02:00:00:00:00:02)",
        "+ own address 10.0.0.1, destination 02:00:00:00:00:02: own_address(mac 02:00:00:00:00:02)",
    ]
