"""One thread calls functions now and then for all of a process."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

from wiresum.agent.periodic import Periodic
from wiresum_lab.clocks.for_threads import VirtualClock
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

PERIOD_S = 0.5


class Counting:
    def __init__(self, calls: Counter[str], name: str) -> None:
        self.calls, self.name = calls, name

    def call(self) -> None:
        self.calls[self.name] += 1


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    clock = VirtualClock()
    yield clock
    clock.expect_no_threads()


@pytest.fixture
def periodic(clock: VirtualClock) -> Periodic:
    return Periodic("wiresum-test", PERIOD_S, clock)


def test_functions_are_called_each_period_by_one_thread_that_ends_with_the_last_of_them(
    clock: VirtualClock, periodic: Periodic
) -> None:
    calls: Counter[str] = Counter()
    one, other = Counting(calls, "one").call, Counting(calls, "other").call
    periodic.add(one)
    periodic.add(other)
    clock.sleep(3.2 * PERIOD_S)
    assert calls == {"one": 3, "other": 3}
    assert clock.threads() == ["wiresum-test"]
    periodic.discard(one)
    clock.sleep(2 * PERIOD_S)
    assert calls == {"one": 3, "other": 5}
    periodic.discard(other)
    clock.sleep(0.0)
    assert clock.threads() == [], "it has ended at once"
    periodic.add(one)
    clock.sleep(1.2 * PERIOD_S)
    assert calls == {"one": 4, "other": 5}
    periodic.discard(one)


def test_one_that_raises_is_logged_once_and_the_others_go_on(
    clock: VirtualClock, periodic: Periodic, caplog: pytest.LogCaptureFixture
) -> None:
    calls: Counter[str] = Counter()
    good = Counting(calls, "good").call
    periodic.add(lambda: 1 / 0)
    periodic.add(good)
    clock.sleep(3.2 * PERIOD_S)
    assert calls["good"] == 3
    assert caplog.messages == ["unexpected error in wiresum-test, which goes on without that"]
    periodic.discard(good)


def test_it_keeps_nobody_alive_that_was_discarded(clock: VirtualClock, periodic: Periodic) -> None:
    calls: Counter[str] = Counter()
    stays, goes = Counting(calls, "stays"), Counting(calls, "goes")
    periodic.add(stays.call)
    periodic.add(goes.call)
    clock.sleep(1.2 * PERIOD_S)
    periodic.discard(goes.call)
    there = weakref.ref(goes)
    gc.disable()
    try:
        del goes
        assert there() is None, "nothing refers to it"
    finally:
        gc.enable()
        periodic.discard(stays.call)


# A process that forks, in real time.

PERIODIC = Periodic("wiresum-test", 0.01)


def threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("wiresum-test")


def _in_child(answers: multiprocessing.SimpleQueue[int]) -> None:
    calls: Counter[str] = Counter()
    own = Counting(calls, "own").call
    PERIODIC.add(own)
    wait_until(lambda: calls["own"] >= 3, "the child's own function was called")
    answers.put(threads())


def test_a_forked_child_begins_anew() -> None:
    calls: Counter[str] = Counter()
    of_parent = Counting(calls, "parent").call
    PERIODIC.add(of_parent)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(answers,))
    child.start()
    child.join(PATIENCE_S)
    PERIODIC.discard(of_parent)
    assert child.exitcode == 0 and answers.get() == 1
