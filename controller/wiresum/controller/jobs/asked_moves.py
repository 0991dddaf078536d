"""How often the jobs of a tenant may move because their workers ask for it. Pure.

A move takes time of the service, and entries of switches, from all. A worker asks for one when it has lost the service,
which may happen to all jobs of a tenant at once, and so a tenant has a budget that grows with its jobs. What a job does
because its switch is lost, drained or was started anew is not counted.

What is beyond the budget waits: its workers have halted, and nothing is lost. It moves when the budget allows it, or at
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
        """By tenant, of those that have spent any."""

    def __len__(self) -> int:
        return len(self._spent)

    def take(self, tenant: str, jobs: int, now: float) -> bool:
        """May one of the tenant's `jobs` move?"""
        spent = self._left_over(tenant, now)
        if spent + 1 > self._limits.moves_asked_least + self._limits.moves_asked_per_job * jobs:
            return False
        self._forget_old(now)
        self._spent[tenant] = _Spent(spent + 1, now)
        return True

    def _left_over(self, tenant: str, now: float) -> float:
        """What has been spent and has not come back yet."""
        spent = self._spent.get(tenant)
        if spent is None:
            return 0.0
        return max(0.0, spent.moves - (now - spent.at) * 1000 / self._limits.moves_asked_ms)

    def _forget_old(self, now: float) -> None:
        """As many tenants are kept as spend something."""
        self._spent = {tenant: spent for tenant, spent in self._spent.items() if self._left_over(tenant, now) > 0}
