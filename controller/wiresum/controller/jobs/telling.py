"""What switches are told of leases, in which order, and what follows from their answers. Pure.

The slots of a lease at a switch are free when this switch has forgotten the lease, so an unreachable switch keeps no
slots of others. The lease's number is free when all its switches have forgotten it. tree.py has the phases.
"""

from __future__ import annotations

from collections.abc import Callable

from wiresum.controller.driver import Reconciled
from wiresum.controller.jobs.cluster import Cluster, Switch
from wiresum.controller.jobs.job import Lease, LeaseState
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Admit, Evict, Output, Reconcile
from wiresum.controller.jobs.tree import Node, Phase, to_admit, to_evict


class Telling:
    def __init__(self, cluster: Cluster, limits: Limits, emit: Callable[[Output], None]) -> None:
        self._cluster, self._limits, self._emit = cluster, limits, emit

    def numbered(self, switch_name: str, number: int) -> Lease | None:
        return self._cluster.switches[switch_name].numbered.get(number)

    def admit(self, lease: Lease) -> None:
        """Installs the lease in those of its switches that can be told now; the root is told first."""
        for node in to_admit(lease.nodes):
            node.step(Phase.ADMITTING)
            assert node.entry is not None, "it is settled what the switch is told"
            self._emit(Admit(node.branch.switch_name, node.entry))

    def admitted(self, switch_name: str, number: int) -> Lease | None:
        """A switch has installed a lease. Returns the lease if all its switches have it now, otherwise None."""
        found = self._find(switch_name, number, Phase.ADMITTING)
        if found is None:
            return None  # the lease was released meanwhile, and the switch is told to forget it
        lease, node = found
        node.step(Phase.HOLDING)
        self.admit(lease)
        if any(node.phase is not Phase.HOLDING for node in lease.nodes.values()):
            return None
        lease.step(LeaseState.HELD)
        return lease

    def refused(self, switch_name: str, number: int) -> Lease | None:
        """A switch did not take a lease, but may hold a part of it. Returns the lease if it was not released
        meanwhile."""
        found = self._find(switch_name, number, Phase.ADMITTING)
        return found[0] if found is not None and found[0].state is LeaseState.ADMITTING else None

    def release(self, lease: Lease) -> None:
        """Tells the lease's switches to forget it, the leaves first. No error if they are being told already."""
        if lease.state is not LeaseState.RELEASED:
            lease.step(LeaseState.RELEASED)
        for node in lease.nodes.values():
            if node.phase is Phase.LEASED:
                node.step(Phase.FORGOTTEN)
        for node in to_evict(lease.nodes):
            node.step(Phase.EVICTING)
            self._emit(Evict(node.branch.switch_name, lease.number))

    def evicted(self, switch_name: str, number: int) -> Lease | None:
        """A switch has forgotten a lease. Returns the lease; None: the switch was not being told to forget it."""
        found = self._find(switch_name, number, Phase.EVICTING)
        if found is None:
            return None
        lease, node = found
        node.step(Phase.FORGOTTEN)
        self.release(lease)
        return lease

    def evict_failed(self, switch_name: str, number: int, now: float) -> None:
        """An eviction failed, and will be tried again. The slots stay taken, since the switch may still write to
        them."""
        found = self._find(switch_name, number, Phase.EVICTING)
        if found is not None:
            lease, node = found
            node.evict_again_at = now + self._limits.evict_retry_ms / 1000
            self.release(lease)

    def try_again(self, lease: Lease, now: float) -> None:
        """Repeats failed evictions of a released lease; to be called from time to time."""
        for node in lease.nodes.values():
            if node.evict_again_at is not None and now >= node.evict_again_at:
                node.evict_again_at = None
                self._emit(Evict(node.branch.switch_name, lease.number))

    def reconcile(self, switch: Switch) -> None:
        switch.reconcile_again_at = None
        entries = tuple(node.entry for node in switch.held().values() if node.entry is not None)
        self._emit(Reconcile(switch.name, entries))

    def reconciled(self, asked: Reconcile) -> list[Lease]:
        """A switch holds exactly what it was asked to. Returns the leases that it has forgotten, except those whose
        eviction it has yet to answer."""
        switch = self._cluster.switches[asked.switch_name]
        kept = {entry.job for entry in asked.entries}
        forgotten = []
        for number, lease in switch.numbered.items():
            node = lease.nodes[switch.name]
            is_idle = node.phase is Phase.HOLDING or node.evict_again_at is not None
            if lease.state is LeaseState.RELEASED and number not in kept and is_idle:
                node.step(Phase.FORGOTTEN)
                self.release(lease)
                forgotten.append(lease)
        return forgotten

    def strangers(self, asked: Reconcile, found: Reconciled) -> list[tuple[Lease, str]]:
        """Leases that a switch was asked to hold but that cannot continue there, each with the reason.

        A job is stored when all its switches have it, and as ended before any is told to forget it. So if the disk says
        that a job runs and the switch holds nothing of it, the job has ended since. The key of a job that was being
        admitted may have been used there by another controller.
        """
        name = asked.switch_name
        result = []
        for entry in asked.entries:
            lease = self.numbered(name, entry.job)
            if lease is None or lease.key != entry.key or lease.state is LeaseState.RELEASED:
                continue
            presumed, lease.nodes[name].presumed = lease.nodes[name].presumed, False
            if entry.job not in found.added:
                continue
            if presumed:
                result.append((lease, f"{name} does not hold it: it ended after the controller's state was written"))
            elif 0 < entry.keys_reserved <= found.keys_reserved:
                result.append((lease, f"another controller has programmed {name} meanwhile, and may have used its key"))
        return result

    def give_back(self, lease: Lease) -> bool:
        """Frees the slots at switches that have forgotten the lease. True if there were any."""
        nodes = [node for node in lease.nodes.values() if node.phase is Phase.FORGOTTEN and node.slots is not None]
        for node in nodes:
            self._cluster.give_back(lease, node)
        return bool(nodes)

    def free_number(self, lease: Lease) -> None:
        """Frees the number of a lease that has no slots any more."""
        for name in lease.nodes:
            self._cluster.switches[name].free_number(lease)

    def _find(self, switch_name: str, number: int, phase: Phase) -> tuple[Lease, Node] | None:
        lease = self.numbered(switch_name, number)
        if lease is None or lease.nodes[switch_name].phase is not phase:
            return None
        return lease, lease.nodes[switch_name]
