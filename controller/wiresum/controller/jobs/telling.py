"""What switches are told of jobs, in which order, and what follows from their answers. Pure.

A job's slots at a switch are free when that switch has forgotten the job, so a switch out of reach keeps no slots of
others. The job's number is free when all its switches have forgotten it. tree.py has the phases.
"""

from __future__ import annotations

from collections.abc import Callable

from wiresum.controller.driver import Reconciled
from wiresum.controller.jobs.cluster import Cluster, Switch
from wiresum.controller.jobs.job import Job, State
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Admit, Evict, Output, Reconcile
from wiresum.controller.jobs.tree import Node, Phase, to_admit, to_evict


class Telling:
    def __init__(self, cluster: Cluster, limits: Limits, emit: Callable[[Output], None]) -> None:
        self._cluster, self._limits, self._emit = cluster, limits, emit

    def numbered(self, switch_name: str, number: int) -> Job | None:
        return self._cluster.switches[switch_name].numbered.get(number)

    def admit(self, job: Job) -> None:
        """Its switches are told, the root first."""
        for node in to_admit(job.nodes):
            node.move(Phase.ADMITTING)
            assert node.entry is not None, "it is settled what the switch is told"
            self._emit(Admit(node.branch.switch_name, node.entry))

    def admitted(self, switch_name: str, number: int) -> Job | None:
        """A switch has a job. Returns the job if all its switches have it now."""
        found = self._find(switch_name, number, Phase.ADMITTING)
        if found is None:
            return None  # it ended meanwhile, and is being evicted
        job, node = found
        node.move(Phase.HOLDING)
        self.admit(job)
        return job if all(node.phase is Phase.HOLDING for node in job.nodes.values()) else None

    def refused(self, switch_name: str, number: int) -> Job | None:
        """A switch did not take a job, but may hold part of it. Returns the job if it has not ended meanwhile."""
        found = self._find(switch_name, number, Phase.ADMITTING)
        return found[0] if found is not None and found[0].state is State.ADMITTING else None

    def evict(self, job: Job) -> None:
        """Its switches are told to forget it, the leaves first."""
        for node in job.nodes.values():
            if node.phase is Phase.LEASED:
                node.move(Phase.FORGOTTEN)
        for node in to_evict(job.nodes):
            node.move(Phase.EVICTING)
            self._emit(Evict(node.branch.switch_name, job.number))

    def evicted(self, switch_name: str, number: int) -> Job | None:
        """A switch has forgotten a job, which is returned."""
        found = self._find(switch_name, number, Phase.EVICTING)
        if found is None:
            return None
        job, node = found
        node.move(Phase.FORGOTTEN)
        self.evict(job)
        return job

    def evict_failed(self, switch_name: str, number: int, now: float) -> None:
        """Tried again. The lease stays taken, since the switch may still write to its slots."""
        found = self._find(switch_name, number, Phase.EVICTING)
        if found is not None:
            job, node = found
            node.evict_again_at = now + self._limits.evict_retry_ms / 1000
            self.evict(job)

    def try_again(self, job: Job, now: float) -> None:
        """To be called now and then, for a job that ends or moves."""
        for node in job.nodes.values():
            if node.evict_again_at is not None and now >= node.evict_again_at:
                node.evict_again_at = None
                self._emit(Evict(node.branch.switch_name, job.number))

    def reconcile(self, switch: Switch) -> None:
        switch.reconcile_again_at = None
        entries = tuple(node.entry for node in switch.held().values() if node.entry is not None)
        self._emit(Reconcile(switch.name, entries))

    def reconciled(self, asked: Reconcile) -> list[Job]:
        """A switch holds exactly what it was asked to. Returns the jobs that it has forgotten, without those whose
        eviction it has yet to answer."""
        switch = self._cluster.switches[asked.switch_name]
        kept = {entry.job for entry in asked.entries}
        forgotten = []
        for number, job in switch.numbered.items():
            node = job.nodes[switch.name]
            is_idle = node.phase is Phase.HOLDING or node.evict_again_at is not None
            if job.state in (State.MOVING, State.ENDING) and number not in kept and is_idle:
                node.move(Phase.FORGOTTEN)
                self.evict(job)
                forgotten.append(job)
        return forgotten

    def strangers(self, asked: Reconcile, found: Reconciled) -> list[tuple[Job, str]]:
        """The jobs that a switch was asked to hold and that cannot go on there, each with the reason.

        A job is stored when all its switches have it, and as ended before any is told to forget it. So if the disk says
        that it runs and the switch holds nothing of it, it has ended since. The key of one that was being admitted may
        have been used there by another controller.
        """
        name = asked.switch_name
        result = []
        for entry in asked.entries:
            job = self.numbered(name, entry.job)
            if job is None or job.key != entry.key or job.state not in (State.ADMITTING, State.RUNNING):
                continue
            presumed, job.nodes[name].presumed = job.nodes[name].presumed, False
            if entry.job not in found.added:
                continue
            if presumed:
                result.append((job, f"{name} does not hold it: it ended after the controller's state was written"))
            elif 0 < entry.keys_reserved <= found.keys_reserved:
                result.append((job, f"another controller has programmed {name} meanwhile, and may have used its key"))
        return result

    def give_back(self, job: Job) -> bool:
        """Frees the slots at switches that have forgotten the job, with the last ones its number if it ends. Were there
        any?"""
        nodes = [node for node in job.nodes.values() if node.phase is Phase.FORGOTTEN and node.lease is not None]
        for node in nodes:
            self._cluster.give_back(job, node)
        if job.state is State.ENDING and self.has_given_back(job):
            for name in job.nodes:
                self._cluster.switches[name].free_number(job)
        return bool(nodes)

    @staticmethod
    def has_given_back(job: Job) -> bool:
        """Does no switch have slots for it any more?"""
        return all(node.lease is None for node in job.nodes.values())

    def _find(self, switch_name: str, number: int, phase: Phase) -> tuple[Job, Node] | None:
        job = self.numbered(switch_name, number)
        if job is None or job.nodes[switch_name].phase is not phase:
            return None
        return job, job.nodes[switch_name]
