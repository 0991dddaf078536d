"""The switch over loopback, as workers see it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from wiresum.controller import DriverError, Endpoint, SwitchDriver
from wiresum.join.constants import LANES_MAX
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.doubles.workers import DataplaneHarness
from wiresum_lab.patience import PATIENCE_S

ONES = (1, 1, 1, 1)


def test_it_implements_the_driver_interface(harness: DataplaneHarness) -> None:
    device = harness.switch()
    assert isinstance(device, SwitchDriver)
    assert (device.kind, device.trouble, device.reaches("192.0.2.1")) == ("software", "", True)
    assert device.endpoint.address == "127.0.0.1"
    assert device.endpoint.port > 0
    assert (device.sizes.slots, device.sizes.lanes_max, device.sizes.jobs_max) == (64, 16, 8)


def test_an_evicted_job_is_unknown_at_once(harness: DataplaneHarness) -> None:
    job = harness.job(harness.switch(), 1)
    job.send(job.packet(0, 1, ONES))
    assert job.receive(0).words == ONES
    job.device.evict(1)
    job.device.evict(1)
    job.send(job.packet(0, 2, ONES))
    assert job.hears_nothing(0)
    assert job.device.stats().packets["unknown"] == 1
    assert job.device.stats().results == 1, "the totals keep what ended jobs did"
    assert (job.device.stats().jobs_now, job.device.stats().jobs_ended) == (0, 1)


def test_hostile_datagrams_do_not_disturb_a_job(harness: DataplaneHarness) -> None:
    device = harness.switch()
    job = harness.job(device, 2)
    stranger = harness.open_socket()
    chance = random.Random(5)
    sent = 0
    for number in range(1, 101):
        for _ in range(50):
            datagram = bytearray(chance.randbytes(chance.randrange(1, 80)))
            if chance.random() < 0.5:  # only the key is wrong
                datagram = bytearray(job.packet(chance.randrange(2), number, chance.choice([(), ONES])).to_bytes())
                datagram[4 + chance.randrange(4)] ^= 1 << chance.randrange(8)
            stranger.sendto(datagram, (device.endpoint.address, device.endpoint.port + chance.randrange(16)))
            sent += 1
        for worker in range(2):
            job.send(job.packet(worker, number, (worker, number, 3, 4)))
        for worker in range(2):
            assert job.receive(worker).words == (1, 2 * number, 6, 8)
    assert device.counters(1).results == 100
    refused = device.stats().packets
    assert refused["malformed"] + refused["unknown"] <= sent
    assert refused["malformed"] > 0
    assert refused["unknown"] > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"job": 8}, "table"),
        ({"job": 70_000}, "job 70000"),
        ({"slots": 3}, "power of two"),
        ({"slot_base": 60}, "beyond"),
        ({"lanes": 17}, "lanes"),
        ({"threads": 3}, "threads"),
        ({"workers": 2}, "addresses"),
        ({"endpoints": (Endpoint("nowhere", 1),)}, "nowhere"),
        ({"endpoints": (Endpoint("10.0.0.1", 0),)}, "address"),
    ],
)
def test_an_invalid_entry_is_refused(harness: DataplaneHarness, change: dict[str, Any], complaint: str) -> None:
    device = harness.switch()
    entry = harness.entry([harness.open_socket()])
    with pytest.raises(DriverError, match=complaint):
        device.admit(replace(entry, **change))
    device.admit(entry)


def test_an_overlapping_lease_is_refused(harness: DataplaneHarness) -> None:
    device = harness.switch()
    harness.job(device, 1)
    with pytest.raises(DriverError, match="overlaps"):
        harness.job(device, 1, number=2, slot_base=4)


def test_a_job_number_in_use_is_refused(harness: DataplaneHarness) -> None:
    device = harness.switch()
    harness.job(device, 1)
    with pytest.raises(DriverError, match="taken"):
        harness.job(device, 1, slot_base=16)


def test_reconciling_ends_unwanted_jobs_and_reports_lost_ones(harness: DataplaneHarness) -> None:
    device = harness.switch()
    kept, unwanted = harness.job(device, 1), harness.job(device, 1, number=2, slot_base=8)
    reconciled = device.reconcile([kept.entry])
    assert (reconciled.reloaded, reconciled.changes) == (False, ("- job 2",))
    kept.send(kept.packet(0, 1, ONES))
    assert kept.receive(0).words == ONES
    unwanted.send(unwanted.packet(0, 1, ONES))
    assert unwanted.hears_nothing(0)
    assert device.stray().packets["unknown"] == 1
    assert harness.switch().reconcile([kept.entry]).reloaded, "the job was never there"
    assert not device.reconcile([]).reloaded
    assert device.stats().jobs_now == 0


def test_reset_ends_jobs_and_keeps_counters(harness: DataplaneHarness) -> None:
    job = harness.job(harness.switch(), 1)
    job.send(job.packet(0, 1, ONES))
    assert job.receive(0).words == ONES
    job.device.reset()
    assert (job.device.stats().jobs_now, job.device.stats().results) == (0, 1)
    job.device.close()
    with pytest.raises(DriverError, match="stopped"):
        job.device.reset()


def test_a_closed_switch_keeps_its_counters(harness: DataplaneHarness) -> None:
    job = harness.job(harness.switch(), 1)
    job.send(job.packet(0, 1, ONES))
    assert job.receive(0).words == ONES
    job.device.close()
    job.device.close()
    assert job.device.counters(1).results == 1
    assert job.device.stats().datagrams_received == 1
    with pytest.raises(DriverError, match="stopped"):
        job.device.admit(job.entry)


def test_a_port_in_use_is_an_os_error_that_names_the_address(harness: DataplaneHarness) -> None:
    device = harness.switch()
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{device.endpoint.port}"):
        SoftwareSwitch(port=device.endpoint.port)


@pytest.mark.parametrize(
    ("multicast", "bind", "complaint"),
    [
        ("239.192", "127.0.0.1", "is no multicast group"),
        ("10.0.0.1", "127.0.0.1", "cannot be the first of 1024 multicast groups"),
        ("239.255.255.255", "127.0.0.1", "cannot be the first of 1024 multicast groups"),
        ("239.192.0.0", "0.0.0.0", "the address of one interface"),
    ],
)
def test_an_impossible_multicast_group_is_a_value_error(multicast: str, bind: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SoftwareSwitch(port=0, bind=bind, multicast=multicast)


def test_invalid_sizes_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="slots"):
        SoftwareSwitch(port=0, slots=0)
    with pytest.raises(ValueError, match="lanes_max"):
        SoftwareSwitch(port=0, lanes_max=LANES_MAX + 1)


FORKED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # what Python 3.12 and newer say of any fork where threads are
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=2, slots=64)
for child in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_S))
        if child == 1:
            del switch
        if child == 2:
            try:
                switch.stats()
            except RuntimeError as error:
                assert "not to a forked child" in str(error), error
            switch.close()
        sys.exit(0)  # with all that an interpreter does at its end
    assert os.waitpid(pid, 0)[1] == 0, child
assert switch.stats().threads == 2
switch.close()
"""


def test_forked_children_with_a_switch_end_and_do_not_disturb_the_parent() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert (finished.returncode, finished.stderr) == (0, "")


OUTLIVES = """
import threading
from wiresum.switch.software_switch import SoftwareSwitch

switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=1, slots=8)
threading.Thread(target=lambda held: threading.Event().wait(), args=(switch,), daemon=True).start()
"""


def test_a_switch_that_outlives_the_interpreter_is_not_reported_as_a_leak() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", OUTLIVES], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (finished.returncode, finished.stderr) == (0, "")


LARGER_THAN_THE_MTU = """
from contextlib import ExitStack
from dataclasses import replace
from wiresum_lab.doubles.workers import EMPTY, DataplaneHarness, Job
from wiresum_lab.processes import wait_until

with ExitStack() as cleanup:
    harness = DataplaneHarness(cleanup)
    device, sockets = harness.switch(), [harness.open_socket() for _ in range(2)]
    entry = replace(harness.entry(sockets), lanes=16)
    device.admit(entry)
    job = Job(device, entry, sockets)
    for worker in range(2):
        job.send(job.packet(worker, 1, kind=EMPTY))
    wait_until(lambda: device.stats().send_failures == 2, "a copy for each worker was counted")
    assert job.hears_nothing(0) and job.hears_nothing(1)
    assert (device.stats().results, device.stats().datagrams_sent) == (1, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_result_above_the_mtu_is_counted_as_not_sent() -> None:
    """What asks for it is small, and comes through."""
    command = f"ip link set lo mtu 100 up && exec {sys.executable} -c '{LARGER_THAN_THE_MTU}'"
    done = subprocess.run(["unshare", "-n", "sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
