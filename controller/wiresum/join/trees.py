"""What a report of a job says of its tree of switches. Pure."""

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


def packets_behind(switches: Sequence[NodeReport], workers: Iterable[Contributor]) -> dict[str, int]:
    """By name of each switch that has another above it: by how many packets its sums there lag behind whatever else
    comes to that one. Without those of which the switch above does not say what it counted."""
    beside: dict[str, int] = {}
    for worker in workers:
        beside[worker.switch_name] = max(beside.get(worker.switch_name, 0), worker.contributions)
    for node in switches:
        beside[node.parent] = max(beside.get(node.parent, 0), node.contributions)
    silent = {node.switch_name for node in switches if node.uncounted}
    return {
        node.switch_name: beside[node.parent] - node.contributions
        for node in switches
        if node.parent and node.parent not in silent
    }
