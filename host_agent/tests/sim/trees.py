"""Hosts of one worker or several, and trees of switches above them; hosts and switches may hang on the same switch."""

from __future__ import annotations

import random

from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX
from wiresum_lab.simulation import sim

DEPTH_MAX = 3
SWITCHES_MAX = 8


def settle(rng: random.Random, config: sim.Scenario) -> None:
    """Puts the scenario's workers on hosts of up to eight in any order: those of one host share a stream."""
    most = rng.choice([2, 4, 8])
    hosts: list[int] = []
    while len(hosts) < config.workers:
        hosts += [hosts[-1] + 1 if hosts else 0] * rng.randint(1, most)
    config.hosts = rng.sample(hosts[: config.workers], config.workers)


def hosts_of(config: sim.Scenario) -> int:
    return len(set(config.hosts)) or config.workers


def plant(rng: random.Random, config: sim.Scenario) -> None:
    """Hangs the scenario's hosts on a tree of two to SWITCHES_MAX switches, at most DEPTH_MAX deep."""
    parents, depths = [0], [1]
    for _ in range(rng.randrange(1, SWITCHES_MAX)):
        parent = rng.choice([switch for switch, depth in enumerate(depths) if depth < DEPTH_MAX])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    leaves = [rng.randrange(len(parents)) for _ in range(hosts_of(config))]
    config.parents, config.leaves = without_barren(parents, leaves)
    children = [*config.leaves, *config.parents[1:]]
    assert all(children.count(switch) <= BELOW_ROOT_WORKERS_MAX for switch in range(len(config.parents)))


def without_barren(parents: list[int], leaves: list[int]) -> tuple[list[int], list[int]]:
    """Removes the switches that have no worker below them."""
    kept = {0}
    for leaf in leaves:
        switch = leaf
        while switch not in kept:
            kept.add(switch)
            switch = parents[switch]
    number = {switch: place for place, switch in enumerate(sorted(kept))}
    return [number[parents[switch]] for switch in sorted(kept)], [number[leaf] for leaf in leaves]
