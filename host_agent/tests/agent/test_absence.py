"""When a worker gives up a service that does not answer; the tests set the clock."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from wiresum.agent.absence import CUT_OFF_S, FALLBACK_S, STANDSTILL_SAID_AFTER_S, Absence, Standstill
from wiresum.agent.errors import WiresumError
from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.join import JoinReply
from wiresum_lab.patience import PATIENCE_S

REFUSED = "Failed to connect to remote host: Connection refused"


class Harness:
    def __init__(self, reattach_s: int = 600, *, has_fallback: bool = False) -> None:
        self.now = 0.0
        self.traffic = NO_TRAFFIC
        self.cut_off = ""
        grant = JoinReply(reattach_ms=1000 * reattach_s, heartbeat_lost_ms=30_000)
        traffic, cut_off = lambda: self.traffic, lambda: self.cut_off
        self.absence = Absence("the switch at x", grant, traffic, cut_off, self.now, has_fallback=has_fallback)

    def wait(self, seconds: int, *, sent: int = 0, received: int = 0) -> WiresumError | None:
        """Lets seconds pass, in each of which the worker sends and receives so much; returns the error that ends the
        wait."""
        for _ in range(seconds):
            self.now += 1
            packets, bytes_ = self.traffic.packets_sent + sent, self.traffic.bytes_received + received
            self.traffic = TrafficStats(packets_sent=packets, bytes_received=bytes_)
            if (error := self.absence.error(self.now)) is not None:
                return error
        return None


def test_a_service_is_not_given_up_while_the_switch_sends_results() -> None:
    harness = Harness(reattach_s=3)
    harness.absence.cause = REFUSED
    assert harness.wait(10_000, sent=1, received=100) is None


def test_a_stopped_service_is_given_up_after_the_grants_reattach_time() -> None:
    harness = Harness(reattach_s=3)
    harness.absence.cause = REFUSED
    assert harness.wait(10, received=1) is None
    error = harness.wait(10)
    assert harness.now == 13
    assert "does not answer, 13 s after it was last heard of" in str(error)


def test_a_frozen_service_is_given_up_later_than_a_stopped_one() -> None:
    harness = Harness(reattach_s=3)
    assert harness.wait(29) is None
    assert harness.wait(2) is not None


def test_any_sign_of_the_service_restarts_the_time() -> None:
    harness = Harness(reattach_s=3)
    assert harness.wait(29) is None
    harness.absence.hear("x", harness.now)
    assert harness.wait(29) is None


def test_a_host_that_lost_its_route_gives_up_soon_and_says_why() -> None:
    harness = Harness()
    assert harness.wait(10) is None
    harness.cut_off = "the address 10.0.0.7 is not this host's any more"
    error = harness.wait(100)
    assert harness.now == 30
    assert "cut off from the switch at x: the address 10.0.0.7 is not this host's any more" in str(error)


def test_a_worker_that_sends_gives_up_if_neither_switch_nor_service_answers() -> None:
    harness = Harness()
    error = harness.wait(200, sent=1)
    assert harness.now == CUT_OFF_S == 120
    assert "neither the switch at x" in str(error)
    assert "120 packets" in str(error)


def test_an_idle_worker_waits_for_the_grants_reattach_time() -> None:
    harness = Harness()
    assert harness.wait(599) is None
    assert harness.wait(2) is not None


def test_a_silent_switch_does_not_shorten_the_wait_for_a_stopped_service() -> None:
    """The switch may be silent because it waits for another worker."""
    harness = Harness()
    harness.absence.cause = REFUSED
    assert harness.wait(599, sent=1) is None


def test_it_does_if_the_job_can_go_on_at_a_fallback() -> None:
    harness = Harness(has_fallback=True)
    harness.absence.cause = REFUSED
    assert harness.wait(100) is None, "an idle worker has not asked it anything"
    harness.absence.hear("x", harness.now)
    assert harness.wait(100, sent=1) is not None
    assert harness.now == 100 + FALLBACK_S
    assert harness.absence.left_s(harness.now) == 600 - FALLBACK_S


WAY = """
import subprocess
from wiresum.agent.way_out import why_cut_off
def ip(arguments):
    subprocess.run(["ip", *arguments.split()], check=True)
def why():
    return why_cut_off("udp", "198.51.100.1", "198.51.100.2")
ip("link add way type veth peer name other")
ip("address add 198.51.100.1/30 dev way")
ip("link set other up")
ip("link set way up")
print(why())
ip("link set other down")
print(why())
ip("link set way down")
print(why())
ip("address flush dev way")
print(why())
print(why_cut_off("dpdk", "198.51.100.1", "198.51.100.2"))
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"wiresum-{uuid.uuid4().hex[:8]}"
    if (
        shutil.which("ip") is None
        or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs `ip` of iproute2, and root")
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True)


def test_the_error_names_the_missing_link_route_or_address(namespace: str) -> None:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", WAY]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert said.splitlines() == [
        "",
        "the interface way of 198.51.100.1 has no link",
        "there is no way from 198.51.100.1 to 198.51.100.2 (Network is unreachable)",
        "the address 198.51.100.1 is not this host's any more",
        "",
    ]


def test_a_worker_that_sends_and_hears_nothing_says_so_once_and_when_sums_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traffic = NO_TRAFFIC
    standstill = Standstill("the switch at x")
    now = 0.0

    def wait(seconds: float, *, sent: int, received: int) -> list[str]:
        nonlocal now, traffic
        caplog.clear()
        for _ in range(round(2 * seconds)):
            now += 0.5
            traffic = TrafficStats(
                packets_sent=traffic.packets_sent + sent, bytes_received=traffic.bytes_received + received
            )
            standstill.look(traffic, now)
        return caplog.messages

    assert wait(1000, sent=0, received=0) == [], "it computes, and asks for nothing"
    assert wait(STANDSTILL_SAID_AFTER_S - 1, sent=1, received=0) == []
    (said,) = wait(1000, sent=1, received=0)
    assert "for 30 s nothing has come from the switch at x, though this worker sends" in said
    assert wait(1, sent=1, received=1) == ["something comes from the switch at x again"]
    assert wait(1000, sent=1, received=1) == []
    assert len(wait(STANDSTILL_SAID_AFTER_S + 1, sent=1, received=0)) == 1
