"""This module detects that results do not come by the multicast group that the switch sends them to.

Where the network does not carry the group, no sum is lost: a packet's time-out passes, and the worker asks for its sum,
which comes to it alone. But this is the probe's pace (host_agent/src/worker/worker.hpp), one packet in a time-out, and
nothing else tells why. It may also begin in the middle of a job: a network switch that snoops IGMP, and hears no
querier, forgets after some minutes who is in a group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.join import JoinReply

log = logging.getLogger(__name__)

RESULTS_MIN = 64
"""Results in a row that did not come by the group: more than a network that carries it loses."""


class GroupWatch:
    """Warns of a silent group once, and says once when the group is heard again. Used by one thread; `silent` by
    any."""

    def __init__(self, grant: JoinReply, where: str, before: TrafficStats = NO_TRAFFIC) -> None:
        """`before`: what was counted under other grants."""
        self.silent = False
        """True if nothing comes by the group."""
        self._group = grant.results_group.address if not grant.HasField("sharing") else ""
        """Empty: there is no group, or results come by the first worker of this host."""
        self._where = where
        self._slots = grant.slots
        self._before = self._heard = before

    def look(self, read_traffic: Callable[[], TrafficStats]) -> None:
        if not self._group:
            return
        traffic = read_traffic()
        if traffic.by_group > self._heard.by_group:  # less: a program in C gave no state
            if self.silent:
                log.warning("results come by the multicast group %s again", self._group)
            self._heard, self.silent = traffic, False
            return
        asked_for = traffic.results - self._heard.results
        # A worker that slept has missed a result for each slot at most: others do not go on without it.
        missed_max = self._slots if self._heard is not self._before else 0
        if asked_for > missed_max + RESULTS_MIN and not self.silent:
            self.silent = True
            log.warning(
                "%s sends results to the multicast group %s, and the last %d did not come by it: each had to be asked "
                "for. All sums are right, and it is slow. Does the network carry the group to this worker (IGMP "
                "snooping needs a querier)? A switch without --multicast sends to each worker",
                self._where, self._group, asked_for,
            )  # fmt: skip
