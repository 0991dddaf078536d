"""The controller's driver programs the software switch, and workers' packets show what the switch makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from wiresum.controller import DriverError, Endpoint, JobEntry
from wiresum.controller.p4runtime import (
    STANDBY_ID,
    Host,
    P4RuntimeSwitch,
    Target,
    admit,
    deliver,
    desired,
    device_config,
)
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum.switch.testing import RESULT, Bench, Job

DEVICE = 3
LANES, SLOTS = 4, 64
HALF_CIRCLE = 1 << 31
HOST = Host("", "127.0.0.1", "00:00:00:00:00:00", 0)


class Site:
    """A software switch with a P4Runtime server, and controllers of it."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self.switch = self._switch()
        self.server = P4RuntimeServer(self.switch, DEVICE)
        cleanup.callback(self._stop)
        self.port = self.server.start("127.0.0.1:0")
        self.driver = self.controller(STANDBY_ID + 1)
        self.driver.wait_ready()
        self.driver.reconcile([])

    def _switch(self) -> SoftwareSwitch:
        return self._cleanup.enter_context(closing(SoftwareSwitch(port=0, threads=2, slots=SLOTS, lanes_max=LANES)))

    def _stop(self) -> None:
        self.server.stop()

    def controller(self, election_id: int) -> P4RuntimeSwitch:
        target = Target(
            name="soft",
            kind="software",
            p4runtime=f"127.0.0.1:{self.port}",
            device=DEVICE,
            pipeline=device_config.software(lanes=LANES, slots=SLOTS),
            address=self.switch.endpoint.address,
            port=self.switch.endpoint.port,
        )
        return self._cleanup.enter_context(closing(P4RuntimeSwitch(target, election_id=election_id)))

    def restart_switch(self) -> None:
        """As a process that died and was started again."""
        self.server.stop()
        self.switch.close()
        self.switch = self._switch()
        self.server = P4RuntimeServer(self.switch, DEVICE)
        self.server.start(f"127.0.0.1:{self.port}")


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as cleanup:
        yield Site(cleanup)


def entry(bench: Bench, workers: int = 2, *, number: int = 1, threads: int = 2, round_first: int = 1) -> JobEntry:
    sockets = [bench.open_socket() for _ in range(workers)]
    made = dataclasses.replace(bench.entry(sockets, job=number), threads=threads, round_first=round_first)
    return dataclasses.replace(made, endpoints=tuple(Endpoint(*s.getsockname()) for s in sockets))


def job(bench: Bench, site: Site, workers: int = 2, *, number: int = 1, round_first: int = 1) -> Job:
    """Installed by the driver; of one thread."""
    sockets = [bench.open_socket() for _ in range(workers)]
    made = dataclasses.replace(bench.entry(sockets, job=number), round_first=round_first)
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


def test_a_job_sums_and_is_counted(bench: Bench, site: Site) -> None:
    made = job(bench, site, 3)
    for number in range(1, 4):
        sum_a_round(made, number)
    counters = site.driver.counters(1)
    assert (counters.packets["admitted"], counters.results, counters.contributions) == (9, 3, (3, 3, 3))
    made.send(made.packet(0, 5, (1, 1, 1, 1))._replace(key=1))
    made.send(made.packet(0, 1, (1, 1, 1, 1)))
    made.send(made.packet(0, 3, (9, 9, 9, 9)))
    assert made.receive(0).words == (3, 3, 6, 0xFFFFFFFD)
    assert site.driver.stray().packets["unknown"] == 1
    assert site.driver.counters(1).packets["stale"] == 1
    assert site.driver.counters(1).packets["resent"] == 1


def test_an_evicted_job_is_unknown_and_its_figures_stay(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    sum_a_round(made, 1)
    site.driver.evict(1)
    made.send(made.packet(0, 3, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    assert site.driver.counters(1).results == 1
    assert site.switch.stats().jobs_now == 0
    sum_a_round(job(bench, site, round_first=2), 2)
    assert site.driver.counters(1).results == 1, "of the new job alone"


def test_packets_of_another_length_are_malformed(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    made.send(made.packet(0, 1, (1, 1, 1)))
    sum_a_round(made, 1)
    assert site.driver.counters(1).packets["malformed"] == 1


def test_each_entry_counts_by_itself_as_in_hardware(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    _, second = admit.entries(made.entry, desired.row(1), [0, 0])
    site.driver.tables.delete("a worker", [second])
    for worker in range(2):
        made.send(made.packet(worker, 1, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    assert site.driver.stray().packets["unknown"] == 1
    site.driver.tables.insert("a worker", [second])
    made.send(made.packet(1, 1, (5, 5, 5, 5)))
    assert made.receive(0).words == (6, 6, 6, 6), "what was in the cell is still there"
    assert made.receive(1).words == (6, 6, 6, 6)
    assert site.driver.counters(1).packets["admitted"] == 2
    site.driver.tables.delete("where a worker is", deliver.entries(made.entry, [HOST, HOST])[:1])
    for worker in range(2):
        made.send(made.packet(worker, 2, (1, 1, 1, 1)))
    assert made.receive(1).words == (2, 2, 2, 2)
    assert made.hears_nothing(0)


def test_a_job_that_contradicts_itself_or_another_waits_until_it_can_run(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    wrong = admit.entries(dataclasses.replace(made.entry, key=99), desired.row(1), [0, 0])[1:]
    site.driver.tables.insert("another key", wrong)
    made.send(made.packet(0, 1, (1, 1, 1, 1)))
    assert made.hears_nothing(0)
    site.driver.tables.delete("another key", wrong)
    sum_a_round(made, 1)
    other = job(bench, site, number=2, round_first=3)  # in the same slots
    other.send(other.packet(0, 3, (1, 1, 1, 1)))
    assert other.hears_nothing(0)
    sum_a_round(made, 2)
    site.driver.evict(1)
    sum_a_round(other, 3)


def test_washed_cells_take_rounds_that_they_would_take_for_old(bench: Bench, site: Site) -> None:
    sum_a_round(job(bench, site, round_first=5), 5)
    site.driver.evict(1)
    later = entry(bench, threads=1, round_first=5 + HALF_CIRCLE)
    site.driver.admit(later, wash=True)
    assert site.driver.counters(1).results == 0, "washing is not counted as the job's"
    sockets = [bench.open_socket() for _ in range(2)]
    site.driver.evict(1)
    later = dataclasses.replace(later, endpoints=tuple(Endpoint(*s.getsockname()) for s in sockets))
    site.driver.admit(later)
    sum_a_round(Job(site.switch, later, sockets), later.round_first)


def test_a_controller_that_comes_back_finds_the_job_running(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    sum_a_round(made, 1)
    site.driver.close()
    sum_a_round(made, 2)  # meanwhile
    site.driver = site.controller(STANDBY_ID + 2)
    site.driver.wait_ready()
    reconciled = site.driver.reconcile([made.entry])
    assert not reconciled.reloaded
    assert reconciled.changes == ()
    sum_a_round(made, 3)
    assert site.driver.counters(1).results == 3
    assert site.driver.reconcile([]).changes != ()
    made.send(made.packet(0, 5, (1, 1, 1, 1)))
    assert made.hears_nothing(0)


def test_a_switch_that_was_restarted_has_lost_its_jobs(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    sum_a_round(made, 1)
    site.restart_switch()
    with pytest.raises(DriverError):
        site.driver.evict(1)
    site.driver.wait_ready()
    assert site.driver.reconcile([made.entry]).reloaded
    site.driver.reconcile([])
    sum_a_round(job(bench, site), 1)


def test_a_standby_takes_over_when_the_primary_controller_is_gone(bench: Bench, site: Site) -> None:
    made = job(bench, site)
    standby = site.controller(STANDBY_ID)
    with pytest.raises(DriverError):
        standby.wait_ready(0.2)
    assert standby.trouble
    site.driver.close()
    standby.wait_ready()
    active = site.controller(STANDBY_ID + 9)
    active.wait_ready()
    assert active.reconcile([made.entry]).changes == ()
    sum_a_round(made, 1)
