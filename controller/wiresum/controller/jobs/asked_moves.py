"""Limits how often the jobs of a tenant move because their workers ask for a move. Pure.

A move takes time of the service, and entries of switches, from all jobs. A worker asks for a move when it has lost the
service. All jobs of a tenant may lose the service at once, and so a tenant has a budget that grows with its jobs. Moves
because a switch is lost, drained or was started anew are not counted.

A job beyond the budget waits: its workers have halted, and nothing is lost. The job moves when the budget allows, or at
once when the switch turns out to be lost. After `switch_lost_ms_max` it ends, with an error that says why.
"""

from __future__ import annotations

from typing import NamedTuple

from wiresum.controller.jobs.limits import Limits


class _Spent(NamedTuple):
    moves: float
    at: float


class AskedMoves:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._spent: dict[str, _Spent] = {}
        """Moves spent, by tenant; a tenant that has spent none is absent."""

    def __len__(self) -> int:
        return len(self._spent)

    def take(self, tenant: str, jobs: int, now: float) -> bool:
        """Counts one move against the tenant's budget, which grows with its number of `jobs`. False if the budget is
        used up."""
        spent = self._left_over(tenant, now)
        if spent + 1 > self._limits.moves_asked_least + self._limits.moves_asked_per_job * jobs:
            return False
        self._forget_old(now)
        self._spent[tenant] = _Spent(spent + 1, now)
        return True

    def _left_over(self, tenant: str, now: float) -> float:
        """Moves that the tenant has spent and that time has not restored yet."""
        spent = self._spent.get(tenant)
        if spent is None:
            return 0.0
        return max(0.0, spent.moves - (now - spent.at) * 1000 / self._limits.moves_asked_ms)

    def _forget_old(self, now: float) -> None:
        """Drops tenants whose budget is full again, so that `_spent` stays small."""
        self._spent = {tenant: spent for tenant, spent in self._spent.items() if self._left_over(tenant, now) > 0}
