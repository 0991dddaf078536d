"""The controller's driver programs the software switch, and packets of workers show the effect."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from wiresum.controller import DriverError
from wiresum.controller.p4runtime import (
    STANDBY_ID,
    Host,
    P4RuntimeSwitch,
    admit,
    deliver,
)
from wiresum_lab.doubles.p4runtime_proxy import PATIENT, programmed_switch
from wiresum_lab.doubles.workers import MISSING, QUESTION, RESULT, DataplaneHarness, Job

DEVICE = 3
LANES, SLOTS = 4, 64
KEYS = itertools.count(0xFEED0001)
"""A switch gets each key once, unless it has been restarted."""
HOST = Host("", "127.0.0.1", "00:00:00:00:00:00", 0)


class Site:
    """A software switch with a P4Runtime server, and its controllers."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        made = cleanup.enter_context(programmed_switch(DEVICE, threads=2, slots=SLOTS, lanes_max=LANES))
        self.switch, self._target = made.switch, made.target
        self.driver = self.controller(STANDBY_ID + 1)
        self.driver.wait_ready()
        self.driver.reconcile([])

    def controller(self, election_id: int, keys: bytes = b"") -> P4RuntimeSwitch:
        """`keys`: the identity of the key sequence of its jobs."""
        made = P4RuntimeSwitch(self._target.with_keys(keys), election_id=election_id, times=PATIENT)
        return self._cleanup.enter_context(closing(made))


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as cleanup:
        yield Site(cleanup)


def job(harness: DataplaneHarness, site: Site, workers: int = 2, *, number: int = 1, key: int = 0) -> Job:
    """A job of one thread, installed by the driver."""
    sockets = [harness.open_socket() for _ in range(workers)]
    made = dataclasses.replace(harness.entry(sockets, job=number), key=key or next(KEYS))
    site.driver.admit(made)
    return Job(site.switch, made, sockets)


def sum_a_round(made: Job, number: int) -> None:
    workers = range(made.entry.workers)
    for worker in workers:
        made.send(made.packet(worker, number, (worker, 1, 2, 0xFFFFFFFF)))
    for worker in workers:
        result = made.receive(worker)
        total = made.entry.workers
        assert (result.kind, result.round) == (RESULT, number)
        assert result.words == (sum(workers), total, 2 * total, -total & 0xFFFFFFFF)


def test_a_switch_that_cannot_multicast_refuses_a_job_with_a_group(harness: DataplaneHarness) -> None:
    with programmed_switch(DEVICE, bind="0.0.0.0", slots=SLOTS, lanes_max=LANES) as made:
        target = dataclasses.replace(made.target, address="127.0.0.1", multicast="239.192.0.0")
        with closing(P4RuntimeSwitch(target, election_id=STANDBY_ID + 1, times=PATIENT)) as driver:
            driver.wait_ready()
            driver.reconcile([])
            with pytest.raises(DriverError, match="needs the address of one interface to bind to"):
                driver.admit(harness.entry([harness.open_socket()]))


def test_an_evicted_job_is_unknown_and_keeps_its_counters(harness: DataplaneHarness, site: Site) -> None:
    made = job(harness, site)
    sum_a_round(made, 1)
    site.driver.evict(1)
    made.send(made.packet(0, 3, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    assert site.driver.counters(1).results == 1
    assert site.switch.stats().jobs_now == 0
    sum_a_round(job(harness, site), 1)
    assert site.driver.counters(1).results == 1, "only the new job is counted"


def test_each_entry_takes_effect_by_itself_as_in_hardware(harness: DataplaneHarness, site: Site) -> None:
    made = job(harness, site)
    _, second = admit.entries(made.entry, 2, [0, 0])
    site.driver.tables.delete("a worker", [second])
    for worker in range(2):
        made.send(made.packet(worker, 1, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    assert site.driver.stray().packets["unknown"] == 1
    site.driver.tables.insert("a worker", [second])
    made.send(made.packet(1, 1, (5, 5, 5, 5)))
    assert made.receive(0).words == (6, 6, 6, 6), "the cell has kept the first contribution"
    assert made.receive(1).words == (6, 6, 6, 6)
    assert site.driver.counters(1).packets["admitted"] == 2
    site.driver.tables.delete("where a worker is", deliver.entries(made.entry, [HOST, HOST])[:1])
    for worker in range(2):
        made.send(made.packet(worker, 2, (1, 1, 1, 1)))
    assert made.receive(1).words == (2, 2, 2, 2)
    assert made.hears_nothing(0)
    assert site.switch.stats().send_failures == 1, "what cannot be delivered is counted"
    made.send(made.packet(0, 2, (1, 1, 1, 1)))  # asks for its own copy
    assert made.hears_nothing(0)
    assert site.switch.stats().send_failures == 2


def test_a_job_with_contradicting_entries_waits_until_they_are_removed(harness: DataplaneHarness, site: Site) -> None:
    made = job(harness, site)
    wrong = admit.entries(dataclasses.replace(made.entry, key=99), 2, [0, 0])[1:]
    site.driver.tables.insert("another key", wrong)
    made.send(made.packet(0, 1, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    site.driver.tables.delete("another key", wrong)
    sum_a_round(made, 1)
    other = job(harness, site, number=2)  # in the same slots as the first job
    other.send(other.packet(0, 1, (1, 1, 1, 1)))
    assert other.hears_nothing(0)
    sum_a_round(made, 2)
    site.driver.evict(1)
    sum_a_round(other, 1)


def test_reloading_for_another_key_sequence_clears_all_cells(harness: DataplaneHarness, site: Site) -> None:
    before = job(harness, site, key=7)
    for number in range(1, 4):
        sum_a_round(before, number)
    before.send(before.packet(0, 4, (9, 9, 9, 9)))
    before.send(before.packet(0, 4, kind=QUESTION))
    assert before.hears_nothing(0), "its contribution is in the cell"
    other = site.driver = site.controller(STANDBY_ID + 2, b"other")
    other.wait_ready()
    assert other.reconcile([before.entry]).reloaded
    other.reconcile([])
    after = job(harness, site, key=7)  # the same key as in the cells
    for worker in range(2):
        for number in range(1, 5):
            after.send(after.packet(worker, number, kind=QUESTION))
            assert after.receive(worker).kind == MISSING
    for number in range(1, 4):
        sum_a_round(after, number)
