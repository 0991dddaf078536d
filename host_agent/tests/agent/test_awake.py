"""A process that was itself stopped (SIGSTOP) says so, and does not blame others for the lost time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wiresum.agent.absence import Absence
from wiresum.agent.awake import LOOK_S, AwakeClock
from wiresum.agent.statistics import NO_TRAFFIC
from wiresum.join import JoinReply


class Time:
    """The test itself looks, too, when its own time goes on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.clock = AwakeClock(lambda: self.now)
        self.clock.watch()

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            self.clock.now()


@pytest.fixture
def time() -> Iterator[Time]:
    made = Time()
    yield made
    made.clock.unwatch()


def test_all_time_counts_while_the_process_runs(time: Time) -> None:
    time.run(100)
    assert time.clock.now() == 1100
    assert time.clock.explain() == ""


def test_time_while_stopped_does_not_count_and_errors_mention_it_for_a_while(time: Time) -> None:
    time.run(10)
    time.now += 45 + LOOK_S
    assert time.clock.now() == 1010 + LOOK_S
    assert "this process itself was stopped for 45 s (SIGSTOP" in time.clock.explain()
    time.run(61)
    assert time.clock.explain() == ""


def test_time_before_the_first_look_is_no_stop(time: Time) -> None:
    clock = AwakeClock(lambda: time.now)
    time.now += 500
    assert (clock.now(), clock.explain()) == (1500, "")


def test_time_after_the_last_look_is_no_stop(time: Time) -> None:
    time.run(10)
    time.clock.unwatch()
    time.now += 500
    assert (time.clock.now(), time.clock.explain()) == (1510, "")


def test_all_clocks_of_a_process_share_one_thread(time: Time) -> None:
    others = [Time() for _ in range(3)]
    assert [thread.name for thread in threading.enumerate()].count("wiresum-awake") == 1
    for other in others:
        other.clock.unwatch()


def test_a_service_gets_its_full_time_after_this_process_was_stopped(time: Time) -> None:
    absence = Absence(
        "x", JoinReply(reattach_ms=3000, heartbeat_lost_ms=30_000), lambda: NO_TRAFFIC, lambda: "", time.clock.now()
    )
    time.run(10)
    time.now += 600
    assert absence.error(time.clock.now()) is None, "it was us"
    time.run(21)
    assert absence.error(time.clock.now()) is not None
