"""Evaluates what a report says of a job's tree of switches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from wiresum.join.join_pb2 import NodeReport


class Contributor(Protocol):
    """A worker of a Diagnosis, or of a JobReport."""

    @property
    def switch_name(self) -> str: ...
    @property
    def contributions(self) -> int: ...


def silent_switches(switches: Iterable[NodeReport]) -> set[str]:
    """Names of the switches that do not say what they counted: zeros of theirs, and of their workers, mean nothing."""
    return {node.switch_name for node in switches if node.uncounted}


def packets_behind(switches: Sequence[NodeReport], workers: Iterable[Contributor]) -> dict[str, int]:
    """For each switch with a parent, how many packets its sums lag behind the parent's other contributors. Switches
    whose parent's counters are unknown are absent."""
    beside: dict[str, int] = {}
    for worker in workers:
        beside[worker.switch_name] = max(beside.get(worker.switch_name, 0), worker.contributions)
    for node in switches:
        beside[node.parent] = max(beside.get(node.parent, 0), node.contributions)
    silent = silent_switches(switches)
    return {
        node.switch_name: beside[node.parent] - node.contributions
        for node in switches
        if node.parent and node.parent not in silent
    }
