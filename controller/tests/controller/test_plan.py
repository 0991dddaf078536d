from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from wiresum.controller import DriverError, Endpoint, JobEntry
from wiresum.controller.p4runtime import Host, P4RuntimeSwitch, Target, device_config
from wiresum.controller.plan import plan, room
from wiresum_lab.doubles.p4runtime_proxy import Proxy, programmed_switch

HOST = Host("host", "10.0.0.10", "02:00:0a:00:00:0a", 1)
JOB = JobEntry(
    job=0, key=5, workers=1, threads=1, lanes=64, slot_base=0, slots=8, endpoints=(Endpoint(HOST.address, 5000),)
)
CONFIGURED = [
    "+ forward mac 02:00:0a:00:00:0a: forward_to(port 1)",
    "+ group 256: port 1 (receiver 0)",
    "+ own address 10.0.0.1, destination 02:00:0a:00:00:01: own_address(mac 02:00:0a:00:00:01)",
    "+ own address 10.0.0.1, destination ff:ff:ff:ff:ff:ff: own_address(mac 02:00:0a:00:00:01)",
]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with programmed_switch(slots=64, lanes_max=64) as switch:
        proxy = Proxy(switch.p4runtime)
        yield proxy
        proxy.stop()


@pytest.fixture
def target(proxy: Proxy) -> Target:
    pipeline = device_config.software(lanes=64, slots=64)
    return Target("leaf", "bmv2", proxy.address, 0, pipeline, "10.0.0.1", "02:00:0a:00:00:01", (HOST,))


def test_what_jobs_take_is_listed_with_what_the_switch_has(target: Target) -> None:
    wide = dataclasses.replace(JOB, job=1, threads=4, slots=16)
    assert room(target, [JOB, wide], beside=[wide]) == (
        "24 of 64 slots, 2 of 255 jobs, 3 of 2048 deliver, 3 of 510 multicast_groups, 9 of 4096 admit, "
        "0 of 1024 admit_parent_entry"
    )


def test_a_switch_without_our_program_would_be_loaded_and_lose_its_jobs(target: Target, proxy: Proxy) -> None:
    lines = plan(target, [JOB])
    assert lines[0].startswith("~ program: no program runs")
    assert lines[1:] == CONFIGURED
    assert not proxy.loads


def test_differences_are_listed_without_changing_anything_under_a_running_controller(
    target: Target, proxy: Proxy
) -> None:
    with contextlib.closing(P4RuntimeSwitch(target, election_id=2)) as switch:
        switch.wait_ready()
        switch.reconcile([])
        switch.admit(JOB)
        proxy.log.clear()
        assert not plan(target, [JOB])
        assert [line[:7] for line in plan(target, [])] == ["- admit", "- group", "- deliv"]
        moved = dataclasses.replace(target, address="10.0.0.2")
        assert [line.split(":")[0] for line in plan(moved, [JOB])] == [
            "- own address 10.0.0.1, destination 02",
            "- own address 10.0.0.1, destination ff",
            "+ own address 10.0.0.2, destination 02",
            "+ own address 10.0.0.2, destination ff",
        ]
        assert not proxy.log
        switch.evict(JOB.job)


def test_a_controller_with_another_state_would_reload_the_program(target: Target) -> None:
    with contextlib.closing(P4RuntimeSwitch(target.with_keys(b"one"), election_id=2)) as switch:
        switch.wait_ready()
        switch.reconcile([])
        switch.admit(JOB)
        assert not plan(target.with_keys(b"one"), [JOB])
        lines = plan(target.with_keys(b"other"), [JOB])
        assert lines[0].startswith("~ program: another program runs, or ours for another state's jobs")
        assert lines[1:] == CONFIGURED
        switch.evict(JOB.job)


def test_jobs_of_a_reloaded_switch_would_end(target: Target) -> None:
    with contextlib.closing(P4RuntimeSwitch(target, election_id=2)) as switch:
        switch.wait_ready()
        switch._client.load(target.pipeline)  # and the controller ends before it has heard of the jobs
        assert switch.reconcile([JOB]).reloaded
    lines = plan(target, [JOB])
    assert lines[0].startswith("~ jobs: the program was loaded anew")
    assert lines[1:] == CONFIGURED


def test_an_unreachable_switch_is_named(target: Target, proxy: Proxy) -> None:
    proxy.stop()
    with pytest.raises(DriverError, match=rf"leaf at {proxy.address} cannot be read: "):
        plan(target, [])


def test_a_job_of_a_host_that_is_no_longer_configured_would_be_forgotten(target: Target) -> None:
    with contextlib.closing(P4RuntimeSwitch(target, election_id=2)) as switch:
        switch.wait_ready()
        switch.reconcile([])
        switch.admit(JOB)
        lines = plan(dataclasses.replace(target, hosts=()), [JOB])
        assert lines[0].startswith("~ jobs: number 0 cannot go on, and would be forgotten: leaf knows no host with")
        assert [line[:7] for line in lines[1:4]] == ["- admit", "- group", "- deliv"]
        switch.evict(JOB.job)
