from __future__ import annotations

import dataclasses
from ipaddress import IPv4Address

import finsy as fy
import pytest

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import admit


def test_each_worker_and_thread_has_an_entry_that_only_its_own_packets_match(
    job: JobEntry, schema: fy.P4Schema
) -> None:
    entries = [_through_the_wire(entry, schema) for entry in admit.entries(job, 5, [9, 8, 7])]
    matches = [dict(entry.match or {}) for entry in entries]
    assert matches == [
        {"ingress_port": 9 - w, "source": IPv4Address("10.0.0.10") + w, "source_port": endpoint.port + t, "thread": t}
        | {"job": 7, "key": 0xFEED0007, "worker": w}
        for w, endpoint in enumerate(job.endpoints)
        for t in range(2)
    ]


def test_a_port_offset_shifts_the_matched_ports_but_not_cells_or_sources(job: JobEntry, schema: fy.P4Schema) -> None:
    above = dataclasses.replace(job, port_offset=6)
    pairs = zip(admit.entries(job, 5, [9, 8, 7]), admit.entries(above, 5, [9, 8, 7]), strict=True)
    for plain, moved in ((_through_the_wire(a, schema), _through_the_wire(b, schema)) for a, b in pairs):
        match = dict(plain.match or {})
        assert dict(moved.match or {}) == match | {"thread": match["thread"] + 6}
        assert moved.action == plain.action


def test_an_entry_carries_the_parameters_of_the_cells(job: JobEntry, schema: fy.P4Schema) -> None:
    last = _arguments(admit.entries(job, 5, [9, 8, 7])[-1], schema)
    assert last == {
        "row": 5,
        "group": 5,
        "bit_own": 0b100,
        "bit_others": 0b011,
        "has_parent": 0,
        "cell_base": 64,
        "lease_mask": 0xFFF8,
        "lease_prefix": 8,
    }


def test_32_workers_fill_the_bitmap(job: JobEntry, schema: fy.P4Schema) -> None:
    many = dataclasses.replace(job, workers=32, endpoints=tuple(Endpoint(f"10.0.0.{i}", 5000) for i in range(32)))
    for worker, entry in enumerate(admit.entries(many, 1, [0] * 32)[::2]):
        arguments = _arguments(entry, schema)
        assert arguments["bit_own"] | arguments["bit_others"] == 0xFFFFFFFF
        assert arguments["bit_own"] == 1 << worker
        assert not arguments["bit_own"] & arguments["bit_others"]


@pytest.mark.parametrize(("slots", "threads"), [(1, 1), (8, 1), (8, 2), (16, 16), (4096, 16), (32768, 1), (32768, 8)])
def test_a_thread_may_only_use_its_own_part_of_the_lease(
    job: JobEntry, schema: fy.P4Schema, slots: int, threads: int
) -> None:
    entry = dataclasses.replace(job, workers=1, threads=threads, slots=slots, slot_base=0, endpoints=job.endpoints[:1])
    for thread, written in enumerate(admit.entries(entry, 1, [0])):
        arguments = _arguments(written, schema)
        mine = [cell for cell in range(1 << 16) if cell & arguments["lease_mask"] == arguments["lease_prefix"]]
        run = 2 * slots // threads
        assert mine == list(range(thread * run, (thread + 1) * run))


def test_a_parent_gets_the_next_bit_and_an_entry_for_its_answers(job: JobEntry, schema: fy.P4Schema) -> None:
    below = dataclasses.replace(job, uplink=Uplink(Endpoint("10.0.1.1", 43488), 4))
    *workers, _, _ = entries = [_through_the_wire(entry, schema) for entry in admit.entries(below, 5, [9, 8, 7], 6)]
    arguments = [_arguments(entry, schema) for entry in workers]
    assert {(a["bit_own"] | a["bit_others"], a["has_parent"]) for a in arguments} == {(1 << 31 | 0b111, 1)}
    answers = entries[len(workers) :]
    assert [entry.table_id for entry in answers] == ["admit_parent_entry"] * below.threads
    assert [dict(entry.match or {}) for entry in answers] == [
        {"ingress_port": 6, "source": IPv4Address("10.0.1.1"), "source_port": 43488 + thread, "thread": thread}
        | {"job": 7, "key": 0xFEED0007}
        for thread in range(below.threads)
    ]
    for own, answer in zip(arguments[: below.threads], answers, strict=True):
        assert isinstance(answer.action, fy.P4TableAction)
        alike = ("row", "group", "cell_base", "lease_mask", "lease_prefix")
        assert answer.action.args == {"bit_workers": 0b111} | {name: own[name] for name in alike}


def _through_the_wire(entry: fy.P4TableEntry, schema: fy.P4Schema) -> fy.P4TableEntry:
    return fy.P4TableEntry.decode(entry.encode(schema), schema)


def _arguments(entry: fy.P4TableEntry, schema: fy.P4Schema) -> dict[str, int]:
    action = _through_the_wire(entry, schema).action
    assert isinstance(action, fy.P4TableAction)
    assert action.name == "admit_worker"
    return action.args
