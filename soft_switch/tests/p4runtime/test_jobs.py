"""How entries become jobs of the data plane, checked with the entries that the controller writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest
from finsy import P4Schema

from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import admit, deliver
from wiresum.join.constants import EVERYONE, PARENT, UPLINK_GROUPS
from wiresum.switch.p4runtime import jobs
from wiresum.switch.p4runtime.refusal import Refusal
from wiresum.switch.p4runtime.schema import ParsedEntry
from wiresum_lab.doubles.p4runtime_controller import PROGRAM

SCHEMA = P4Schema(PROGRAM.p4info)
TABLES = {table.name: table for table in PROGRAM.schema.tables.values()}
ADMIT = TABLES["admit"]
ROW, LANES, SLOTS, JOBS_MAX = 8, 64, 4096, 1024
JOB = JobEntry(
    job=7,
    key=0xFEED0007,
    workers=3,
    threads=4,
    lanes=LANES,
    slot_base=32,
    slots=8,
    endpoints=tuple(Endpoint(f"10.0.0.{number + 1}", 5000 + 16 * number) for number in range(3)),
)
DELIVER = {worker: (int(IPv4Address(at.address)), at.port) for worker, at in enumerate(JOB.endpoints)}
DELIVERIES = jobs.Deliveries(DELIVER)
COPIES = {ROW: frozenset(range(3))}


def entries(job: JobEntry = JOB, port: int = 1) -> list[ParsedEntry]:
    made = admit.entries(job, ROW, [port] * job.workers)
    messages = [entry.encode(SCHEMA).table_entry for entry in made if entry.table_id == "admit"]
    return [ADMIT.entry(message, ADMIT.key(message)) for message in messages]


ABOVE = (0x0A000101, 43488)
BELOW = dataclasses.replace(JOB, uplink=Uplink(Endpoint("10.0.1.1", 43488), 4))
DELIVERIES_BELOW = jobs.Deliveries(DELIVER, (ABOVE, 4))
COPIES_BELOW = COPIES | {UPLINK_GROUPS + ROW: frozenset({PARENT})}


def answers(job: JobEntry = BELOW) -> list[ParsedEntry]:
    """The entries that admit the parent's answers."""
    table = TABLES["admit_parent_entry"]
    made = [entry for entry in admit.entries(job, ROW, [1] * job.workers) if entry.table_id == "admit_parent_entry"]
    messages = [entry.encode(SCHEMA).table_entry for entry in made]
    return [table.entry(message, table.key(message)) for message in messages]


def changed(entry: ParsedEntry, **params: int) -> ParsedEntry:
    return dataclasses.replace(entry, params={**entry.params, **params})


def plan(admitted: Sequence[ParsedEntry]) -> jobs.InstalledJob:
    return jobs.plan(admitted, DELIVERIES, COPIES, LANES)


def test_a_complete_job_equals_its_admission_by_the_join_service() -> None:
    made = plan(entries())
    job = made.admission
    assert made.row == ROW
    assert (job.job, job.key, job.threads, job.lanes) == (JOB.job, JOB.key, JOB.threads, JOB.lanes)
    assert (job.slot_base, job.slots) == (JOB.slot_base, JOB.slots)
    assert job.endpoints == tuple(DELIVER.values())
    assert job.contributors == (0b111,) * 4 + (0,) * 12
    assert job.sources == (*DELIVER.values(), *[jobs.NOWHERE] * 29)
    assert job.receivers == 0b111


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("slots", [16, 4096])
def test_lease_and_threads_are_recovered_from_the_entries(threads: int, slots: int) -> None:
    job = dataclasses.replace(JOB, threads=threads, slots=slots, slot_base=0, workers=1, endpoints=JOB.endpoints[:1])
    made = plan(entries(job)).admission
    assert (made.threads, made.slots, len(made.endpoints)) == (threads, slots, 1)


@pytest.mark.parametrize("port_offset", [0, 4, 12])
def test_the_ports_of_switch_and_workers_are_recovered_from_the_entries(port_offset: int) -> None:
    job = dataclasses.replace(BELOW, port_offset=port_offset)
    for entry in [*entries(job), *answers(job)]:
        jobs.check(entry, SLOTS, JOBS_MAX)
    # The switch adds the offset of its port to the port of a delivery.
    at = {worker: (address, port - port_offset) for worker, (address, port) in DELIVER.items()}
    deliveries = jobs.Deliveries(at, ((ABOVE[0], ABOVE[1] - port_offset), 4))
    made = jobs.plan(entries(job), deliveries, COPIES_BELOW, LANES, answers(job)).admission
    whole = jobs.plan(entries(BELOW), DELIVERIES_BELOW, COPIES_BELOW, LANES, answers()).admission
    assert made == dataclasses.replace(whole, port_offset=port_offset)


def test_entries_at_other_ports_of_the_switch_contradict_the_job() -> None:
    first, *others = entries()
    with pytest.raises(jobs.ContradictionError, match="or ports"):
        plan([dataclasses.replace(first, match={**first.match, "thread": 4}), *others])


def test_ports_beyond_those_of_the_switch_are_refused() -> None:
    last = entries(dataclasses.replace(JOB, port_offset=12))[3]
    jobs.check(last, SLOTS, JOBS_MAX)
    third = changed(last, lease_prefix=2 * last.params["lease_prefix"] // 3)
    with pytest.raises(Refusal, match="ports lie within the switch's"):
        jobs.check(third, SLOTS, JOBS_MAX)


def test_the_largest_job_fits() -> None:
    job = dataclasses.replace(JOB, workers=32, endpoints=JOB.endpoints[:1] * 32)
    assert plan(entries(job)).admission.contributors[0] == 0xFFFFFFFF


def test_the_order_of_entries_does_not_matter() -> None:
    assert plan(entries()) == plan(entries()[::-1])


def test_a_worker_without_an_entry_is_not_admitted() -> None:
    some = [entry for entry in entries() if (entry.match["worker"], entry.match["thread"]) != (1, 2)]
    job = plan(some).admission
    assert job.contributors[:4] == (0b111, 0b111, 0b101, 0b111)
    assert (job.threads, job.slots) == (4, 8)


def test_a_job_without_the_entries_of_its_last_threads_has_fewer_slots() -> None:
    some = [entry for entry in entries() if entry.match["thread"] == 0]
    job = plan(some).admission
    assert (job.threads, job.slot_base, job.slots) == (1, 32, 2)


def test_a_receiver_must_be_in_the_group_and_have_a_delivery() -> None:
    without_group = jobs.plan(entries(), DELIVERIES, {}, LANES).admission
    assert (without_group.receivers, without_group.endpoints[2]) == (0, DELIVER[2])
    first_two = jobs.Deliveries({0: DELIVER[0], 1: DELIVER[1]})
    some = jobs.plan(entries(), first_two, {ROW: frozenset({1, 2, 77})}, LANES).admission
    assert some.receivers == 0b010
    assert some.endpoints[2] == (0, 0)


GROUP = (int(IPv4Address("239.192.0.7")), 43488)


@pytest.mark.parametrize("port_offset", [0, 4])
def test_the_single_copy_for_everyone_goes_to_the_delivery_of_everyone(port_offset: int) -> None:
    address, port = GROUP
    deliveries = jobs.Deliveries(DELIVER, everyone=(address, port - port_offset))
    to_all = {ROW: frozenset({EVERYONE})}
    admitted = entries(dataclasses.replace(JOB, port_offset=port_offset))
    assert jobs.plan(admitted, deliveries, to_all, LANES).admission.results_group == GROUP
    assert jobs.plan(admitted, deliveries, COPIES, LANES).admission.results_group == jobs.NOWHERE
    nowhere = jobs.plan(admitted, DELIVERIES, to_all, LANES).admission
    assert (nowhere.results_group, nowhere.receivers) == (jobs.NOWHERE, 0)


def test_the_delivery_of_everyone_needs_a_multicast_address_and_a_switch_that_can_multicast() -> None:
    table = TABLES["deliver"]

    def entry(address: str) -> ParsedEntry:
        message = deliver.to_everyone(JOB, Endpoint(address, 43488)).encode(SCHEMA).table_entry
        return table.entry(message, table.key(message))

    jobs.check(entry("239.192.0.7"), SLOTS, JOBS_MAX)
    assert jobs.deliveries([entry("239.192.0.7")]) == jobs.Deliveries(everyone=GROUP)
    with pytest.raises(Refusal, match="all workers at once, at a multicast address"):
        jobs.check(entry("10.0.0.7"), SLOTS, JOBS_MAX)
    with pytest.raises(Refusal, match="because"):
        jobs.check(entry("239.192.0.7"), SLOTS, JOBS_MAX, "because")


def test_the_ingress_port_makes_no_difference() -> None:
    assert plan([*entries(port=1), *entries(port=2)]) == plan(entries())


@pytest.mark.parametrize(
    "params",
    [{"row": 9}, {"group": 9}, {"bit_others": 0b10}, {"cell_base": 0}, {"lease_mask": 0xFFF0}],
    ids=lambda params: next(iter(params)),
)
def test_contradicting_entries_are_an_error(params: dict[str, int]) -> None:
    first, *others = entries()
    with pytest.raises(jobs.ContradictionError):
        plan([changed(first, **params), *others])


def test_a_worker_at_two_addresses_is_an_error() -> None:
    first, *others = entries()
    for field in ("source", "source_port"):
        moved = dataclasses.replace(first, match={**first.match, field: 99})
        with pytest.raises(jobs.ContradictionError, match="two addresses, or base ports"):
            plan([moved, *others])


def test_every_entry_of_a_job_is_accepted() -> None:
    for entry in entries():
        jobs.check(entry, SLOTS, JOBS_MAX)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"lease_mask": 0xFFFD}, "UNIMPLEMENTED"),
        ({"lease_mask": 0xFFFF}, "UNIMPLEMENTED"),
        ({"lease_prefix": 4}, "UNIMPLEMENTED"),
        ({"cell_base": 65}, "UNIMPLEMENTED"),
        ({"bit_own": 0b010}, "UNIMPLEMENTED"),
        ({"bit_others": 0b111}, "UNIMPLEMENTED"),
        ({"bit_others": 0b1010}, "UNIMPLEMENTED"),
        ({"cell_base": 8190}, "OUT_OF_RANGE"),
    ],
)
def test_an_impossible_entry_is_refused(params: dict[str, int], code: str) -> None:
    first = entries()[0]
    with pytest.raises(Refusal) as refusal:
        jobs.check(changed(first, **params), SLOTS, JOBS_MAX)
    assert refusal.value.code.name == code


def test_a_source_port_below_the_threads_number_is_refused() -> None:
    third = entries()[2]
    jobs.check(dataclasses.replace(third, match={**third.match, "source_port": 2}), SLOTS, JOBS_MAX)
    with pytest.raises(Refusal, match="base port plus the thread's number"):
        jobs.check(dataclasses.replace(third, match={**third.match, "source_port": 1}), SLOTS, JOBS_MAX)


def test_a_worker_may_send_from_another_address_than_it_receives_at() -> None:
    moved = [
        dataclasses.replace(e, match={**e.match, "source": 99, "source_port": 700 + e.match["thread"]})
        for e in entries()
    ]
    made = plan(moved).admission
    assert made.sources[:3] == ((99, 700),) * 3
    assert made.endpoints == tuple(DELIVER.values())


def test_a_job_with_a_parent_has_its_address_and_number() -> None:
    for entry in [*entries(BELOW), *answers()]:
        jobs.check(entry, SLOTS, JOBS_MAX)
    made = jobs.plan(entries(BELOW), DELIVERIES_BELOW, COPIES_BELOW, LANES, answers()).admission
    assert (made.parent, made.number_at_parent, len(made.endpoints)) == (ABOVE, 4, 3)
    assert plan(entries()).admission.parent == jobs.NOWHERE


def test_a_job_with_a_parent_waits_until_the_entries_for_both_directions_are_there() -> None:
    whole = (DELIVERIES_BELOW, COPIES_BELOW, answers())
    elsewhere = jobs.Deliveries(DELIVER, ((ABOVE[0], 7), 4))
    for deliveries, copies, admitted in (
        (DELIVERIES, *whole[1:]),
        (elsewhere, *whole[1:]),
        (whole[0], COPIES, whole[2]),
        (*whole[:2], answers()[1:]),
        (*whole[:2], [changed(entry, cell_base=0) for entry in answers()]),
    ):
        with pytest.raises(jobs.ContradictionError, match="the switch above"):
            jobs.plan(entries(BELOW), deliveries, copies, LANES, admitted)


def test_has_parent_without_the_parents_bit_is_refused() -> None:
    with pytest.raises(Refusal, match="bit 31"):
        jobs.check(changed(entries()[0], has_parent=1), SLOTS, JOBS_MAX)


def test_a_job_number_beyond_the_table_is_refused() -> None:
    (entry, *_) = entries(dataclasses.replace(JOB, job=JOBS_MAX))
    with pytest.raises(Refusal, match="job numbers up to 1023"):
        jobs.check(entry, SLOTS, JOBS_MAX)


def test_an_installed_job_may_change_anything_but_its_lease() -> None:
    whole = plan(entries())
    assert plan(entries()[1:]).keeps_lease_of(whole)
    assert not plan([changed(entry, row=9) for entry in entries()]).keeps_lease_of(whole)
    assert not plan(entries(dataclasses.replace(JOB, slot_base=64))).keeps_lease_of(whole)
