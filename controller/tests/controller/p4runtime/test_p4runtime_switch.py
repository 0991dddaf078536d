from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import finsy as fy
import pytest

from wiresum.controller import DriverError, Endpoint, JobCounters, JobEntry, SwitchDriver
from wiresum.controller.p4runtime import Host, P4RuntimeSwitch, Target, admit, count, deliver, own
from wiresum.controller.resources import Amounts
from wiresum.join.constants import FLOOD_GROUP
from wiresum_lab.doubles.p4runtime_proxy import Proxy
from wiresum_lab.patience import PATIENCE_S

Controllers = Callable[[Target, int], P4RuntimeSwitch]

pytestmark = pytest.mark.parametrize("kind", ["software", "bmv2"], indirect=True)
"""The controller treats both in the same way."""


def table(switch: P4RuntimeSwitch, name: str) -> list[fy.P4TableEntry]:
    return switch.tables.read("entries", [fy.P4TableEntry(name)])


def groups(switch: P4RuntimeSwitch) -> dict[int, int]:
    """The number of copies that each group makes."""
    found = switch.tables.read("groups", [fy.P4MulticastGroupEntry()])
    return {group.multicast_group_id: len(group.replicas) for group in found}


def set_counter(switch: P4RuntimeSwitch, row: int, column: int, packets: int) -> None:
    entry = count.reads(row)[column]
    entry.data = fy.P4CounterData(packet_count=packets)
    switch.tables.modify("a counter", [entry])


def test_it_implements_the_driver_interface_with_the_programs_sizes(switch: P4RuntimeSwitch, target: Target) -> None:
    assert isinstance(switch, SwitchDriver)
    assert (switch.name, switch.kind, switch.trouble) == ("leaf", "bmv2", "")
    assert switch.sizes.lanes_max == target.pipeline.lanes
    assert switch.sizes.slots == target.pipeline.slots
    assert switch.sizes.jobs_max == target.pipeline.job_rows - 1
    assert switch.endpoint == Endpoint("10.0.0.1", 0xA9E0)


def test_the_first_reconciliation_installs_the_switchs_address_and_hosts(switch: P4RuntimeSwitch, proxy: Proxy) -> None:
    assert {str(entry.match["address"]) for entry in table(switch, "own")} == {"10.0.0.1", own.KEYS_ADDRESS}
    assert len(table(switch, "forward")) == 32
    assert groups(switch) == {FLOOD_GROUP: 4}
    assert not table(switch, "admit")
    assert proxy.loads == 1


def test_admission_is_written_last_and_removed_first(switch: P4RuntimeSwitch, proxy: Proxy, job: JobEntry) -> None:
    proxy.log.clear()
    switch.admit(job)
    assert list(dict.fromkeys(place for _, place in proxy.log)) == ["counter", "deliver", "group", "admit"]
    assert len(table(switch, "admit")) == 6
    assert groups(switch) == {8: 3, FLOOD_GROUP: 4}
    proxy.log.clear()
    switch.evict(job.job)
    assert list(dict.fromkeys(proxy.log)) == [("DELETE", "admit"), ("DELETE", "group"), ("DELETE", "deliver")]
    assert not table(switch, "admit")
    assert not table(switch, "deliver")
    assert groups(switch) == {FLOOD_GROUP: 4}


def test_a_restarted_controller_finds_the_jobs_and_changes_nothing(
    switch: P4RuntimeSwitch, proxy: Proxy, target: Target, job: JobEntry, controllers: Controllers
) -> None:
    switch.admit(job)
    set_counter(switch, 8, 0, 5)
    proxy.log.clear()
    again = controllers(target, 11)
    again.wait_ready()
    assert again.reconcile([job]) == again.reconcile([job])
    assert not again.reconcile([job]).reloaded
    assert not proxy.log
    assert proxy.loads == 1
    assert again.counters(job.job).packets["admitted"] == 5
    again.evict(job.job)
    assert not table(again, "admit")


def test_reconciliation_removes_unknown_jobs_and_adds_missing_ones(
    switch: P4RuntimeSwitch, proxy: Proxy, job: JobEntry
) -> None:
    switch.admit(job)
    other = dataclasses.replace(job, job=9, key=1)
    proxy.log.clear()
    changes = switch.reconcile([other]).changes
    assert list(dict.fromkeys(proxy.log)) == [
        ("DELETE", "admit"),
        ("DELETE", "group"),
        ("DELETE", "deliver"),
        ("INSERT", "deliver"),
        ("INSERT", "group"),
        ("INSERT", "admit"),
    ]
    assert len(changes) == len(proxy.log) == 20
    assert changes[0].startswith("- admit ingress_port 0, source 10.0.0.10, source_port 5000, thread 0, job 7,")
    assert not switch.reconcile([other]).changes
    with pytest.raises(AssertionError, match="admitted already"):
        switch.admit(other)
    switch.admit(job)


def test_a_host_that_moved_is_modified_in_place(
    switch: P4RuntimeSwitch, proxy: Proxy, target: Target, hosts: tuple[Host, ...], controllers: Controllers
) -> None:
    moved = dataclasses.replace(hosts[0], port=9)
    proxy.log.clear()
    again = controllers(dataclasses.replace(target, hosts=(moved, *hosts[1:])), 11)
    again.wait_ready()
    assert again.reconcile([]).changes == (
        "~ forward mac 02:00:0a:00:00:0a: forward_to(port 9)",
        "~ group 256: port 0 (receiver 0), port 1 (receiver 0), port 2 (receiver 0), port 3 (receiver 0), "
        "port 9 (receiver 0)",
    )
    assert proxy.log == [("MODIFY", "forward"), ("MODIFY", "group")]


def test_altered_entries_are_corrected(switch: P4RuntimeSwitch, job: JobEntry) -> None:
    switch.admit(job)
    switch.tables.modify("an address", own.entries("10.0.0.1", "02:00:00:00:00:99")[1:])
    switch.tables.modify("a delivery", deliver.entries(job, [Host("x", "10.0.0.9", "02:00:00:00:00:98", 9)] * 3)[:1])
    switch.tables.modify("the group", [deliver.group(8, [1])])
    switch.tables.delete("an admission", admit.entries(job, 8, [0, 1, 2])[:1])
    signs = [line.split()[:2] for line in switch.reconcile([job]).changes]
    assert signs == [["~", "deliver"], ["~", "group"], ["+", "admit"], ["~", "own"]]
    assert not switch.reconcile([job]).changes


def test_a_restarted_switch_gets_the_program_and_reports_its_jobs_as_lost(
    target: Target, job: JobEntry, proxy: Proxy, controllers: Controllers
) -> None:
    switch = controllers(target, 10)
    switch.wait_ready()
    for _ in range(2):  # nothing is installed until the lost jobs have been ended, however often this is repeated
        found = switch.reconcile([job])
        assert found.reloaded
        assert not found.changes
        assert (proxy.loads, proxy.log) == (0, [])
        with pytest.raises(DriverError, match="has not been reconciled"):
            switch.admit(job)
    assert switch.reconcile([]).reloaded
    assert not switch.reconcile([]).reloaded
    assert proxy.loads == 1
    switch.admit(job)


def test_a_switch_must_be_reconciled_after_a_lost_connection(
    target: Target, server: str, job: JobEntry, controllers: Controllers
) -> None:
    proxy = Proxy(server)
    port = int(proxy.address.rpartition(":")[2])
    switch = controllers(dataclasses.replace(target, p4runtime=proxy.address), 10)
    changed = threading.Event()
    switch.on_change = changed.set
    switch.wait_ready()
    switch.reconcile([])
    switch.admit(job)
    changed.clear()
    proxy.stop()
    assert changed.wait(PATIENCE_S)
    with pytest.raises(DriverError, match="out of reach"):
        switch.evict(job.job)
    proxy = Proxy(server, port)
    try:
        switch.wait_ready()
        with pytest.raises(DriverError, match="has not been reconciled since it came back"):
            switch.evict(job.job)
        assert not switch.reconcile([job]).changes
        switch.evict(job.job)
    finally:
        proxy.stop()


@pytest.mark.parametrize("place", ["deliver", "group", "admit"])
def test_a_job_that_the_switch_refuses_leaves_no_entries(
    switch: P4RuntimeSwitch, proxy: Proxy, job: JobEntry, place: str
) -> None:
    proxy.refuses = lambda kind, where: (kind, where) == ("INSERT", place)
    with pytest.raises(DriverError, match=r"could not add .* for job 7: Out of order \(INTERNAL\)"):
        switch.admit(job)
    assert not table(switch, "admit")
    assert not table(switch, "deliver")
    assert groups(switch) == {FLOOD_GROUP: 4}
    proxy.refuses = lambda _kind, _place: False
    switch.admit(job)
    assert len(table(switch, "admit")) == 6


def test_what_a_refused_job_leaves_is_evicted_later(switch: P4RuntimeSwitch, proxy: Proxy, job: JobEntry) -> None:
    proxy.refuses = lambda kind, where: kind == "DELETE" or (kind, where) == ("INSERT", "admit")
    with pytest.raises(DriverError, match="could not add"):
        switch.admit(job)
    assert table(switch, "deliver")
    proxy.refuses = lambda _kind, _place: False
    switch.evict(job.job)
    assert not table(switch, "deliver")
    switch.admit(job)


def test_a_failed_eviction_can_be_repeated(switch: P4RuntimeSwitch, proxy: Proxy, job: JobEntry) -> None:
    switch.admit(job)
    proxy.refuses = lambda kind, _place: kind == "DELETE"
    with pytest.raises(DriverError, match="could not remove entries of table admit of job 7: Out of order"):
        switch.evict(job.job)
    proxy.refuses = lambda _kind, _place: False
    switch.evict(job.job)
    assert not table(switch, "admit")
    switch.evict(job.job)  # evicting an absent job is no error


def test_counters_begin_at_zero_and_survive_the_job(switch: P4RuntimeSwitch, job: JobEntry) -> None:
    set_counter(switch, 8, 0, 99)  # left by an earlier job in the same row
    assert switch.counters(job.job) == JobCounters()
    switch.admit(job)
    assert switch.counters(job.job).packets["admitted"] == 0
    for column, packets in ((0, 5), (2, 2), (10, 3), (40, 1)):
        set_counter(switch, 8, column, packets)
    live = switch.counters(job.job)
    assert (live.packets["admitted"], live.packets["duplicate"], live.results) == (5, 2, 1)
    assert live.contributions == (0, 0, 3)
    switch.evict(job.job)
    set_counter(switch, 8, 0, 0)
    assert switch.counters(job.job) == live
    switch.admit(job)
    assert switch.counters(job.job).results == 0


def test_packets_without_a_job_are_counted_separately(switch: P4RuntimeSwitch) -> None:
    set_counter(switch, 0, 5, 4)
    assert switch.stray().packets["unknown"] == 4


def test_a_worker_on_an_unknown_host_is_named(switch: P4RuntimeSwitch, job: JobEntry) -> None:
    assert switch.reaches("10.0.0.10")
    assert not switch.reaches("10.9.9.9")
    stranger = dataclasses.replace(job, endpoints=(*job.endpoints[:2], Endpoint("10.9.9.9", 5000)))
    for call in (switch.admit, lambda entry: switch.reconcile([entry])):
        with pytest.raises(DriverError, match=r"no host with the address 10\.9\.9\.9: add it to the controller's"):
            call(stranger)
    assert not table(switch, "deliver")


def test_a_switch_with_keys_of_another_sequence_is_reloaded(
    target: Target, proxy: Proxy, job: JobEntry, controllers: Controllers
) -> None:
    for number, (keys, loads) in enumerate([(b"one", 1), (b"one", 1), (b"other", 2), (b"one", 3)]):
        switch = controllers(target.with_keys(keys), 10 + number)
        switch.wait_ready()
        before = proxy.loads
        assert switch.reconcile([]).reloaded == (loads > before), "loading ends all jobs"
        assert proxy.loads == loads
        switch.admit(job)
        assert len(table(switch, "admit")) == 6
        switch.evict(job.job)


def test_a_switch_without_ports_accepts_workers_at_any_address(
    target: Target, job: JobEntry, controllers: Controllers
) -> None:
    switch = controllers(dataclasses.replace(target, kind="software", hosts=()), 10)
    switch.wait_ready()
    switch.reconcile([])
    assert switch.reaches("10.9.9.9")
    switch.admit(dataclasses.replace(job, endpoints=tuple(Endpoint(f"10.9.9.{i}", 5000) for i in range(3))))
    assert not table(switch, "forward")
    assert groups(switch) == {8: 3}


def test_a_job_with_another_packet_length_is_refused(switch: P4RuntimeSwitch, job: JobEntry) -> None:
    with pytest.raises(DriverError, match="WIRESUM_LANES"):
        switch.admit(dataclasses.replace(job, lanes=job.lanes // 2))


@pytest.mark.parametrize(("table_name", "entries"), [("admit", 6), ("deliver", 3)])
def test_a_job_that_does_not_fit_into_a_table_is_refused(
    switch: P4RuntimeSwitch, job: JobEntry, monkeypatch: pytest.MonkeyPatch, table_name: str, entries: int
) -> None:
    tables = Amounts({**switch.sizes.tables, table_name: 2 * entries})
    monkeypatch.setattr(switch, "sizes", dataclasses.replace(switch.sizes, tables=tables))
    for number in (1, 2):
        switch.admit(dataclasses.replace(job, job=number, slot_base=8 * number))
    third = dataclasses.replace(job, job=3)
    with pytest.raises(DriverError, match=rf"table {table_name} .* this job needs {entries}"):
        switch.admit(third)
    switch.evict(1)
    switch.admit(third)


def test_a_switch_stores_how_many_keys_it_was_given_until_it_is_reloaded(
    target: Target, job: JobEntry, controllers: Controllers
) -> None:
    first = controllers(target, 10)
    first.wait_ready()
    assert first.reconcile([]).keys_reserved == 0
    first.admit(dataclasses.replace(job, keys_reserved=128))
    first.evict(job.job)
    first.admit(dataclasses.replace(job, job=8, keys_reserved=64))
    assert first.reconcile([]).keys_reserved == 0, "no other controller has given it any"
    second = controllers(target, 11)
    second.wait_ready()
    found = second.reconcile([dataclasses.replace(job, keys_reserved=192)])
    assert (found.keys_reserved, found.added) == (128, {job.job})
    third = controllers(target, 12)
    third.wait_ready()
    found = third.reconcile([job])
    assert (found.keys_reserved, found.added) == (192, set())
    other = controllers(target.with_keys(b"other"), 13)
    other.wait_ready()
    assert other.reconcile([]).keys_reserved == 0, "it was reloaded"


def test_the_number_of_keys_is_stored_before_a_job_is_admitted(
    switch: P4RuntimeSwitch, job: JobEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it cannot be stored, the job is not admitted."""

    def fail(what: str, entities: object) -> None:
        raise DriverError(f"could not set {what}")

    monkeypatch.setattr(switch.tables, "modify", fail)
    with pytest.raises(DriverError, match="how many keys it has been given"):
        switch.admit(dataclasses.replace(job, keys_reserved=64))
    monkeypatch.undo()
    assert not table(switch, "admit")
    switch.admit(dataclasses.replace(job, keys_reserved=64))
    assert own.KeysGiven(64, switch._device._id) in map(own.decode_keys_given, table(switch, "own"))
