"""Threads in virtual time take turns, in the same order each time."""

from __future__ import annotations

import math
import threading

import pytest

from wiresum_lab.clocks.for_threads import Task, VirtualClock, never


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


def test_a_task_takes_turns_with_threads_in_the_order_of_its_moments() -> None:
    clock, order = VirtualClock(now=0.0), []

    def task() -> Task:
        order.append("begins")
        yield never, 2.0
        order.append(f"goes on at {clock.now():.0f} s")
        yield lambda: "thread" in order, math.inf
        order.append(f"ends at {clock.now():.0f} s")

    clock.start_task(task(), "a task")
    assert clock.threads() == ["a task"]
    clock.sleep(1.0)
    order.append("test")
    clock.sleep(2.0)
    order.append("thread")
    clock.expect_no_threads()
    assert order == ["begins", "test", "goes on at 2 s", "thread", "ends at 3 s"]


def test_a_task_that_fails_or_waits_itself_is_an_error_as_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, errors = VirtualClock(), []
    monkeypatch.setattr(threading, "excepthook", lambda hooked: errors.append(str(hooked.exc_value)))

    def waits() -> Task:
        clock.sleep(1.0)
        yield never, math.inf

    def fails() -> Task:
        yield lambda: 1 / 0, math.inf

    clock.start_task(waits(), "waits")
    clock.start_task(fails(), "fails")
    clock.sleep(1.0)
    assert errors == ["what is waited for waits itself", "division by zero"]
    clock.expect_no_threads()
    with pytest.raises(AssertionError, match="every thread waits for ever"):
        clock.start_task(iter([(never, math.inf)]), "waits for ever")
        clock.wait_for(never, math.inf)
