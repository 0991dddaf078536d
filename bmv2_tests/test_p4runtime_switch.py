"""The controller's driver and a real switch: what the fake one of the controller's tests may not have right."""

from __future__ import annotations

import dataclasses

import finsy as fy
import pytest
from scapy.layers.l2 import Ether

from bench import PORTS, Bench
from wiresum.controller import DriverError
from wiresum.controller.p4runtime import Client
from wiresum.controller.p4runtime.own import DATA_PORT


def test_a_controller_that_starts_anew_finds_nothing_of_the_one_before(bench: Bench) -> None:
    with bench.job(2) as job:
        pass
    bench.switch.admit(job.entry)
    job.send(job.packet(0))
    bench.load()
    assert not bench.client.read("admission", [fy.P4TableEntry("admit")])
    (group,) = bench.client.read("groups", [fy.P4MulticastGroupEntry()])
    assert len(group.replicas) == PORTS
    frame = bytes(Ether(src=bench.hosts[0].mac, dst="ff:ff:ff:ff:ff:ff", type=0x88B5) / bytes(46))
    assert sorted(bench.exchange([(0, frame)])) == [(port, frame) for port in range(1, PORTS)]
    bench.switch.admit(job.entry)
    for worker, copies in ((0, 0), (1, 2)):
        assert len(job.send(job.packet(worker)).copies) == copies
    bench.switch.evict(job.entry.job)
    assert job.counters().results == 1
    bench.load()  # these cells are not what the bench's leases say


def test_a_second_controller_is_turned_away_and_jobs_go_on(bench: Bench) -> None:
    with bench.job(1) as job:
        with pytest.raises(DriverError, match="another controller programs"):
            Client(bench.star.p4runtime, bench.star.device, bench.program)
        assert job.send(job.packet()).reason == "admitted"


def test_another_device_is_not_taken_for_this_one(bench: Bench) -> None:
    with pytest.raises(DriverError, match="did not take the program"):
        Client(bench.star.p4runtime, bench.star.device + 1, bench.program, connect_s_max=0)


def test_a_full_table_is_told_and_the_job_leaves_nothing(bench: Bench) -> None:
    """admit has room for 4096 entries: eight jobs of 32 workers and 16 threads."""
    hosts = [bench.hosts[i % len(bench.hosts)] for i in range(32)]
    with bench.job(32, threads=16, slots=16, hosts=hosts) as job:
        numbers = range(100, 107)
        try:
            for number in numbers:
                bench.switch.admit(dataclasses.replace(job.entry, job=number))
            with pytest.raises(
                DriverError, match=r"table admit of .* room for 4096 entries; 4096 are taken and this job needs 512"
            ):
                bench.switch.admit(dataclasses.replace(job.entry, job=107))
            assert len(bench.client.read("admission", [fy.P4TableEntry("admit")])) == 4096
            assert len(bench.client.read("delivery", [fy.P4TableEntry("deliver")])) == 8 * 32
        finally:
            for number in numbers:
                bench.switch.evict(number)


def test_the_switch_is_where_the_driver_says(bench: Bench) -> None:
    assert bench.switch.endpoint.address == bench.star.address
    assert bench.switch.endpoint.port == DATA_PORT
    assert bench.switch.sizes.lanes_max == bench.program.lanes
