"""What each tenant may have, and has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.jobs.refusal import Refusal


@dataclass(frozen=True)
class Allowance:
    """What a tenant may have besides what it has; None: no limit."""

    jobs: int | None
    slots: int | None


class Quotas:
    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._quotas = {quota.name: quota for quota in quotas}

    def of(self, tenant: str) -> Quota:
        """The tenant's own, or that of tenants which no quota names."""
        return self._quotas.get(tenant) or self._quotas.get("") or Quota("")

    def check_possible(self, tenant: str, priority: int, slots: int = 1) -> None:
        """Raises a `Refusal` if such a job could never run."""
        quota, whose = self.of(tenant), f"tenant {tenant!r}" if tenant else "jobs without a tenant (WIRESUM_TENANT)"
        if quota.jobs == 0 or (quota.slots is not None and quota.slots < slots):
            wanted = f"{slots} slots" if slots > 1 else "any job"
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"the quota of {whose} does not allow {wanted}: it is {quota.describe()}. The controller's "
                f"configuration says so, under [[tenant]]",
            )
        if quota.priority_max is not None and priority > quota.priority_max:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"priority {priority} is more than {whose} may have, {quota.priority_max}: ask for less, or raise "
                f"priority_max in the controller's configuration, under [[tenant]]",
            )

    def allowance(self, tenant: str, holders: Callable[[], Iterable[Job]]) -> Allowance:
        """`holders`: all jobs that have slots. A job's slots count at each of its switches."""
        quota = self.of(tenant)
        if quota.jobs is None and quota.slots is None:
            return Allowance(None, None)
        jobs = [job for job in holders() if job.tenant == tenant]
        leases = [node.lease for job in jobs for node in job.nodes.values() if node.lease is not None]
        return Allowance(
            jobs=None if quota.jobs is None else quota.jobs - len(jobs),
            slots=None if quota.slots is None else quota.slots - sum(lease.count for lease in leases),
        )
