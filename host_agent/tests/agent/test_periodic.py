"""One thread calls functions now and then for all of a process."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import threading
import weakref
from collections import Counter

import pytest

from wiresum.agent.periodic import Periodic
from wiresum_lab.processes import wait_until

PERIODIC = Periodic("wiresum-test", 0.01)


def threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("wiresum-test")


class Counting:
    def __init__(self, calls: Counter[str], name: str) -> None:
        self.calls, self.name = calls, name

    def call(self) -> None:
        self.calls[self.name] += 1


def test_functions_are_called_again_and_again_by_one_thread_that_ends_with_the_last_of_them() -> None:
    calls: Counter[str] = Counter()
    one, other = Counting(calls, "one").call, Counting(calls, "other").call
    PERIODIC.add(one)
    PERIODIC.add(other)
    wait_until(lambda: min(calls["one"], calls["other"]) >= 3, "both were called")
    assert threads() == 1
    PERIODIC.discard(one)
    before = calls.copy()
    wait_until(lambda: calls["other"] >= before["other"] + 3, "the one that is left was called")
    assert calls["one"] <= before["one"] + 1, "it may have been under way"
    PERIODIC.discard(other)
    wait_until(lambda: threads() == 0, "the thread has ended")
    PERIODIC.add(one)
    wait_until(lambda: calls["one"] >= before["one"] + 3, "a new thread calls it")
    PERIODIC.discard(one)


def test_one_that_raises_is_logged_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: Counter[str] = Counter()
    good = Counting(calls, "good").call
    with caplog.at_level(logging.ERROR):
        PERIODIC.add(lambda: 1 / 0)
        PERIODIC.add(good)
        wait_until(lambda: calls["good"] >= 3, "the other one was called")
    assert [record.message for record in caplog.records] == [
        "unexpected error in wiresum-test, which goes on without that"
    ]
    PERIODIC.discard(good)


def test_it_keeps_nobody_alive_that_was_discarded() -> None:
    calls: Counter[str] = Counter()
    stays, goes = Counting(calls, "stays"), Counting(calls, "goes")
    PERIODIC.add(stays.call)
    PERIODIC.add(goes.call)
    wait_until(lambda: calls["goes"] >= 1, "it was called")
    PERIODIC.discard(goes.call)
    there = weakref.ref(goes)
    gc.disable()
    try:
        del goes
        wait_until(lambda: there() is None, "nothing refers to it")
    finally:
        gc.enable()
        PERIODIC.discard(stays.call)


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
    child.join(20)
    PERIODIC.discard(of_parent)
    assert child.exitcode == 0 and answers.get() == 1
