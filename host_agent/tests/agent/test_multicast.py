"""A worker's log messages when results do not arrive by the multicast group that the switch sends them to."""

from __future__ import annotations

import logging

import pytest

from wiresum.agent.multicast import GroupWatch
from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.join import Endpoint, JoinReply

GROUP = Endpoint(address="239.192.0.3", port=43488)
SLOTS = 512


class Watched:
    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO)
        self._log = log
        self._watch = GroupWatch(JoinReply(results_group=GROUP, slots=SLOTS), "the switch at x")
        self._traffic = NO_TRAFFIC

    @property
    def silent(self) -> bool:
        return self._watch.silent

    def says(self, *, results: int, by_group: int) -> list[str]:
        """The log messages after this many more results, so many of them by the group."""
        heard = self._traffic
        self._traffic = TrafficStats(results=heard.results + results, by_group=heard.by_group + by_group)
        self._log.clear()
        self._watch.look(lambda: self._traffic)
        return [record.getMessage() for record in self._log.records]


def test_a_silent_group_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(caplog)
    assert watched.says(results=5000, by_group=5000) == []
    (said,) = watched.says(results=5000, by_group=0)
    assert "the switch at x sends results to the multicast group 239.192.0.3, and the last 5000 did not come" in said
    assert "IGMP snooping needs a querier" in said
    assert watched.says(results=5000, by_group=0) == []
    assert watched.says(results=100, by_group=1) == ["results come by the multicast group 239.192.0.3 again"]
    assert watched.says(results=100, by_group=100) == []
    assert len(watched.says(results=5000, by_group=0)) == 1


def test_results_repeated_after_a_pause_are_not_logged_as_a_silent_group(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(caplog)
    assert watched.says(results=10, by_group=1) == []
    assert watched.says(results=SLOTS, by_group=0) == []
    assert watched.says(results=64, by_group=0) == []
    assert len(watched.says(results=1, by_group=0)) == 1


def test_a_group_that_never_worked_is_logged_soon(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(caplog)
    assert watched.says(results=64, by_group=0) == []
    assert not watched.silent
    assert len(watched.says(results=1, by_group=0)) == 1
    assert watched.silent


def test_a_program_that_stops_answering_does_not_end_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(caplog)
    assert watched.says(results=100, by_group=100) == []
    assert len(watched.says(results=5000, by_group=0)) == 1
    assert watched.says(results=-5100, by_group=-100) == []  # the counters of a program that does not answer are zero
    assert watched.silent
    assert watched.says(results=5200, by_group=100) == []
    assert watched.silent
    assert len(watched.says(results=1, by_group=1)) == 1


def test_what_came_before_a_move_says_nothing_of_the_group_after_it(caplog: pytest.LogCaptureFixture) -> None:
    before = TrafficStats(results=90_000, by_group=7)
    watch = GroupWatch(JoinReply(results_group=GROUP, slots=SLOTS), "the switch at x", before)
    watch.look(lambda: before)
    watch.look(lambda: TrafficStats(results=90_064, by_group=7))
    assert caplog.records == []
    watch.look(lambda: TrafficStats(results=90_065, by_group=7))
    assert len(caplog.records) == 1


def test_a_job_without_a_group_is_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    watch = GroupWatch(JoinReply(slots=1), "the switch at x")
    watch.look(lambda: pytest.fail("nobody needs to know"))
    assert caplog.records == []
