"""Threads in virtual time take turns, in the same order each time."""

from __future__ import annotations

import math
import threading

import pytest

from wiresum_lab.clocks.for_threads import VirtualClock


def test_threads_wake_in_the_order_of_their_moments_and_time_jumps_from_one_to_the_next() -> None:
    clock, woken = VirtualClock(now=0.0), []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        woken.append((seconds, clock.now()))

    clock.run(*(lambda seconds=seconds: sleep(seconds) for seconds in (500.0, 1.0, 60.0)))
    assert woken == [(1.0, 1.0), (60.0, 60.0), (500.0, 500.0)]
    clock.expect_no_threads()


def test_a_wait_ends_with_its_event_or_with_its_time() -> None:
    clock, event = VirtualClock(now=0.0), threading.Event()
    assert not clock.wait(event, 5.0)

    def set_later() -> None:
        clock.sleep(2.0)
        event.set()

    clock.start(set_later, "setter")
    assert clock.wait(event, 5.0)
    assert clock.now() == 7.0


def test_what_hangs_in_virtual_time_is_an_error() -> None:
    clock = VirtualClock()
    with pytest.raises(AssertionError, match="every thread waits for ever"):
        clock.wait_for(lambda: False, math.inf)
    with pytest.raises(AssertionError, match="time does not move"):
        while clock.wait_for(lambda: True, math.inf):
            pass
    with pytest.raises(AssertionError, match="after 600 virtual seconds: not so: it comes"):
        VirtualClock().wait_until(lambda: False, "it comes")


def test_an_error_of_a_thread_that_runs_beside_the_test_is_the_tests() -> None:
    with pytest.raises(ValueError, match="of the thread"):
        VirtualClock().run(lambda: int("of the thread"))
    assert VirtualClock().run(lambda: 1, lambda: 2) == [1, 2]
